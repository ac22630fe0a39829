"""Engines for reports, cheap to make: networks of known form with few channels, planned for no machine.

Their plans get times, and a trace, from a rule: a page must draw what an engine that ran would have.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import onnx.parser

import ridgeline
from ridgeline.analyze.report_classes import class_of
from ridgeline.analyze.report_graph import BodyOp, FusedGraph, GraphRegion, RegionBody
from ridgeline.base.ceilings import Ceilings
from ridgeline.plan.plan import Plan, Step, Work
from ridgeline.plan.report import Check, Report
from ridgeline.plan.trace import WALL_CLOCK, HostTime, MemoryUse, OpClass, StepTime, Trace

HEAD = '<ir_version: 10, opset_import: ["": 20]>'
CEILINGS = Ceilings(
    name="made-up", kind="cpu", arch="x86_64", title="a made-up CPU", measured="2026-11-16",
    copy=((1e5, 20e3), (1e8, 9e3)), flops={"float32": 80e3}, launch_us=0.5,
)  # fmt: skip


class Text:
    """ONNX text as it grows: lines, and weights by name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.weights: dict[str, np.ndarray] = {}
        self.rng = np.random.default_rng(0)

    def weight(self, name: str, *shape: int) -> str:
        self.weights[name] = (self.rng.standard_normal(shape) * 0.1).astype(np.float32)
        return name

    def op(self, name: str, text: str) -> str:
        self.lines.append(f"[{name}] {name} = {text}")
        return name

    def model(self, ports: str) -> onnx.ModelProto:
        made = onnx.parser.parse_model(f"{HEAD} {ports} {{ {' '.join(self.lines)} }}")
        made.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in self.weights.items())
        return made


def resnet50(base: int = 4, pixels: int = 64) -> onnx.ModelProto:
    """Fifty layers in sixteen bottlenecks, as in the paper, with few channels."""
    text = Text()

    def conv(
        x: str, name: str, sizes: tuple[int, int], kernel: int, *, stride: int = 1, relu: bool = True
    ) -> str:
        w = text.weight(f"{name}_w", sizes[1], sizes[0], kernel, kernel)
        p = kernel // 2
        form = (
            f"<kernel_shape = [{kernel},{kernel}], pads = [{p},{p},{p},{p}], strides = [{stride},{stride}]>"
        )
        y = text.op(f"{name}_conv", f"Conv {form} ({x}, {w}, {text.weight(f'{name}_b', sizes[1])})")
        return text.op(f"{name}_relu", f"Relu ({y})") if relu else y

    x = conv("image", "stem", (3, base), 7, stride=2)
    x = text.op("pool", f"MaxPool <kernel_shape = [3,3], pads = [1,1,1,1], strides = [2,2]> ({x})")
    c_in = base
    for stage, (depth, stride) in enumerate(((3, 1), (4, 2), (6, 2), (3, 2)), start=1):
        width = base * 2 ** (stage - 1)
        for block in range(depth):
            name, step = f"layer{stage}_{block}", stride if block == 0 else 1
            y = conv(x, f"{name}_a", (c_in, width), 1)
            y = conv(y, f"{name}_b", (width, width), 3, stride=step)
            y = conv(y, f"{name}_c", (width, 4 * width), 1, relu=False)
            skip = conv(x, f"{name}_s", (c_in, 4 * width), 1, stride=step, relu=False) if block == 0 else x
            x = text.op(f"{name}_relu", f"Relu ({text.op(f'{name}_add', f'Add ({y}, {skip})')})")
            c_in = 4 * width
    x = text.op("flat", f"Flatten <axis = 1> ({text.op('mean', f'GlobalAveragePool ({x})')})")
    text.op("logits", f"Gemm <transB = 1> ({x}, {text.weight('fc_w', 10, c_in)}, {text.weight('fc_b', 10)})")
    return text.model(f"resnet50 (float[1,3,{pixels},{pixels}] image) => (float[1,10] logits)")


def bert(layers: int = 12, width: int = 32, tokens: int = 16) -> onnx.ModelProto:
    """Twelve post-norm layers behind a table of tokens, with two heads."""
    text = Text()
    half = width // 2
    for name, value in (("heads", [1, tokens, 2, half]), ("joined", [1, tokens, width])):
        text.weights[name] = np.array(value, np.int64)
    text.weights["scale"] = np.array(half**-0.5, np.float32)

    def linear(x: str, name: str, c_in: int, c_out: int) -> str:
        y = text.op(f"{name}_product", f"MatMul ({x}, {text.weight(f'{name}_w', c_in, c_out)})")
        return text.op(f"{name}_bias", f"Add ({y}, {text.weight(f'{name}_b', c_out)})")

    def norm(x: str, name: str) -> str:
        scale, shift = text.weight(f"{name}_scale", width), text.weight(f"{name}_shift", width)
        return text.op(name, f"LayerNormalization <axis = -1> ({x}, {scale}, {shift})")

    def head(x: str, name: str, perm: str) -> str:
        parted = text.op(f"{name}_h", f"Reshape ({x}, heads)")
        return text.op(f"{name}_t", f"Transpose <perm = [{perm}]> ({parted})")

    table = text.weight("tokens", 100, width)
    x = norm(text.op("embedded", f"Gather <axis = 0> ({table}, ids)"), "embed_norm")
    for layer in range(layers):
        at = f"l{layer}"
        q = head(linear(x, f"{at}_q", width, width), f"{at}_q", "0,2,1,3")
        k = head(linear(x, f"{at}_k", width, width), f"{at}_k", "0,2,3,1")
        v = head(linear(x, f"{at}_v", width, width), f"{at}_v", "0,2,1,3")
        scores = text.op(f"{at}_scaled", f"Mul ({text.op(f'{at}_scores', f'MatMul ({q}, {k})')}, scale)")
        soft = text.op(f"{at}_soft", f"Softmax <axis = -1> ({scores})")
        mixed = text.op(f"{at}_mixed", f"MatMul ({soft}, {v})")
        turned = text.op(f"{at}_turned", f"Transpose <perm = [0,2,1,3]> ({mixed})")
        out = linear(text.op(f"{at}_joined", f"Reshape ({turned}, joined)"), f"{at}_out", width, width)
        x = norm(text.op(f"{at}_sum", f"Add ({out}, {x})"), f"{at}_norm1")
        wide = text.op(f"{at}_gelu", f"Gelu ({linear(x, f'{at}_up', width, 4 * width)})")
        down = linear(wide, f"{at}_down", 4 * width, width)
        x = norm(text.op(f"{at}_sum2", f"Add ({down}, {x})"), f"{at}_norm2")
    text.op("hidden", f"Identity ({x})")
    return text.model(f"bert (int64[1,{tokens}] ids) => (float[1,{tokens},{width}] hidden)")


