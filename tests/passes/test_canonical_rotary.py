"""Rotary positions as exporters spell them: what becomes RotaryEmbedding, what does not and why."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from text_graphs import changed, count, ops, parse, why_not

from ridgeline.base.choices import Refusal
from ridgeline.passes.canonical_rotary import CUDA_RULES, RULES
from ridgeline.passes.rule import Fusion, apply_rules
from ridgeline.passes.shapes import infer_shapes

# x is [B, H, S, D] with B = 1, H = 3, S = 4, D = 8
X = "float[1,3,4,8] x"
NUMBERS = {"zero": 0, "one": 1, "two": 2, "half": 4, "whole": 8, "columns": 3, "pairs": 4}
FRONT = "front = Slice(x, zero, half, columns)"
BACK = "back = Slice(x, half, whole, columns)"
SUM = "a = Mul(x, cos) b = Mul(turned, sin) y = Add(a, b)"
HALVES = f"{FRONT} {BACK} n = Neg(back) turned = Concat<axis = -1>(n, front) {SUM}"
NEIGHBOURS = f"""
    front = Slice(x, zero, whole, columns, two) back = Slice(x, one, whole, columns, two)
    n = Neg(back) u = Unsqueeze(n, pairs) v = Unsqueeze(front, pairs)
    apart = Concat<axis = -1>(u, v) turned = Reshape(apart, like) {SUM}
"""
PAIRS = f"""{FRONT} {BACK}
    fc = Mul(front, cos) bs = Mul(back, sin) left = Sub(fc, bs)
    bc = Mul(back, cos) fs = Mul(front, sin) right = Add(bc, fs)
    y = Concat<axis = -1>(left, right)
