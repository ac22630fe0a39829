"""Generated copies: every op they take against the onnx reference; odd sizes, item widths, both layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from cpp_cases import needs_compiler
from onnx.reference import ReferenceEvaluator

from offers import offered, why_not
from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.ir.body import model_proto
from ridgeline.ir.infer import type_proto
from ridgeline.ir.moves import runs_of
from ridgeline.kernels.cpp.moves import find_moves
from ridgeline.tactics.cpu.cpp import CppMoves

Arrays = dict[str, np.ndarray]


@pytest.fixture
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.getbasetemp()) / "cpp-moves"


def _items(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 99, shape).astype(dtype)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def _meaning(op: Op, given: Arrays) -> list[np.ndarray]:
    specs = {name: type_proto(TensorSpec(str(a.dtype), a.shape)) for name, a in given.items()}
    outputs = {name: onnx.TypeProto() for name in op.outputs}
    model = model_proto([op], inputs=specs, outputs=outputs, constants={}, opset_imports={"": 19})
    made: list[np.ndarray] = ReferenceEvaluator(model).run(None, given)
    return made


def _site(
    op: Op, moved: Arrays, known: Arrays, *, layout: Any = "contiguous"
) -> tuple[Site, list[np.ndarray]]:
    want = _meaning(op, {**moved, **known})
    specs = {name: TensorSpec(str(a.dtype), a.shape) for name, a in {**moved, **known}.items()}
    specs |= {name: TensorSpec(str(a.dtype), a.shape) for name, a in zip(op.outputs, want, strict=True)}
    if layout != "contiguous":
        specs = {n: TensorSpec(s.dtype, s.shape, layout if len(s.shape) == 4 else "contiguous")
                 for n, s in specs.items()}  # fmt: skip
    body = Body((*moved, *known), op.outputs, (op,))
    return Site(body, specs, frozenset(), known, Target(threads=2)), want


def _check(
    cache_dir: Path, op: Op, moved: Arrays, known: Arrays | None = None, *, layout: Any = "contiguous"
) -> None:
    site, want = _site(op, moved, known or {}, layout=layout)
    tactic = CppMoves(cache_dir=cache_dir)
    assert why_not(tactic, site) is None
    form = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    args = [torch.from_numpy(a) for a in {**moved, **(known or {})}.values()]
    args = [a.contiguous(memory_format=form) if a.dim() == 4 else a for a in args]
    for config in offered(tactic, site).configs:
        outs = [torch.from_numpy(np.full(a.shape, 113).astype(a.dtype)) for a in want]
        outs = [o.contiguous(memory_format=form) if o.dim() == 4 else o for o in outs]
        offered(tactic, site).bind(config, {}).frozen(args, outs)()
        for got, wanted in zip(outs, want, strict=True):
            np.testing.assert_array_equal(got.numpy(), wanted)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "int8", "int64", "float16", "bool"])
@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ((1,), (4,), (1,), (1,)), ((0, 2), (3, 99), (0, -1), (1, 2)), ((-1,), (-99,), (2,), (-1,)),
        ((4, 6), (0, 0), (1, 2), (-2, -3)),
    ],
)  # fmt: skip
def test_slice(cache_dir: Path, dtype: str, starts: Any, ends: Any, axes: Any, steps: Any) -> None:
    op = Op("Slice", ("x", "starts", "ends", "axes", "steps"), ("y",))
    known = {"starts": _ints(*starts), "ends": _ints(*ends), "axes": _ints(*axes), "steps": _ints(*steps)}
    _check(cache_dir, op, {"x": _items(3, 5, 7, dtype=dtype)}, known)


@needs_compiler
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat_and_split(cache_dir: Path, axis: int) -> None:
    sizes = [[3, 5, 7] for _ in range(3)]
    for size, here in zip(sizes, (1, 4, 2), strict=True):
        size[axis] = here
    parts = {f"x{i}": _items(*size, seed=i) for i, size in enumerate(sizes)}
    _check(cache_dir, Op("Concat", tuple(parts), ("y",), {"axis": axis}), parts)
    whole = np.concatenate(list(parts.values()), axis)
    op = Op("Split", ("x", "sizes"), ("a", "b", "c"), {"axis": axis})
    _check(cache_dir, op, {"x": whole}, {"sizes": _ints(1, 4, 2)})


@needs_compiler
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [(0, 2, 1, 0, 3, 2), (1, 0, 0, 0, 0, 0)])
def test_pad(cache_dir: Path, mode: str, pads: tuple[int, ...]) -> None:
    op = Op("Pad", ("x", "pads", "value"), ("y",), {"mode": mode})
    known = {"pads": _ints(*pads), "value": np.array(-3.5, np.float32)}
    _check(cache_dir, op, {"x": _items(3, 5, 7)}, known)


@needs_compiler
def test_pad_that_cuts(cache_dir: Path) -> None:
    x, pads = _items(3, 5), _ints(0, -2, 1, 3)
    want = np.pad(x[:, 2:], ((0, 1), (0, 3)))  # the onnx reference takes no negative padding
    specs = {"x": TensorSpec("float32", x.shape), "pads": TensorSpec("int64", (4,))}
    specs["y"] = TensorSpec("float32", want.shape)
    body = Body(("x", "pads"), ("y",), (Op("Pad", ("x", "pads"), ("y",)),))
    site = Site(body, specs, frozenset(), {"pads": pads}, Target())
    got = torch.full(want.shape, float("nan"))
    launch = offered(CppMoves(cache_dir=cache_dir), site).bind({"threads": 1}, {})
    launch.frozen([torch.from_numpy(x), torch.from_numpy(pads)], [got])()
    np.testing.assert_array_equal(got.numpy(), want)


@needs_compiler
@pytest.mark.parametrize("places", [np.array(1), np.array(-1), _ints(2, 1, 0, 0), _ints(0, 2)])
def test_gather(cache_dir: Path, places: np.ndarray) -> None:
    op = Op("Gather", ("x", "places"), ("y",), {"axis": 1})
    _check(cache_dir, op, {"x": _items(4, 3, 5)}, {"places": places.astype(np.int64)})


@needs_compiler
def test_images_lie_channels_last(cache_dir: Path) -> None:
    parts = {"a": _items(2, 3, 5, 4), "b": _items(2, 6, 5, 4, seed=1)}
    _check(cache_dir, Op("Concat", ("a", "b"), ("y",), {"axis": 1}), parts, layout="channels_last")


@needs_compiler
def test_large_copies_are_shared_by_threads(cache_dir: Path) -> None:
    op = Op("Concat", ("a", "b"), ("y",), {"axis": 1})
    _check(cache_dir, op, {"a": _items(300, 130), "b": _items(300, 257, seed=1)})


def test_what_only_the_run_knows_is_refused() -> None:
    op = Op("Slice", ("x", "starts", "ends"), ("y",))
    site, _ = _site(op, {"x": _items(5)}, {"starts": _ints(1), "ends": _ints(3)})
    unknown = Site(site.body, site.specs, site.weights, {}, site.target)
    with pytest.raises(RefusedError, match="known only when the region runs"):
        find_moves(unknown)


def test_a_place_outside_is_refused() -> None:
    op = Op("Gather", ("x", "places"), ("y",))
    site, _ = _site(op, {"x": _items(5)}, {"places": _ints(4)})
    outside = Site(site.body, site.specs, site.weights, {"places": _ints(5)}, site.target)
    with pytest.raises(RefusedError, match="outside its axis"):
        find_moves(outside)


def test_runs_cover_every_place_once() -> None:
    read = np.array([3, 2, 1, 0, 1, 2, -1, -1, 2, 2, 5])
    made = np.full(len(read), -1)
    for run in runs_of(read):
        made[run.to : run.to + run.count] = run.start + run.step * np.arange(run.count)
    np.testing.assert_array_equal(made, read)
