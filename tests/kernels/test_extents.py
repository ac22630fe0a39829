"""A launch states how far it reaches into its arguments, and never runs over tensors that end before that."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper, parser

from offers import offered, why_not
from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Site, Target, TensorSpec
from ridgeline.errors import PlanError
from ridgeline.frontend.from_onnx import load
from ridgeline.ir.sites import make_site
from ridgeline.kernels.scalar.extents import by_argument, extents_of
from ridgeline.kernels.scalar.program import Guard, Memory, Number, Program, Step
from ridgeline.options import DEFAULT_LIMITS
from ridgeline.runtime.inference import Inference
from ridgeline.tactics.base import Launch, Tactic
from ridgeline.tactics.registry import TacticOptions, cpu_tactics

HEAD = '<ir_version: 10, opset_import: ["" : 23]>\n'
FAMILIES = {
    "cpp.pointwise": ("m (float[3, 8] x) => (float[3, 8] y) { y = Tanh (x) }", {}),
    "cpp.reduce": ("m (float[3, 8] x) => (float[3, 8] y) { y = Softmax (x) }", {}),
    "cpp.gemv": ("m (float[2, 8] x) => (float[2, 5] y) { y = MatMul (x, w) }", {"w": (8, 5)}),
    "cpp.gemm": ("m (float[20, 8] x) => (float[20, 5] y) { y = MatMul (x, w) }", {"w": (8, 5)}),
    "cpp.conv1x1": (
        "m (float[1, 8, 1, 1] x) => (float[1, 4, 1, 1] y) { y = Conv (x, w) }",
        {"w": (4, 8, 1, 1)},
    ),
    "cpp.conv_small": (
        "m (float[1, 3, 3, 3] x) => (float[1, 8, 1, 1] y) { y = Conv (x, w) }",
        {"w": (8, 3, 3, 3)},
    ),
    "cpp.conv_rows": ("m (float[1, 3, 9] x) => (float[1, 4, 7] y) { y = Conv (x, w) }", {"w": (4, 3, 3)}),
    "cpp.depthwise": (
        "m (float[1, 1, 6, 6] x) => (float[1, 1, 4, 4] y) { y = Conv <group = 1> (x, w) }",
        {"w": (1, 1, 3, 3)},
    ),
    "cpp.recurrent": (
        "m (float[5, 2, 6] x) => (float[5, 1, 2, 8] y) { y, h = RNN <hidden_size = 8> (x, w, r) }",
        {"w": (1, 8, 6), "r": (1, 8, 8)},
    ),
    "cpp.moves": ("m (float[3, 8] x, float[2, 8] z) => (float[5, 8] y) { y = Concat <axis = 0> (x, z) }", {}),
    "cpp.resize": (
        """m (float[1, 2, 3, 4] x) => (float[1, 2, 6, 8] y) <float[4] s = {1.0, 1.0, 2.0, 2.0}> {
            y = Resize <mode = "linear"> (x, , s) }""",
        {},
    ),
}


def bound(name: str) -> tuple[Launch, Site, list[torch.Tensor]]:
    text, weights = FAMILIES[name]
    made = parser.parse_model(HEAD + text)
    for key, shape in weights.items():
        made.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), key))
    onnx.checker.check_model(made)
    found = load(made.SerializeToString()).model
    inference = Inference.of(found, DEFAULT_LIMITS)
    program, held = inference.program, inference.weights
    ports = {p.name: tuple(d.dim_value for d in p.type.tensor_type.shape.dim) for p in made.graph.input}
    specs = {key: TensorSpec("float32", shape) for key, shape in ports.items()}
    inferred = inference.at(specs)
    site = make_site(program, program.regions[-1], inferred, Target("cpu", "x86_64", 1))
    tactic: Tactic = next(t for t in cpu_tactics(TacticOptions(program.opset_imports)) if t.name == name)
    assert why_not(tactic, site) is None
    site_weights = {key: held[key] for key in site.weights}
    launch = offered(tactic, site).bind(offered(tactic, site).configs[0], site_weights)
    inputs = [held[n] if n in held else torch.zeros(site.specs[n].shape) for n in site.body.inputs]
    return launch, site, inputs


@pytest.mark.parametrize("name", FAMILIES)
def test_memory_that_ends_too_early_is_refused(name: str) -> None:
    launch, site, inputs = bound(name)
    outputs = [torch.zeros(spec.shape) for spec in site.outputs]
    launch.run(inputs, outputs)
    assert launch.extents, "a kernel of ours says what it touches"
    arguments = [*inputs, *outputs]
    count = len(inputs)
    assert {count + i for i in range(len(outputs))} <= launch.extents.keys()
    for place, touched in launch.extents.items():
        assert touched == arguments[place].nbytes, "these kernels touch all of their arguments"
        short = list(arguments)
        short[place] = torch.zeros(arguments[place].numel() - 1)
        for attempt in (launch.run, launch.frozen):
            with pytest.raises(PlanError, match="past its"):
                attempt(short[:count], short[count:])


def program(memory: Memory, *, sizes: dict[int, int], steps: tuple[Step, ...] = ()) -> Program:
    return Program(sizes, (memory,), steps, (), (0,), (), ())


def test_extents_follow_loops_guards_and_gathers() -> None:
    plain = Memory("v0", "p0", "float32", {0: 8, 1: 1})
    assert extents_of(program(plain, sizes={0: 3, 1: 8})) == {"p0": 4 * 24}
    assert extents_of(program(plain, sizes={0: 3, 1: 0})) == {"p0": 0}
    # a part of a Concat: read from place 5 on, where the guard lets it
    part = Memory("v0", "p0", "int8", {0: 1}, -5, (Guard(((0, 1),), 5, 9),))
    assert extents_of(program(part, sizes={0: 20})) == {"p0": 4}
    with pytest.raises(RefusedError, match="before its tensor"):
        extents_of(program(Memory("v0", "p0", "int8", {0: 1}, -5), sizes={0: 20}))
    place = Step("s0", "int64", "rl_place({0}, {1})", ("v1", Number(11, "int64")))
    gather = Memory("v0", "p0", "float16", {0: 1}, gathers=(("s0", 7),))
    assert extents_of(program(gather, sizes={0: 7}, steps=(place,))) == {"p0": 2 * 77}
    with pytest.raises(RefusedError, match="not kept inside"):
        extents_of(program(gather, sizes={0: 7}))


def test_constants_of_a_program_are_checked() -> None:
    extra = Program(
        {0: 9}, (Memory("v0", "x0", "float32", {0: 1}),), (), (), (), (), (np.zeros(8, np.float32),)
    )
    with pytest.raises(RefusedError, match="36 bytes of a constant are read, it has 32"):
        extents_of(extra)


def test_extents_by_argument() -> None:
    assert by_argument({"p1": 8, "q0": 4, "x0": 3, "w0": 9}, (2, 0), 3) == {0: 8, 3: 4}


def test_extents_of_parts_that_are_read_backwards_or_in_steps() -> None:
    # places 6, 5, ... of a join whose second part begins at 3
    back = Memory("v0", "p0", "int8", {0: -1}, 3, (Guard(((0, -1),), -3, 1),))
    assert extents_of(program(back, sizes={0: 7})) == {"p0": 4}
    every_second = Memory("v0", "p0", "int8", {0: 2}, -3, (Guard(((0, 2),), 3, 7),))
    assert extents_of(program(every_second, sizes={0: 4})) == {"p0": 4}
