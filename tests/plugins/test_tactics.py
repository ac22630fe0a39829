"""Tactics of plugins: offered, configured, timed beside ours, with a workspace and a state of their own."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from plugin_models import ACME, haar, register_haar, wavelet
from torch import Tensor

import ridgeline
from ridgeline.errors import BuildError, OptionError, PluginError
from ridgeline.kernels.cpp.compiler import find_compiler
from ridgeline.plan.plan import Step
from ridgeline.plugins import (
    CppTactic,
    OpSite,
    Plugin,
    PythonTactic,
    Schema,
    register_op,
    register_tactic,
    unregister,
)
from ridgeline.tactics.base import Launch, Offer, Refused, Tactic

X = np.random.default_rng(0).standard_normal((2, 64), np.float32)
OP = "acme.dsp::Haar"
needs_cpp = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
SOURCE = """
extern "C" void haar(const float* x, float* low, float* high, int64_t pairs, double scale) {
    for (int64_t i = 0; i < pairs; i += STEP)
        for (int64_t j = i; j < i + STEP && j < pairs; ++j) {
            low[j] = (x[2 * j] + x[2 * j + 1]) * (float)scale;
            high[j] = (x[2 * j] - x[2 * j + 1]) * (float)scale;
        }
}
"""


def fill(x: Tensor, *, out: list[Tensor], scale: float, **more: Any) -> None:
    for place, made in zip(out, haar(x, scale=scale), strict=True):
        place.copy_(made)


def build(**options: Any) -> ridgeline.Engine:
    given = {"level": 0, "threads": 1, "profiles": {"x": ((1, 2, 4), 64)}, "without": ["ort"]} | options
    return ridgeline.build(wavelet(), **given)


def expected(x: np.ndarray = X) -> np.ndarray:
    low, high = haar(torch.from_numpy(x), scale=0.25)
    return (low * high).numpy()


def step_of(engine: ridgeline.Engine) -> Step:
    return next(step for step in engine.plan.steps if "Haar" in step.op_types)


def refusal(engine: ridgeline.Engine, tactic: str) -> str:
    return next(c.refused or "" for c in step_of(engine).losers if c.tactic == tactic)


def python(name: str = "acme.haar.python", **fields: Any) -> PythonTactic:
    return PythonTactic(name, op=OP, **{"run": fill} | fields)


def cpp(source: str = SOURCE, **fields: Any) -> CppTactic:
    more = {
        "scalars": lambda at: (at.outputs[0].numel, at.attrs["scale"]),
        "configs": lambda at: [{"STEP": 8}],
    }
    return CppTactic("acme.haar.cpp", op=OP, source=source, function="haar", **more | fields)


def test_a_python_tactic_writes_into_planned_memory() -> None:
    register_haar(tactics=[python()])
    engine = build()
    assert step_of(engine).tactic == "acme.haar.python"
    np.testing.assert_allclose(engine.run({"x": X})["y"], expected(), rtol=1e-6)
    np.testing.assert_allclose(engine.run({"x": X[:1]})["y"], expected(X[:1]), rtol=1e-6)


@needs_cpp
def test_configs_of_a_c_plus_plus_tactic_take_part_in_selection() -> None:
    register_haar(tactics=[cpp(configs=lambda at: [{"STEP": 1}, {"STEP": 16}])])
    engine = build(level=3)
    step = step_of(engine)
    rows = [(c.tactic, c.config) for c in (step, *step.losers) if c.tactic == "acme.haar.cpp"]
    assert sorted(config["STEP"] for _, config in rows) == [1, 16]
    assert all(c.median_us for c in step.losers if c.refused is None)
    np.testing.assert_allclose(engine.run({"x": X})["y"], expected(), rtol=1e-6)


def test_a_reason_not_to_run_is_kept() -> None:
    register_haar(tactics=[python(when=lambda at: f"length {at.inputs[0].shape[-1]}, want 128")])
    assert refusal(build(), "acme.haar.python") == "length 64, want 128"


def test_a_tactic_may_read_the_site_itself() -> None:
    class Own(Tactic):
        name = "acme.own"

        def offer(self, site: Any) -> Offer | Refused:
            if [op.key for op in site.body.ops] != [OP]:
                return Refused("not a Haar")
            return Offer([{}], lambda config, weights: Launch(lambda inputs, _: haar(inputs[0], scale=0.25)))

    register_haar(tactics=[Own()])
    engine = build()
    assert step_of(engine).tactic == "acme.own"
    np.testing.assert_allclose(engine.run({"x": X})["y"], expected(), rtol=1e-6)


def test_a_tactic_can_be_left_out_by_name_and_family() -> None:
    register_haar(tactics=[python()])
    assert step_of(build(without=["acme", "ort"])).tactic == "aten"
    unregister(ACME.name)
    register_haar()
    with pytest.raises(OptionError, match="acme"):
        build(without=["acme"])


def test_two_tactics_of_one_name_are_refused() -> None:
    register_haar(tactics=[python()])
    with pytest.raises(PluginError, match="registered twice"):
        register_tactic(python(), plugin=Plugin("other", "1"))


@pytest.mark.parametrize("name", ["aten", "cpp.haar", "triton.haar"])
def test_names_of_our_own_tactics_are_taken(name: str) -> None:
    with pytest.raises(PluginError, match="named like our own"):
        register_tactic(python(name), plugin=ACME)


def test_an_engine_needs_the_plugin_of_a_tactic_for_a_plain_op(tmp_path: Any) -> None:
    def relu(x: Tensor, *, out: list[Tensor]) -> None:
        torch.clamp(x, min=0, out=out[0])

    register_tactic(PythonTactic("acme.relu", op="Relu", run=relu), plugin=ACME)
    model = ridgeline.build(_relu_model(), level=0, threads=1, without="ort")
    assert model.plan.steps[0].tactic == "acme.relu"
    path = model.save(tmp_path / "relu.ridge")
    unregister(ACME.name)
    with pytest.raises(PluginError, match=r"acme-dsp 1\.0, for acme\.relu"):
        ridgeline.load(path)


def test_attributes_of_plain_ops_have_their_defaults() -> None:
    seen: list[Any] = []

    def look(at: OpSite) -> str:
        seen.append(dict(at.attrs))
        return "only looked"

    register_tactic(PythonTactic("acme.leaky", op="LeakyRelu", run=fill, when=look), plugin=ACME)
    ridgeline.build(_relu_model("LeakyRelu"), level=0, threads=1)
    assert seen[0]["alpha"] == pytest.approx(0.01)


def test_every_context_has_a_state_of_its_own_and_a_fork_too() -> None:
    states: list[list[int]] = []

    def make(at: OpSite) -> list[int]:
        states.append([0])
        return states[-1]

    def run(x: Tensor, *, out: list[Tensor], scale: float, state: list[int]) -> None:
        assert isinstance(state, list), "a call without a state"
        state[0] += 1
        fill(x, out=out, scale=scale)

    register_haar(tactics=[python(run=run, state=make)])
    engine = build()
    first, second = engine.context(), engine.context()
    before = len(states)
    for context in (first, second, first):
        np.testing.assert_allclose(context.run({"x": X})["y"], expected(), rtol=1e-6)
    assert [state[0] for state in states[before:]] == [2, 1]
    child = os.fork()
    if child == 0:
        try:
            made = len(states)
            right = np.allclose(engine.run({"x": X})["y"], expected())
            os._exit(0 if right and len(states) == made + 1 and states[-1] == [1] else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_allclose(engine.run({"x": X})["y"], expected(), rtol=1e-6)


@needs_cpp
def test_a_workspace_and_a_state_reach_compiled_code() -> None:
    source = """
