"""What an export assumed about sizes is kept: another engine, or an error that names the size."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from guards_walk import leaves, walk
from size_modules import CASES, EXAMPLE, Case, made
from torch import Tensor, nn
from torch.export import Dim
from torch_modules import QUICK, seeded

import ridgeline
from ridgeline.base.guards import broken
from ridgeline.errors import InputError, UnsupportedError, VerifyError
from ridgeline.frontend.from_torch import Flat
from ridgeline.frontend.torch_export import quiet, trace
from ridgeline.frontend.torch_guards import read_assumed
from ridgeline.torch_in import module as compiled_module

BY_NAME = {case.name: case for case in CASES}


class Parity(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] % 2 == 0 else x + 100


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def engine() -> ridgeline.Engine:
    with torch.no_grad():
        return ridgeline.build(Parity().eval(), torch.ones(4, 3), dynamic_shapes=({0: "rows"},), **QUICK)


def test_each_branch_has_its_engine() -> None:
    compiled = ridgeline.compile(Parity().eval(), **QUICK)
    assert [compiled(torch.ones(rows, 3))[0, 0].item() for rows in (4, 3, 6, 1, 8)] == [2, 101, 2, 101, 2]
    assert len(compiled.engines) == 3, "the first has fixed sizes"
    compiled = ridgeline.compile(Parity().eval(), dynamic_shapes=({0: "rows"},), **QUICK)
    assert [compiled(torch.ones(rows, 3))[0, 0].item() for rows in (4, 3, 6, 1, 8)] == [2, 101, 2, 101, 2]
    assert len(compiled.engines) == 2


def test_pieces_of_torch_compile_keep_guards() -> None:
    torch._dynamo.reset()
    run = torch.compile(Parity().eval(), backend="ridgeline", dynamic=True, options=QUICK)
    assert [run(torch.ones(rows, 3))[0, 0].item() for rows in (4, 3, 6, 5)] == [2, 101, 2, 101]


def test_an_engine_names_the_size_its_module_branches_on(engine: ridgeline.Engine) -> None:
    (name,) = (port.name for port in engine.inputs)
    assert torch.equal(engine.run({name: torch.ones(6, 3)})["output"], torch.full((6, 3), 2.0))
    with pytest.raises(InputError, match=r"(?s)\(x\.shape\[0\] % 2\) == 0: x\.shape\[0\] is 3.*compile"):
        engine.run({name: torch.ones(3, 3)})


def test_guards_are_in_the_file(engine: ridgeline.Engine, tmp_path: Path) -> None:
    loaded = ridgeline.load(engine.save(tmp_path / "parity.ridge"))
    assert loaded.plan.guards == engine.plan.guards
    with pytest.raises(InputError, match=r"x\.shape\[0\] is 5"):
        loaded.run({"x": torch.ones(5, 3)})
    plan = json.loads(engine.plan.to_json())
    plan["guards"] = [["eval", "1"]]
    with pytest.raises(ValueError, match="no operator 'eval'"):
        type(engine.plan).from_json(json.dumps(plan))


def test_engines_are_saved_not_copied(engine: ridgeline.Engine) -> None:
    for copied in (copy.copy, copy.deepcopy):
        with pytest.raises(UnsupportedError, match=r"(?s)neither copied nor pickled.*engine\.save\(path\)"):
            copied(engine)


def test_a_dim_that_the_export_fixes_is_fixed() -> None:
    case = BY_NAME["x * float(n)"]
    program = torch.export.export(made(case), case.call(EXAMPLE), dynamic_shapes={"x": {0: Dim.AUTO}})
    engine = ridgeline.build(program, **QUICK)
    assert engine.inputs[0].dims == (4, 3)
    with pytest.raises(UnsupportedError, match=r"(?s)specialized it to be a constant \(4\).*Dim\.AUTO"):
        ridgeline.build(made(case), case.call(EXAMPLE), dynamic_shapes=case.axes, **QUICK)


def test_an_export_that_is_wrong_at_other_sizes_is_refused() -> None:
    """str of a size that is traced is the symbol's name, three letters long: no guard is recorded."""

    class Spells(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * len(str(x.shape[0]))

    x = torch.randn(100, 2)
    with pytest.raises(VerifyError, match=r"(?s)exported graph does not compute.*fixed dims"):
        ridgeline.build(Spells().eval(), x, dynamic_shapes=({0: "rows"},), **QUICK)
    compiled = ridgeline.compile(Spells().eval(), x, **QUICK)
    assert torch.equal(compiled(x[:20]), x[:20] * 2)


def test_many_engines_are_worth_a_warning_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_module, "MANY_ENGINES", 2)
    monkeypatch.setattr(compiled_module, "MAX_ENGINES", 3)
    compiled = ridgeline.compile(made(BY_NAME["loop over n"]), level=0, verify="off")
    for rows in (2, 3):
        compiled(torch.ones(rows, 3))
    with pytest.warns(RuntimeWarning, match="3 engines for one kind of call so far"):
        compiled(torch.ones(4, 3))
    compiled(torch.ones(5, 3))
    assert [port.dims for engine in compiled.engines for port in engine.inputs] == [(n, 3) for n in (3, 4, 5)]