def engine_file(model: onnx.ModelProto, path: Path) -> Path:
    """Planned for the null target: the same on every machine, in a second."""
    return ridgeline.build(model, target="null", verify="off", progress=False).save(path)


def with_times(plan: Plan) -> Plan:
    """Every step takes longer than its least time, some a little and some twice as long, and 0.4 µs more."""
    timed = (replace(s, median_us=step_us(i, s.work)) for i, s in enumerate(plan.steps, start=1))
    return replace(plan, steps=tuple(timed))


def step_us(index: int, work: Work) -> float:
    slower = 1.05 + 0.1 * (index * 37 % 11)
    return 0.4 + slower * CEILINGS.bound_us(work.bytes, work.flops, "float32")


def checked(report: Report) -> Report:
    checks = (
        Check("planned shapes", "y", "x 1x3", 2e-6, 1e-5, passed=True),
        Check("fused against unfused", "y", "x 1x3", 1e-7, 1e-5, passed=True),
    )
    return replace(report, checks=checks, reference="onnxruntime", build_s=1.5, unverified="")


def trace_of(plan: Plan) -> Trace:
    """A run in which every step took its time, one after the other."""
    steps, at = [], 0.0
    for index, step in enumerate(plan.steps, start=1):
        us = step.median_us or 1.0
        steps.append(
            StepTime(
                index=index, name=step.name, op_types=step.op_types, sources=step.sources, tactic=step.tactic,
                config={}, precision="float32", calls=1,
                op_class=cast("OpClass", class_of(step)), median_us=us, p10_us=0.97 * us, p90_us=1.05 * us,
                start_us=at, bytes=step.work.bytes, flops=step.work.flops, samples_us=(us, us, us),
            )
        )  # fmt: skip
        at += us
    return Trace(
        model=plan.model, target=str(plan.target), device="a made-up CPU", threads=1,
        precision=plan.precision, shapes={}, versions={}, how=WALL_CLOCK, rounds=3, total_us=at,
        total_p10_us=0.99 * at, total_p90_us=1.02 * at, total_samples_us=(at, at, at), steps=tuple(steps),
        memory=MemoryUse((0,) * len(steps), 0, 0, 0, 0, 0), host=HostTime(None, at + 5, 5.0),
    )  # fmt: skip


def chain_plan(plan: Plan, count: int) -> Plan:
    """A plan of so many steps: those of another one over and over, each reading what the last has made."""
    steps: list[Step] = []
    for i in range(count):
        like = plan.steps[i % len(plan.steps)]
        name = f"/block.{i // 10}/{like.name}_{i}"
        reads = (f"v{i - 1}",) if i else ("x",)
        if i % 7 == 5:
            reads += (f"v{i - 4}",)
        sources = tuple(f"{name}/{op}" for op in like.op_types)
        regions = (name, f"{name}/more") if i % 50 == 7 else (name,)  # some steps run two regions
        made = replace(like, name=name, regions=regions, sources=sources, inputs=reads)
        steps.append(replace(made, outputs=(f"v{i}",)))
    return replace(plan, model="chain", steps=tuple(steps))


def chain_graph(plan: Plan) -> FusedGraph:
    """The graph of such a plan: a region for every step, with bodies that equal steps share."""
    bodies = {step.op_types: f"body{i}" for i, step in enumerate(plan.steps)}
    regions: list[GraphRegion] = []
    for step in plan.steps:
        reads = step.inputs
        for i, name in enumerate(step.regions, start=1):
            made = step.outputs if i == len(step.regions) else (f"{step.outputs[0]}.{i}",)
            regions.append(GraphRegion(name, bodies[step.op_types], reads, made, (), step.sources))
            reads = made
    ops = {name: tuple(BodyOp(op, ("a",), ("b",)) for op in types) for types, name in bodies.items()}
    kinds = tuple(RegionBody(name, ("a",), ("b",), each) for name, each in ops.items())
    return FusedGraph(("x",), (plan.steps[-1].outputs[0],), tuple(regions), kinds, {})
