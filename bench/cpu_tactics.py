"""Library tactics on the CPU, layer by layer, against a one-region onnxruntime session in the same run.

    python bench/cpu_tactics.py [--net mobilenet_v2] [--budget-s 0.5]

Onnxruntime gets NCHW activations and pays for its reorders to NCHWc and back, which a whole net does not.
Ratios are to onnxruntime, by medians and, for a machine that others use too, by tenth percentiles.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch
from torch import Tensor

from ridgeline.base.spec import EPSILON, Body, Op, Site, Target, TensorSpec
from ridgeline.base.timing import Timing, interleave
from ridgeline.kernels.floor import call_floor
from ridgeline.tactics.base import Launch, Refused
from ridgeline.tactics.cpu.conv_gemm import ConvAsGemm
from ridgeline.tactics.cpu.mkl_linear import AtenLinear, MklLinear
from ridgeline.tactics.cpu.onednn_conv import OneDnnConv
from ridgeline.tactics.cpu.onednn_linear import OneDnnLinear
from ridgeline.tactics.cpu.sdpa import AttentionBmm, Sdpa
from ridgeline.tactics.offer import read_offer, require_offer

THREADS = 2
# beside a busy neighbour an OpenMP barrier lasts a time slice: such a layer is measured again
NOISY, ATTEMPTS = 2.0, 4
TACTICS = (
    *(OneDnnConv(), ConvAsGemm(), OneDnnLinear(), MklLinear(), AtenLinear()),
    Sdpa(),
    AttentionBmm(),
)


@dataclass(frozen=True)
class Layer:
    """One distinct layer: `tail` names what follows the anchor."""

    kind: str  # conv, linear, attention
    shape: tuple[int, ...]  # conv: C O kernel stride size groups; linear: M K N; attention: S heads width
    tail: str = ""

    def __str__(self) -> str:
        if self.kind == "conv":
            c, o, k, s, size, groups = self.shape
            text = f"{'dw' if groups > 1 else 'conv'} {k}x{k}s{s} {c}>{o} {size}²"
        else:
            text = f"{self.kind} {'x'.join(map(str, self.shape))}"
        return f"{text} {self.tail}".strip()


def resnet50() -> Iterator[Layer]:
    yield Layer("conv", (3, 64, 7, 2, 224, 1), "relu")
    wide, size = 64, 56
    for stage, blocks in enumerate((3, 4, 6, 3)):
        narrow = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            yield Layer("conv", (wide, narrow, 1, 1, size, 1), "relu")
            yield Layer("conv", (narrow, narrow, 3, stride, size, 1), "relu")
            if not block:
                yield Layer("conv", (wide, 4 * narrow, 1, stride, size, 1))
            size //= stride
            yield Layer("conv", (narrow, 4 * narrow, 1, 1, size, 1), "add relu")
            wide = 4 * narrow
    yield Layer("linear", (1, 2048, 1000))


def mobilenet_v2() -> Iterator[Layer]:
    yield Layer("conv", (3, 32, 3, 2, 224, 1), "relu6")
    wide, size = 32, 112
    stages = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for expand, out, blocks, first_stride in stages:
        for block in range(blocks):
            stride, inner = (1 if block else first_stride), wide * expand
            if expand > 1:
                yield Layer("conv", (wide, inner, 1, 1, size, 1), "relu6")
            yield Layer("conv", (inner, inner, 3, stride, size, inner), "relu6")
            size //= stride
            yield Layer("conv", (inner, out, 1, 1, size, 1), "add" if block else "")
            wide = out
    yield Layer("conv", (320, 1280, 1, 1, 7, 1), "relu6")
    yield Layer("linear", (1, 1280, 1000))


def bert_base() -> Iterator[Layer]:
    for _ in range(12):
        yield from [Layer("linear", (128, 768, 768))] * 3
        yield Layer("attention", (128, 12, 64), "mask")
        yield Layer("linear", (128, 768, 768), "add")
        yield Layer("linear", (128, 768, 3072), "gelu")
        yield Layer("linear", (128, 3072, 768), "add")


def gpt2() -> Iterator[Layer]:
    for _ in range(12):
        yield Layer("linear", (64, 768, 2304))
        yield Layer("attention", (64, 12, 64), "causal")
        yield Layer("linear", (64, 768, 768), "add")
        yield Layer("linear", (64, 768, 3072), "gelu_tanh")
        yield Layer("linear", (64, 3072, 768), "add")
    yield Layer("linear", (64, 768, 50257), "no_bias")


NETS: dict[str, Callable[[], Iterator[Layer]]] = {
    "resnet50": resnet50, "mobilenet_v2": mobilenet_v2, "bert_base_s128": bert_base, "gpt2_s64": gpt2,
}  # fmt: skip


@dataclass
class Region:
    """A site under construction, with random data for its inputs."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    weights: list[str] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)

    def add(self, op_type: str, inputs: str, **attrs: Any) -> None:
        output = f"v{len(self.ops)}"
        reads = tuple(output_before(self.ops) if name == "." else name for name in inputs.split())
        self.ops.append(Op(op_type, reads, (output,), attrs))

    def site(self, *, is_channels_last: bool) -> Site:
        body = Body(tuple(self.tensors), (output_before(self.ops),), tuple(self.ops), self.constants)
        specs = {}
        for name, value in evaluate(body, self.tensors).items():
            is_last = is_channels_last and value.dim() == 4 and name not in self.weights
            specs[name] = TensorSpec(
                "float32", tuple(value.shape), "channels_last" if is_last else "contiguous"
            )
        return Site(body, specs, frozenset(self.weights), {}, Target("cpu", threads=THREADS))