extern "C" void haar(const float* x, float* low, float* high, float* work, const float* scale, int64_t n) {
    memcpy(work, x, 2 * n * sizeof(float));
    for (int64_t i = 0; i < n; ++i) {
        low[i] = (work[2 * i] + work[2 * i + 1]) * scale[0];
        high[i] = (work[2 * i] - work[2 * i + 1]) * scale[0];
    }
}
"""
    register_haar(tactics=[cpp(
        source, scalars=lambda at: (at.outputs[0].numel,),
        workspace_bytes=lambda at, config: at.inputs[0].nbytes,
        state=lambda at: torch.tensor([at.attrs["scale"]], dtype=torch.float32), configs=lambda at: [{}],
    )])  # fmt: skip
    engine = build()
    assert step_of(engine).tactic == "acme.haar.cpp"
    np.testing.assert_allclose(engine.run({"x": X})["y"], expected(), rtol=1e-6)


def test_tensors_that_begin_at_an_odd_place_are_copied_first() -> None:
    starts: list[int] = []

    def run(x: Tensor, *, out: list[Tensor], scale: float) -> None:
        starts.append(x.data_ptr() % 4096)
        fill(x, out=out, scale=scale)

    register_haar(tactics=[python(run=run, alignment=4096)])
    np.testing.assert_allclose(build().run({"x": X})["y"], expected(), rtol=1e-6)
    assert not any(starts)


@pytest.mark.parametrize("layouts", [("contiguous",), ("contiguous", "channels_last")])
def test_images_arrive_in_a_layout_that_the_tactic_takes(layouts: Any) -> None:
    seen: list[Any] = []

    def shrink(x: Tensor, *, out: list[Tensor]) -> None:
        seen.append((x.is_contiguous(), x.is_contiguous(memory_format=torch.channels_last)))
        out[0].copy_(x.tanh())

    tactic = PythonTactic("acme.shrink", op="acme::Shrunk", run=shrink, layouts=layouts)
    schema = Schema("acme::Shrunk", {"x": "float32"}, {"y": "float32"})
    register_op(schema, shapes=lambda x: x, reference=torch.tanh, tactics=[tactic], plugin=ACME)
    model = wavelet("""