"""
PARTLY = f"{FRONT} {BACK} r = RotaryEmbedding(front, cos, sin) y = Concat<axis = 3>(r, back)"


def table(seed: int, *shape: int, interleaved: bool = False) -> np.ndarray:
    """A table that holds every column twice."""
    once = np.random.default_rng(seed).standard_normal((*shape[:-1], shape[-1] // 2)).astype(np.float32)
    return np.repeat(once, 2, axis=-1) if interleaved else np.concatenate([once, once], axis=-1)


def plain(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


TABLES = {"cos": table(1, 4, 8), "sin": table(2, 4, 8), "like": np.array([1, 3, 4, 8])}


def model_of(body: str, inputs: str = X, outputs: str = "float[1,3,4,8] y", **arrays: np.ndarray) -> ir.Model:
    """The graph with the tables and numbers that it names as constants."""
    given = {**{name: np.array([n]) for name, n in NUMBERS.items()}, **TABLES, **arrays}
    kinds = {"f": "float", "i": "int64"}
    used = {
        name: a
        for name, a in given.items()
        if f"{name} =" not in body and any(f"{p}{name}{q}" in body for p in " (" for q in ",)")
    }
    ports = ", ".join(f"{kinds[a.dtype.kind]}[{','.join(map(str, a.shape))}] {n}" for n, a in used.items())
    model = parse(f"g ({inputs}{', ' if ports else ''}{ports}) => ({outputs}) {{ {body} }}")
    for value in [v for v in model.graph.inputs if v.name in used]:
        model.graph.inputs.remove(value)
        value.const_value = ir.tensor(used[str(value.name)], name=value.name)
        model.graph.register_initializer(value)
    infer_shapes(model)
    return model


def written(model: ir.Model, rules: tuple[Fusion, ...] = RULES) -> list[Refusal]:
    """Apply the rules; the results stay what they were."""
    return changed(model, lambda: apply_rules(model, rules))


def rotary(model: ir.Model) -> ir.Node:
    (node,) = (node for node in model.graph if node.op_type == "RotaryEmbedding")
    return node


def test_halves() -> None:
    model = model_of(HALVES)
    assert written(model) == []
    assert ops(model) == ["Unsqueeze", "Unsqueeze", "RotaryEmbedding"]
    assert rotary(model).attributes["interleaved"].value == 0
    assert rotary(model).attributes["num_heads"].value == 3


def test_neighbours() -> None:
    tables = {name: table(seed, 4, 8, interleaved=True) for seed, name in enumerate(("cos", "sin"))}
    model = model_of(NEIGHBOURS, **tables)
    written(model)
    assert rotary(model).attributes["interleaved"].value == 1


@pytest.mark.parametrize("shape", [(4, 4), (1, 4, 4), (1, 1, 4, 4)])
def test_pairs_with_tables_of_any_rank(shape: tuple[int, ...]) -> None:
    model = model_of(PAIRS, cos=plain(3, *shape), sin=plain(4, *shape))
    written(model)
    assert count(model, "RotaryEmbedding") == 1
    assert count(model, "Concat") == 0


def test_places_before_heads() -> None:
    """[B, S, H, D]: the table has an axis of one for the heads."""
    model = model_of(PAIRS, cos=plain(3, 3, 1, 4), sin=plain(4, 3, 1, 4))
    written(model)
    assert ops(model).count("Transpose") == 2
    assert count(model, "RotaryEmbedding") == 1


def test_parts_of_a_split_are_halves_too() -> None:
    body = HALVES.replace(f"{FRONT} {BACK}", "front, back = Split<axis = -1, num_outputs = 2>(x)")
    model = model_of(body)
    written(model)
    assert count(model, "RotaryEmbedding") == 1


def test_a_table_that_is_computed() -> None:
    """cos(concat(angles, angles)): every column stands twice whatever the angles are."""
    body = f"twice = Concat<axis = -1>(angles, angles) cos = Cos(twice) sin = Sin(twice) {HALVES}"
    model = model_of(body, inputs=f"{X}, float[4,4] angles")
    written(model)
    assert count(model, "RotaryEmbedding") == 1
    assert count(model, "Concat") == 0


def test_only_the_first_columns_are_turned() -> None:
    model = model_of(PARTLY, cos=plain(5, 1, 4, 2), sin=plain(6, 1, 4, 2))
    written(model)
    assert ops(model) == ["RotaryEmbedding"]
    assert rotary(model).attributes["rotary_embedding_dim"].value == 4


def test_written_out_again_for_generated_kernels() -> None:
    body = "y = RotaryEmbedding(x, cos, sin)"
    model = model_of(body, cos=plain(5, 1, 4, 4), sin=plain(6, 1, 4, 4))
    written(model, CUDA_RULES)
    assert count(model, "RotaryEmbedding") == 0
    assert count(model, "Slice") == 2


MISSES = {
    "pairs are not joined as columns": (HALVES.replace("axis = -1", "axis = 2"), {}),
    "not parts of one value": (HALVES.replace("Slice(x, half", "Slice(z, half"), {}),
    "turned is another value than what is added": (HALVES.replace("Mul(x, cos)", "Mul(z, cos)"), {}),
    "are not pairs": (
        HALVES.replace("zero, half", "zero, three").replace("half, whole", "three, whole"),
        {"three": np.array([3])},
    ),
    "table is not known to repeat its half": (HALVES, {"cos": plain(7, 4, 8)}),
    "want rows of 8": (HALVES, {"cos": table(7, 8), "sin": table(8, 8)}),
    "table is not per place": (HALVES, {"cos": table(7, 3, 4, 8), "sin": table(8, 3, 4, 8)}),
    "one table is per place, the other per head": (
        PAIRS, {"cos": plain(7, 1, 4, 4), "sin": plain(8, 4, 1, 4)},
    ),
    "pairs do not lie side by side": (
        NEIGHBOURS.replace("pairs)", "columns)"),
        {n: table(1, 4, 8, interleaved=True) for n in ("cos", "sin")},
    ),
    "halves are cut from nothing": (PAIRS.replace(FRONT, "front = Identity(q)"), {}),
    "not joined as columns": (PARTLY.replace("axis = 3", "axis = 2"), {"cos": plain(5, 1, 4, 2)}),
    "not two parts of one value": (PARTLY.replace("(r, back)", "(r, front)"), {"cos": plain(5, 1, 4, 2)}),
    "turned in part already": (
        PARTLY.replace("RotaryEmbedding(", "RotaryEmbedding<rotary_embedding_dim = 2, num_heads = 3>("),
        {"cos": plain(5, 1, 4, 1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", MISSES)
def test_what_is_not_rotary_stays(reason: str) -> None:
    body, arrays = MISSES[reason]
    heads = 4 if "per head" in reason else 3  # as many heads as places: either axis could be meant
    inputs = f"float[1,{heads},4,8] x, float[1,3,4,8] z, float[1,3,4,4] q"
    model = model_of(body, inputs, "float[A,B,C,D] y", **{"sin": arrays.get("cos", TABLES["sin"]), **arrays})
    turned = count(model, "RotaryEmbedding")
    refusals = apply_rules(model, RULES)
    assert count(model, "RotaryEmbedding") == turned
    assert any(reason in refusal.reason for refusal in refusals), refusals


SPELLED_MISSES = {
    "heads are not an axis": ("x", "float[1,4,24] x", {"num_heads": 3}),
    "neighbours are turned": ("x", X, {"interleaved": 1}),
    "turned in part": ("x", X, {"rotary_embedding_dim": 4, "num_heads": 3}),
}


@pytest.mark.parametrize("reason", SPELLED_MISSES)
def test_what_generated_kernels_do_not_spell(reason: str) -> None:
    x, inputs, attrs = SPELLED_MISSES[reason]
    listed = ", ".join(f"{name} = {n}" for name, n in attrs.items())
    body = f"y = RotaryEmbedding<{listed}>({x}, cos, sin)"
    model = model_of(body, inputs, "float[A,B,C,D] y", cos=plain(5, 1, 4, 4), sin=plain(6, 1, 4, 4))
    assert why_not(model, CUDA_RULES[0]) == reason


def test_a_value_inside_that_others_read_stays() -> None:
    model = model_of(HALVES, outputs="float[1,3,4,8] y, float[1,3,4,8] turned")
    refusals = written(model)
    assert count(model, "RotaryEmbedding") == 0
    assert any("outside the pattern" in refusal.reason for refusal in refusals)