def output_before(ops: Sequence[Op]) -> str:
    return ops[-1].outputs[0]


def evaluate(body: Body, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    dtype = next(iter(tensors.values())).dtype
    values = {name: torch.from_numpy(array).to(dtype) for name, array in body.constants.items()} | dict(
        tensors
    )
    for op in body.ops:
        made = call_floor(op, [values[name] if name else None for name in op.inputs])
        values.update(
            (name, value) for name, value in zip(op.outputs, made, strict=True) if value is not None
        )
    return values


def make_region(layer: Layer) -> Region:
    torch.manual_seed(0)
    region = Region()
    if layer.kind == "conv":
        c, o, k, s, size, groups = layer.shape
        fan = c // groups * k * k
        region.tensors = {
            "x": torch.randn(1, c, size, size),
            "w": torch.randn(o, c // groups, k, k) / fan**0.5,
        }
        region.tensors["b"] = torch.randn(o)
        region.weights = ["w", "b"]
        region.add("Conv", "x w b", kernel_shape=(k, k), strides=(s, s), pads=(k // 2,) * 4, group=groups)
        result = (1, o, size // s, size // s)
    elif layer.kind == "linear":
        m, k, n = layer.shape
        region.tensors = {"x": torch.randn(m, k), "w": torch.randn(k, n) / k**0.5, "b": torch.randn(n)}
        region.weights = ["w", "b"]
        region.add("MatMul", "x w")
        if layer.tail == "no_bias":
            del region.tensors["b"], region.weights[1]
        else:
            region.add("Add", ". b")
        result = (m, n)
    else:
        length, heads, width = layer.shape
        region.tensors = {name: torch.randn(1, length, heads * width) for name in "qkv"}
        attrs = {"q_num_heads": heads, "kv_num_heads": heads}
        if layer.tail == "mask":
            # onnxruntime does not broadcast the mask along the queries
            region.tensors["m"] = torch.randn(1, 1, length, length)
            region.add("Attention", "q k v m", **attrs)
        else:
            region.add("Attention", "q k v", is_causal=1, **attrs)
        return region
    for word in layer.tail.split():
        add_tail(region, word, result)
    return region


def add_tail(region: Region, word: str, result: tuple[int, ...]) -> None:
    if word == "add":
        region.tensors["r"] = torch.randn(result)
        region.add("Add", ". r")
    elif word == "relu":
        region.add("Relu", ".")
    elif word == "relu6":
        region.constants = {"low": np.array(0, np.float32), "high": np.array(6, np.float32)}
        region.add("Clip", ". low high")
    elif word.startswith("gelu"):
        region.add("Gelu", ".", approximate="tanh" if word == "gelu_tanh" else "none")


def to_model(site: Site, tensors: Mapping[str, Tensor]) -> bytes:
    """The region as a model of its own, weights as initializers."""
    body = site.body
    fixed = {name: tensors[name].numpy() for name in site.weights} | dict(body.constants)
    values = {}
    for name in (*body.inputs, *body.constants, *(op.outputs[0] for op in body.ops)):
        shape = fixed[name].shape if name in fixed else site.specs[name].shape
        values[name] = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
        if name in fixed:
            values[name].const_value = ir.tensor(fixed[name], name=name)
    nodes = [
        ir.node(op.op_type, [values[n] for n in op.inputs], dict(op.attrs), outputs=[values[op.outputs[0]]])
        for op in body.ops
    ]
    graph = ir.Graph(
        [values[n] for n in body.inputs if n not in fixed],
        [values[n] for n in body.outputs],
        nodes=nodes,
        initializers=[values[n] for n in fixed],
        opset_imports={"": 23},
        name="region",
    )
    return ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()


def bind_ort(site: Site, tensors: Mapping[str, Tensor]) -> tuple[Callable[[], object], np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(to_model(site, tensors), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for item in session.get_inputs():
        binding.bind_cpu_input(item.name, tensors[item.name].contiguous().numpy())
    out = np.empty(site.outputs[0].shape, dtype=np.float32)
    name = session.get_outputs()[0].name
    binding.bind_output(name, "cpu", 0, np.float32, out.shape, out.ctypes.data)
    return (lambda: session.run_with_iobinding(binding)), out


def bind_launch(
    launch: Launch, site: Site, inputs: Sequence[Tensor]
) -> tuple[Callable[[], Any], Tensor | None]:
    if not launch.writes_out:
        return launch.frozen(inputs, ()), None
    spec = site.outputs[0]
    out = torch.empty_strided(spec.shape, spec.strides).fill_(torch.nan)
    return launch.frozen(inputs, (out,)), out


def label(name: str, config: Mapping[str, object]) -> str:
    return name + "".join(f" {key}={value}" for key, value in config.items())


@dataclass(frozen=True)
class Row:
    """One way to run a layer, measured, with the verdict of the float64 check."""

    name: str
    timing: Timing
    is_right: bool

    def text(self, base: Row) -> str:
        ratio, p10_ratio = (
            self.timing.median_us / base.timing.median_us,
            self.timing.p10_us / base.timing.p10_us,
        )
        verdict = "ok " if self.is_right else "OFF"
        return f"{self.timing.median_us:9.1f} {ratio:6.2f} {p10_ratio:6.2f}  {verdict} {self.name}"


def bench_layer(layer: Layer, budget_s: float) -> list[Row]:
    """Onnxruntime first, then every willing tactic in every config."""
    region = make_region(layer)
    site = region.site(is_channels_last=True)
    tensors = {
        name: torch.empty_strided(t.shape, site.specs[name].strides).copy_(t)
        for name, t in region.tensors.items()
    }
    wide = evaluate(site.body, {name: t.double() for name, t in region.tensors.items()})
    exact = wide[site.body.outputs[0]]
    # torch in the same layout: its channels_last convolutions sum in another order and err up to 6x more
    narrow = evaluate(site.body, tensors)[site.body.outputs[0]]
    allowed = 2 * (narrow - exact).abs().max() + 2 * EPSILON["float32"] * exact.abs().max()
    run_ort, ort_out = bind_ort(site, region.tensors)
    calls, labels = [run_ort], ["onnxruntime"]
    run_ort()
    gates = [bool((torch.from_numpy(ort_out).double() - exact).abs().max() <= allowed)]
    inputs = [tensors[name] for name in site.body.inputs]
    for tactic in TACTICS:
        if isinstance(read_offer(tactic, site), Refused):
            continue
        for config in require_offer(tactic, site).configs:
            launch = require_offer(tactic, site).bind(config, {name: tensors[name] for name in site.weights})
            call, out = bind_launch(launch, site, inputs)
            returned = call()
            got = returned[0] if out is None else out
            gates.append(bool((got.double() - exact).abs().max() <= allowed))
            calls.append(call)
            labels.append(label(tactic.name, config))
    for _ in range(ATTEMPTS):
        timings = interleave(calls, budget_s=budget_s, settle_s=0.004)
        if max(t.p90_us / t.p10_us for t in timings) < NOISY:
            break
    return [Row(*row) for row in zip(labels, timings, gates, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--net", choices=NETS, action="append")
    parser.add_argument("--budget-s", type=float, default=0.4, help="seconds of samples per layer")
    parser.add_argument("--all", action="store_true", help="every tactic's row, not the best alone")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    print(f"torch {torch.__version__}, onnxruntime {ort.__version__}, {THREADS} threads, fp32, batch 1")
    for net in options.net or NETS:
        print(f"\n{net}\n{'layer':32} {'count':>5} {'ort us':>9} {'best us':>9} {'ratio':>6} {'p10':>6}")
        total_ort = total_best = 0.0
        for layer, count in Counter(NETS[net]()).items():
            with torch.inference_mode():
                base, *rivals = bench_layer(layer, options.budget_s)
            rivals.sort(key=lambda row: row.timing.median_us)
            best = next(row for row in rivals if row.is_right)
            total_ort += count * base.timing.median_us
            total_best += count * best.timing.median_us
            print(f"{layer!s:32} {count:5} {base.timing.median_us:9.1f} {best.text(base)}", flush=True)
            for row in rivals if options.all else ():
                print(f"{'':48}{row.text(base)}", flush=True)
        print(
            f"{'sum over layers':32} {'':5} {total_ort:9.1f} {total_best:9.1f} {total_best / total_ort:6.2f}"
        )


if __name__ == "__main__":
    main()