<ir_version: 10, opset_import: ["": 18, "acme": 1]>
images (float[1, 3, 8, 8] x, float[32, 3, 3, 3] w) => (float[1, 32, 6, 6] y) {
    c = Conv (x, w)
    y = acme.Shrunk (c)
}
""")
    engine = ridgeline.build(model, level=0, threads=1, without="ort")
    step = next(step for step in engine.plan.steps if "Shrunk" in step.op_types)
    assert step.tactic == "acme.shrink"
    assert all(is_last if len(layouts) > 1 else is_plain for is_plain, is_last in seen)


def _relu_model(op: str = "Relu") -> Any:
    return wavelet(
        f'<ir_version: 10, opset_import: ["": 18]> g (float[8, 8] x) => (float[8, 8] y) {{ y = {op}(x) }}'
    )


# bad plugins


def off_by_one(x: Tensor, *, out: list[Tensor], scale: float) -> None:
    fill(x, out=out, scale=scale)
    out[0].as_strided((1,), (1,), out[0].storage_offset() + out[0].numel()).fill_(7.0)


def below(x: Tensor, *, out: list[Tensor], scale: float) -> None:
    fill(x, out=out, scale=scale)
    out[1].as_strided((4,), (1,), out[1].storage_offset() - 1024).fill_(7.0)


def with_nan(x: Tensor, *, out: list[Tensor], scale: float) -> None:
    fill(x, out=out, scale=scale)
    out[0][0, 3] = float("nan")


def lazy(x: Tensor, *, out: list[Tensor], scale: float) -> None:
    fill(x, out=out, scale=scale)
    out[1][0, 0] += 0.5


def spoils_input(x: Tensor, *, out: list[Tensor], scale: float) -> None:
    fill(x, out=out, scale=scale)
    x[0, 0] = 1.0


def leaves_out(x: Tensor, *, out: list[Tensor], scale: float) -> None:
    out[0].copy_(haar(x, scale=scale)[0])


def raises(x: Tensor, *, out: list[Tensor], scale: float) -> None:
    raise ValueError("no idea")


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (off_by_one, "writes outside output 0: 4 bytes after its end"),
        (below, "writes outside output 1: 16 bytes before its start"),
        (with_nan, "output 0 has 1 NaN, the reference has none there"),
        (lazy, "output 1 is off by 0.5 at (0, 0), rounding explains"),
        (spoils_input, "changes input 0"),
        (leaves_out, "output 1 is NaN everywhere"),
        (raises, "acme.haar.python failed: ValueError: no idea"),
    ],
)
@pytest.mark.parametrize("level", [0, 1])
def test_a_bad_tactic_is_out_of_the_race_and_named(run: Any, said: str, level: int) -> None:
    register_haar(tactics=[python(run=run)])
    engine = build(level=level)
    assert step_of(engine).tactic == "aten"
    assert said in refusal(engine, "acme.haar.python")
    if run is not raises:
        assert "plugin acme-dsp 1.0" in refusal(engine, "acme.haar.python")
    np.testing.assert_allclose(engine.run({"x": X})["y"], expected(), rtol=1e-6)


def test_a_tactic_that_a_lock_pins_is_examined_too(tmp_path: Any) -> None:
    lock = tmp_path / "choices.lock"
    register_haar(tactics=[python()])
    for _ in range(2):  # the first build writes the lock, the second follows it
        assert step_of(build(lock=lock)).tactic == "acme.haar.python"
    unregister(ACME.name)
    register_haar(tactics=[python(run=off_by_one)])
    with pytest.raises(PluginError, match=r"acme-dsp 1\.0: writes outside output 0"):
        build(lock=lock)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda x: [t.double() for t in haar(x, scale=0.25)], "output 0 is float64[2,32], want float32"),
        (lambda x: [t.T for t in haar(x, scale=0.25)], "output 0 is float32[32,2], want float32[2,32]"),
        (lambda x: haar(x, scale=0.25)[:1], "makes 1 outputs, want 2"),
        (lambda x: [1.0, 2.0], "output 0 is float, want a tensor"),
    ],
)  # fmt: skip
def test_results_of_another_shape_or_type_are_named(made: Any, said: str) -> None:
    class Own(Tactic):
        name = "acme.own"

        def offer(self, site: Any) -> Offer | Refused:
            is_haar = [op.key for op in site.body.ops] == [OP]
            launch = Launch(lambda inputs, _: made(inputs[0]))
            return Offer([{}], lambda config, weights: launch) if is_haar else Refused("not a Haar")

    register_haar(tactics=[Own()])
    assert said in refusal(build(), "acme.own")


@needs_cpp
@pytest.mark.parametrize("at", [-512, -1, 256, 1279])
def test_a_write_outside_a_workspace_is_found(at: int) -> None:
    source = SOURCE.replace("high, int64_t", "high, float* work, int64_t").replace(
        "{\n    for", f"{{\n    work[{at}] = 1;\n    for", 1
    )
    register_haar(tactics=[cpp(source, workspace_bytes=lambda at, config: 1024)])
    where = "before its start" if at < 0 else "after its end"
    assert f"writes outside its workspace: 4 bytes {where}" in refusal(build(), "acme.haar.cpp")


def test_a_tactic_that_says_in_place_must_be() -> None:
    def starts_at_zero(x: Tensor, *, out: list[Tensor]) -> None:
        out[0].zero_().add_(x.relu())

    register_tactic(PythonTactic("acme.relu", op="Relu", run=starts_at_zero, in_place=True), plugin=ACME)
    engine = ridgeline.build(_relu_model(), level=0, threads=1, without="ort")
    refused = next(c.refused for c in engine.plan.steps[0].losers if c.tactic == "acme.relu")
    assert refused is not None
    assert "written over input 0" in refused


def test_a_tactic_that_raises_while_it_is_asked_is_refused() -> None:
    register_haar(tactics=[python(when=lambda at: 1 // 0)])
    assert "ZeroDivisionError" in refusal(build(), "acme.haar.python")


@needs_cpp
def test_source_that_does_not_compile_is_refused() -> None:
    register_haar(tactics=[cpp("nonsense")])
    assert "refused a kernel: <stdin>:" in refusal(build(), "acme.haar.cpp")


def test_an_op_that_only_bad_tactics_and_no_reference_run_is_a_build_error() -> None:
    calls: list[int] = []

    def once(x: Tensor, *, scale: float) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("worn out")
        return haar(x, scale=scale)

    register_haar(reference=once)
    with pytest.raises((PluginError, BuildError), match="worn out"):
        build(verify="fast")