def test_a_sequence_tagger_at_other_lengths() -> None:
    module = made(BY_NAME["tagger"])
    compiled = ridgeline.compile(module, level=0, verify="off")
    for shape in ((2, 3), (5, 6), (2, 6)):
        words = torch.randint(0, 20, shape)
        torch.testing.assert_close(compiled(words), module(words))
    assert [port.dims[1] for engine in compiled.engines for port in engine.inputs] == [3, 6]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_where_guards_are_kept_the_graph_is_the_module_s(case: Case) -> None:
    """Torch's own graph at every size that the guards take: all of these take no longer than a few builds."""
    module, example = made(case), case.call(case.example)
    flat = Flat(module, lambda tensors: module(*tensors))
    names = ["x", "y"][: len(example)]
    with quiet():
        try:
            program, is_oblivious = trace(flat, example, [dict.fromkeys(a, Dim.AUTO) for a in case.axes])
        except UnsupportedError:
            return  # no engine then has open dims
        assumed = read_assumed(program, names, example, is_oblivious=is_oblivious)
    fixed = {name: t.shape for name, t in zip(names, example, strict=True)} if not assumed.dims else {}
    guards = assumed.all_guards({name: tuple(t.shape) for name, t in zip(names, example, strict=True)})
    run = program.module()
    assert not broken(guards, {name: tuple(t.shape) for name, t in zip(names, example, strict=True)})
    for size in case.sizes:
        tensors = case.call(size)
        shapes = {name: tuple(t.shape) for name, t in zip(names, tensors, strict=True)}
        if broken(guards, shapes) or (fixed and shapes != fixed) or case.name == "x * len(str(n))":
            continue  # the graph of that one is wrong at all sizes
        got, want = run(*tensors), leaves(module(*tensors))
        assert [t.shape for t in got] == [t.shape for t in want], f"{shapes} keep {guards}"
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, check_dtype=False, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "door"),
    [
        ("nested branches", "compile"),
        ("squeeze", "compile"),
        ("n == m", "build"),
        ("x / n", "build"),
        ("x[1:3]", "build"),
        ("view(-1, 2, 3)", "build"),
        ("x + y", "build"),
        ("convolution of 3", "build"),
        ("n > 1", "program"),
        ("x[: min(n, m)]", "program"),
    ],
)
def test_right_or_refused(name: str, door: str) -> None:
    """A part of `guards_walk.py`, which walks them all."""
    found = dict(walk(BY_NAME[name], door))
    assert set(found.values()) <= {"right", "refused"}, found
    assert found[BY_NAME[name].example] == "right"


def test_one_row_and_none_are_let_through_where_the_module_agrees() -> None:
    module = seeded(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))
    engine = ridgeline.build(module, torch.randn(4, 3), dynamic_shapes=({0: "rows"},), **QUICK)
    for rows in (1, 0, 9):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(engine.run({engine.inputs[0].name: x})["output"], module(x))
