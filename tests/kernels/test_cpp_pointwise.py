"""Generated pointwise kernels: every op, broadcasting, layouts, types, odd sizes, NaN and inf."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cpp_cases import check, empty, make_site, needs_compiler, random

from offers import offered, why_not
from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.kernels.cpp.compiler import CompileError, compile_cpp, compile_many
from ridgeline.kernels.floor import call_floor
from ridgeline.tactics.cpu import cpp
from ridgeline.tactics.cpu.cpp import CppPointwise
from ridgeline.tactics.offer import precompile

UNARY = [
    "Sqrt", "Reciprocal", "Neg", "Abs", "Exp", "Log", "Erf", "Tanh", "Sigmoid", "Relu", "LeakyRelu", "Sin",
    "Cos", "HardSigmoid", "HardSwish", "Gelu", "Swish", "Softplus", "Elu", "Selu", "Celu", "Mish", "Floor",
    "Ceil", "Round", "Sign", "Identity",
]  # fmt: skip
BINARY = ["Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Sum", "Mean", "PRelu"]
COMPARE = ["Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"]


@pytest.fixture
def tactic(cpp_cache: Path) -> CppPointwise:
    return CppPointwise(cache_dir=cpp_cache)


@pytest.fixture(scope="session")
def cpp_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("cpp"))


def chain(names: list[str], start: str = "x") -> list[Op]:
    return [Op(name, (start,), (f"o_{name}",)) for name in names]


@needs_compiler
@pytest.mark.parametrize("positive", [True, False])
def test_unary_ops(tactic: CppPointwise, positive: bool) -> None:
    """All of them in one kernel, one output each: compiling thirty would take most of the time."""
    x = random(1023) * 3
    names = UNARY if positive else [n for n in UNARY if n not in ("Sqrt", "Log")]
    inputs = {"x": x.abs() + 0.01 if positive else x}
    check(tactic, make_site(chain(names), inputs, [f"o_{n}" for n in names]), inputs)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_floats(tactic: CppPointwise, dtype: torch.dtype) -> None:
    names = ["Exp", "Tanh", "Gelu", "Relu", "Softplus", "Erf"]
    inputs = {"x": random(17, 3, dtype=dtype)}
    check(tactic, make_site(chain(names), inputs, [f"o_{n}" for n in names]), inputs)


@needs_compiler
def test_binary_ops(tactic: CppPointwise) -> None:
    inputs = {"x": random(7, 17).abs() + 0.1, "y": random(17, seed=1)}
    ops = [Op(n, ("x", "y"), (f"o_{n}",)) for n in BINARY + COMPARE]
    check(tactic, make_site(ops, inputs, [op.outputs[0] for op in ops]), inputs)


@needs_compiler
def test_logic_and_choice(tactic: CppPointwise) -> None:
    inputs = {"x": random(3, 17), "y": random(3, 1, seed=1)}
    ops = [
        Op("Greater", ("x", "y"), ("a",)), Op("Not", ("a",), ("b",)), Op("And", ("a", "b"), ("c",)),
        Op("Or", ("a", "c"), ("d",)), Op("Xor", ("b", "d"), ("e",)), Op("Where", ("a", "x", "y"), ("f",)),
        Op("IsNaN", ("x",), ("g",)), Op("Cast", ("x",), ("h",), {"to": 7}),
        Op("Cast", ("a",), ("i",), {"to": 1}),
    ]  # fmt: skip
    check(tactic, make_site(ops, inputs, list("cdefghi")), inputs)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integers(tactic: CppPointwise, dtype: torch.dtype) -> None:
    inputs = {"x": (random(1000) * 100).to(dtype), "y": (random(1000, seed=1).abs() * 9).to(dtype) + 1}
    ops = [Op(n, ("x", "y"), (f"o_{n}",)) for n in ("Add", "Mul", "Div", "Max", "Less")]
    check(tactic, make_site(ops, inputs, [op.outputs[0] for op in ops]), inputs)


@needs_compiler
def test_integer_division_by_zero_does_not_trap(tactic: CppPointwise) -> None:
    inputs = {"x": torch.tensor([5, -(2**63)]), "y": torch.tensor([1, 1])}
    site = make_site([Op("Div", ("x", "y"), ("z",))], inputs, ["z"])
    out = empty(site.outputs[0])
    offered(tactic, site).bind({"threads": 1}, {}).call([inputs["x"], torch.tensor([0, -1])], [out])
    assert out[0] == 0


@needs_compiler
@pytest.mark.parametrize("shapes", [
    ((1,), (1,)), ((3,), ()), ((7, 1), (1, 17)), ((2, 3, 1, 5), (3, 4, 1)), ((1000,), (1,)), ((0, 4), (4,)),
    ((4, 1, 40000), (1, 3, 1)), ((300, 1023), (1023,)),
])  # fmt: skip
def test_broadcasting(tactic: CppPointwise, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    inputs = {"x": random(*shapes[0]), "y": random(*shapes[1], seed=1)}
    ops = [Op("Mul", ("x", "y"), ("a",)), Op("Add", ("a", "x"), ("z",))]
    check(tactic, make_site(ops, inputs, ["z", "a"]), inputs)


@needs_compiler
@pytest.mark.parametrize("mixed", [False, True])
def test_channels_last(tactic: CppPointwise, mixed: bool) -> None:
    last = torch.channels_last
    inputs = {
        "x": random(2, 17, 7, 5).contiguous(memory_format=last), "s": random(1, 17, 1, 1, seed=1),
        "b": random(17, 1, 1, seed=2), "r": random(2, 17, 7, 5, seed=3),
    }  # fmt: skip
    layouts = {"x": "channels_last", "z": "channels_last"}
    if not mixed:
        layouts["r"], inputs["r"] = "channels_last", inputs["r"].contiguous(memory_format=last)
    ops = [
        Op("Mul", ("x", "s"), ("a",)), Op("Add", ("a", "b"), ("c",)), Op("Add", ("c", "r"), ("d",)),
        Op("Relu", ("d",), ("z",)),
    ]  # fmt: skip
    check(tactic, make_site(ops, inputs, ["z"], layouts=layouts), inputs)


@needs_compiler
def test_layout_other_than_promised_is_copied(tactic: CppPointwise) -> None:
    inputs = {"x": random(2, 3, 5, 7)}
    site = make_site([Op("Exp", ("x",), ("z",))], inputs, ["z"])
    launch = offered(tactic, site).bind({"threads": 1}, {})
    strided = inputs["x"].contiguous(memory_format=torch.channels_last)
    for run in (launch.call, lambda i, o: launch.frozen(i, o)()):
        out = torch.full((2, 3, 5, 7), torch.nan).contiguous(memory_format=torch.channels_last)
        run([strided], [out])
        torch.testing.assert_close(out, inputs["x"].exp())


@needs_compiler
def test_batch_norm_and_moves(tactic: CppPointwise) -> None:
    inputs = {"x": random(2, 8, 5, 3), "y": random(2, 5, 3, 8, seed=1)}
    inputs |= {k: random(8, seed=i).abs() + 0.5 for i, k in enumerate("sbmv")}
    ops = [
        Op("BatchNormalization", ("x", "s", "b", "m", "v"), ("n",)),
        Op("Transpose", ("y",), ("t",), {"perm": [0, 3, 1, 2]}), Op("Add", ("n", "t"), ("z",)),
    ]  # fmt: skip
    check(tactic, make_site(ops, inputs, ["z"]), inputs)


@needs_compiler
def test_constants_are_baked(tactic: CppPointwise) -> None:
    constants = {
        "two": np.array(2.0, np.float32), "row": np.linspace(-1, 1, 17, dtype=np.float32),
        "long": np.linspace(-1, 1, 17 * 40, dtype=np.float32).reshape(40, 17),
        "low": np.float32(-0.5).reshape(()),
    }  # fmt: skip
    ops = [
        Op("Pow", ("x", "two"), ("a",)), Op("Add", ("a", "row"), ("b",)), Op("Mul", ("b", "long"), ("c",)),
        Op("Clip", ("c", "low", ""), ("z",)),
    ]  # fmt: skip
    inputs = {"x": random(40, 17)}
    check(tactic, make_site(ops, inputs, ["z"], constants=constants), inputs)


@needs_compiler
def test_host_known_inputs_are_baked(tactic: CppPointwise) -> None:
    inputs = {"x": random(3, 5), "k": torch.tensor(2.5)}
    site = make_site([Op("Mul", ("x", "k"), ("z",))], inputs, ["z"], values={"k": np.array(2.5, np.float32)})
    check(tactic, site, inputs)
    assert tactic.read(site).write({"threads": 1})[0].inputs == (0,)


@needs_compiler
def test_nan_and_inf_stay(tactic: CppPointwise) -> None:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e38, -1e38, 100.0, -110.0, 0.0])
    inputs = {"x": x.repeat(5), "y": torch.zeros(())}
    ops = chain(["Relu", "Exp", "Sigmoid", "Tanh", "Erf", "Softplus", "Gelu", "Abs", "Elu"])
    ops += [Op(n, ("x", "y"), (f"o_{n}",)) for n in ("Max", "Min")]
    ops += [Op("Max", ("y", "x"), ("o_Swapped",)), Op("Clip", ("x",), ("o_Clip",), {"min": -1.0, "max": 6.0})]
    check(tactic, make_site(ops, inputs, [op.outputs[0] for op in ops]), inputs)


@pytest.mark.parametrize(("op", "reason"), [
    (Op("Softmax", ("x",), ("z",)), "op Softmax is not pointwise"),
    (Op("NonZero", ("x",), ("z",)), "op NonZero is neither pointwise nor a reduction known here"),
    (Op("Reshape", ("x", "s"), ("z",)), "a reshape from [4, 6] to [3, 8] items cuts across axes"),
])  # fmt: skip
@needs_compiler
def test_refusals(tactic: CppPointwise, op: Op, reason: str) -> None:
    spec = TensorSpec("float32", (4, 6))
    body = Body(("x", "s"), ("z",), (op,))
    specs = {"x": spec, "s": TensorSpec("int64", (1,)), "z": TensorSpec("float32", (3, 8))}
    assert why_not(tactic, Site(body, specs, frozenset(), {}, Target())) == reason


@needs_compiler
def test_types_and_transposes_are_refused(tactic: CppPointwise) -> None:
    def why(dtype: str, *ops: Op) -> str | None:
        specs: dict[str, Any] = dict.fromkeys("xtz", TensorSpec(dtype, (4, 4)))
        return why_not(tactic, Site(Body(("x",), ("z",), ops), specs, frozenset(), {}, Target()))

    assert why("complex64", Op("Neg", ("x",), ("z",))) == "dtype complex64 has no type in generated kernels"
    assert why("int32", Op("Exp", ("x",), ("z",))) == "Exp on int32, want a float"
    own = Op("Transpose", ("x",), ("t",), {"perm": [1, 0]}), Op("Add", ("x", "t"), ("z",))
    assert why("float32", *own) == "a value meets its own transpose"


@needs_compiler
def test_names_do_not_change_the_source(tactic: CppPointwise) -> None:
    def source(x: str, y: str) -> str:
        inputs = {x: random(4, 4)}
        return tactic.read(make_site([Op("Exp", (x,), (y,))], inputs, [y])).write({"threads": 2})[1]

    assert source("x", "y") == source("layer0/in", "layer0/out")


@needs_compiler
def test_cache_is_filled_ahead_and_reused(tmp_path: Path) -> None:
    tactic = CppPointwise(cache_dir=tmp_path)
    inputs = {"x": random(5)}
    site = make_site([Op("Neg", ("x",), ("z",))], inputs, ["z"])
    assert precompile([(tactic, site, offered(tactic, site), {"threads": 1})] * 2) == []
    (library,) = tmp_path.glob("*.so")
    before = library.stat().st_ino
    offered(tactic, site).bind({"threads": 1}, {})
    assert [f.stat().st_ino for f in tmp_path.iterdir()] == [before]


@needs_compiler
def test_compile_errors_carry_the_first_message(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="error"):
        compile_cpp("int f() { return x; }", cache_dir=tmp_path)
    (failed,) = compile_many(["int f() { return x; }"], cache_dir=tmp_path)
    assert "x" in failed.got


@needs_compiler
def test_an_unwritable_cache_falls_back(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    inputs = {"x": random(5)}
    check(
        CppPointwise(cache_dir=tmp_path / "file" / "cpp"),
        make_site(chain(["Neg"]), inputs, ["o_Neg"]),
        inputs,
    )


def test_without_a_compiler_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp, "find_compiler", lambda: None)
    site = make_site(chain(["Neg"]), {"x": random(5)}, ["o_Neg"])
    assert why_not(CppPointwise(), site) == "no C++ compiler found"


@needs_compiler
def test_a_frozen_call_keeps_its_tensors_alive(tactic: CppPointwise) -> None:
    """Nobody else may hold the tensors behind its pointers; freed memory would be written to."""
    inputs = {"x": random(1024)}
    site = make_site(chain(["Relu"]), inputs, ["o_Relu"])
    launch = offered(tactic, site).bind(offered(tactic, site).configs[0], {})
    output = torch.full((1024,), float("nan"))
    alive = weakref.ref(output)
    call = launch.frozen([inputs["x"]], [output])
    del output
    assert alive() is not None
    call()
    kept = alive()
    assert kept is not None
    torch.testing.assert_close(kept, inputs["x"].relu())


@needs_compiler
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_quantised_numbers(tactic: CppPointwise, dtype: str) -> None:
    """To codes and back, bit for bit as the floor has it: ties, ends of the range, infinities and NaN."""
    x = random(7, 9) * 90
    x.view(-1)[:9] = torch.tensor([0.5, 1.5, -0.5, 127.5, -128.5, 255.5, torch.inf, -torch.inf, torch.nan])
    zeros = torch.arange(9).to(getattr(torch, dtype))
    ops = [
        Op("QuantizeLinear", ("x", "s", "z"), ("q",), {"axis": 1}),
        Op("DequantizeLinear", ("q", "s", "z"), ("y",), {"axis": 1}),
    ]
    inputs = {"x": x, "s": torch.tensor([1.0, 0.5, 0.37] * 3), "z": zeros}
    codes = call_floor(ops[0], list(inputs.values()))[0]
    back = call_floor(ops[1], [codes, inputs["s"], zeros])[0]
    names = {**inputs, "q": codes, "y": back}
    specs = {
        name: TensorSpec(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in names.items()
    }
    site = Site(Body(("x", "s", "z"), ("q", "y"), tuple(ops)), specs, frozenset("sz"), {}, Target(threads=1))
    launch = offered(tactic, site).bind(offered(tactic, site).configs[0], {})
    made = [empty(spec) for spec in site.outputs]
    launch.call(list(inputs.values()), made)
    assert torch.equal(made[0], codes)
    assert torch.equal(made[1], back)
