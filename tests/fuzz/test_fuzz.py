"""Random graphs, by seed: no wrong result, no crash, and a reason with every refusal.

The first seeds run here; `python tests/fuzz/fuzz_many.py --count 2000` runs as many as one likes, and prints
those that went wrong. What was found that way is in `test_found_by_fuzz.py`.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fuzz_graphs import RECIPES, make_case
from fuzz_judge import compare, judge, moved_values

BLOCK = 20
# without generated C++ a graph takes a tenth of a second; a compiler takes that many seconds
PLAIN_BLOCKS, COMPILED_BLOCKS = 14, 1


def require_right(seeds: range | list[int], **options: object) -> None:
    """Every seed at once: one line for each that is not right and not refused with a reason."""
    bad = []
    for seed in seeds:
        case = make_case(seed)
        verdict = judge(case, **options)
        if verdict.kind not in ("right", "refused") or (verdict.kind == "refused" and not verdict.detail):
            bad.append(f"seed {seed} ({' '.join(case.ops)}) {verdict.kind}: {verdict.detail}")
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("block", range(PLAIN_BLOCKS))
def test_graphs_on_the_floor(block: int) -> None:
    require_right(range(block * BLOCK, (block + 1) * BLOCK), without=("ort", "cpp"))


@pytest.mark.parametrize("block", range(COMPILED_BLOCKS))
def test_graphs_with_generated_code(block: int) -> None:
    require_right(range(1000 + block * BLOCK, 1000 + (block + 1) * BLOCK), level=0)


def test_graphs_chosen_by_time() -> None:
    require_right(range(2000, 2006), level=1)


def test_the_same_seed_makes_the_same_graph() -> None:
    one, other = make_case(7), make_case(7)
    assert one.model.SerializeToString(deterministic=True) == other.model.SerializeToString(
        deterministic=True
    )
    assert all(np.array_equal(one.feeds[n], other.feeds[n], equal_nan=True) for n in one.feeds)


def test_the_graphs_are_legal_and_of_every_kind() -> None:
    cases = [make_case(seed) for seed in range(400)]
    for case in cases[:50]:
        onnx.checker.check_model(case.model, full_check=True)
    seen = {op for case in cases for op in case.ops}
    assert len(seen) > 0.9 * len(RECIPES), sorted(set(RECIPES) - seen)
    symbolic = [
        any(d.dim_param for p in c.model.graph.input for d in p.type.tensor_type.shape.dim) for c in cases
    ]
    assert 0.2 < np.mean(symbolic) < 0.8
    assert {len(case.ops) for case in cases} == set(range(1, 9))


@pytest.mark.parametrize("change", [1e-3, np.nan, "shape", "type"])
def test_a_wrong_result_is_seen(change: object) -> None:
    """The judge itself: what is off by a thousandth, NaN, or of another shape or type is wrong."""
    case = make_case(31)
    names = [p.name for p in case.model.graph.output]
    want = {n: case.steps.of(n) for n in names}
    assert compare(want, want, moved_values(case)) == ""
    name = next(
        n for n in names if want[n].dtype.kind == "f" and np.isfinite(want[n]).all() and want[n].any()
    )
    if change == "shape":
        other = want[name][None]
    elif change == "type":
        other = want[name].astype(np.float64)
    else:
        other = (want[name] + np.abs(want[name]).max() * np.asarray(change)).astype(want[name].dtype)
    assert name in compare(want | {name: other}, want, moved_values(case))
