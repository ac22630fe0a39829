"""Our products, convolutions and pools, every offered cut, against libraries; GPU time of CUDA graphs.

    PYTHONPATH=src python -m bench.kernels_gpu --family gemm [--case bert] [--hot] [--rows 3]

A graph holds one call after the other, each with a weight of its own, together more than L2 holds: as in a
network, a weight comes from memory, and a pool's image stands in its place. `--hot` gives all calls one
weight. Of `normed` and `prologue`, a norm or pointwise ops with the product behind them as one kernel, our
two kernels are among the peers. No row without a passed check against float64. `peer` is the library's best
way to the same result, its epilogue included. `least` is what the bytes take at the rate of a copy that no
cache holds, or the arithmetic at the peak of its units, whichever is longer. `copy` is a copy of as many
bytes in the same run, as warm in L2: the image of a convolution stays there between calls if it fits.
Percentages are of our time.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.kernel_cases import FAMILIES as ALONE
from bench.kernel_cases import Case
from bench.normed_cases import normed_cases
from bench.prologue_cases import prologue_cases
from ridgeline.base.gpu_timing import capture, interleave_graphs
from ridgeline.base.spec import Config, Site, Target, TensorSpec
from ridgeline.base.target_files import ceilings_of_arch
from ridgeline.errors import first_line
from ridgeline.kernels.triton.compiler import Compiled, compile_kernels
from ridgeline.tactics.base import Refused, Tactic
from ridgeline.tactics.cuda.triton_conv import TritonConv, TritonConv1x1, TritonDepthwise
from ridgeline.tactics.cuda.triton_linear import TritonGemm, TritonGemv
from ridgeline.tactics.cuda.triton_normed import TritonNormedGemm
from ridgeline.tactics.cuda.triton_pool import TritonPool
from ridgeline.tactics.cuda.triton_prologue import TritonPrologueGemm
from ridgeline.tactics.offer import read_offer, require_offer

TACTICS: tuple[Tactic, ...] = (
    TritonNormedGemm(), TritonPrologueGemm(), TritonGemv(), TritonGemm(),
    TritonConv1x1(), TritonConv(), TritonDepthwise(), TritonPool(),
)  # fmt: skip
FAMILIES = {**ALONE, "normed": normed_cases, "prologue": prologue_cases}
COLD_BYTES = 128 << 20  # more than twice the L2 of an H200
MIN_CALLS, MAX_CALLS = 10, 64
HALF = torch.float16
COPY = "copy"  # the label of a copy's row


@dataclass
class Row:
    label: str
    us: float = math.inf
    said: str = ""


@dataclass
class Operands:
    """x and b, and as many weights as calls."""

    x: Tensor
    b: Tensor
    weights: list[Tensor]

    @staticmethod
    def of(case: Case, site: Site, *, is_hot: bool) -> Operands:
        w = _random(site.specs["w"])
        x = _random(site.specs["x"]) if "x" in site.specs else w
        b = _random(site.specs["b"]) if "b" in site.specs else x
        calls = min(MAX_CALLS, max(MIN_CALLS, math.ceil(COLD_BYTES / w.nbytes)))
        return Operands(x, b, [w] * calls if is_hot else [w, *(_unlike(w, i) for i in range(1, calls))])

    def inputs(self, site: Site, weight: Tensor) -> list[Tensor]:
        return [{"x": self.x, "w": weight, "b": self.b}[name] for name in site.body.inputs]


def _random(spec: TensorSpec) -> Tensor:
    made = torch.empty_strided(spec.shape, spec.strides, dtype=HALF, device="cuda")
    return made.normal_(std=0.5)


def _unlike(weight: Tensor, place: int) -> Tensor:
    """A copy with another first element: launches whose packed weights are equal share one copy."""
    made = weight.clone()
    made.as_strided((1,), (1,)).fill_(place)
    return made


class Judge:
    """Within the rounding of a float32 sum, then of two roundings to float16."""

    def __init__(self, case: Case, operands: Operands) -> None:
        x, w, b = (t.double() for t in (operands.x, operands.weights[0], operands.b))
        self.want = case.follows(case.exact(x, w, b))
        magnitude = case.exact(x.abs(), w.abs(), b.abs())
        # the peers round before what follows the bias, where a slope of 1.2 is the steepest
        error = (case.terms + 8) * 2.0**-24 + case.operand_error
        self.bound = 1.2 * error * magnitude + 2.0**-10 * (1 + self.want.abs())

    def __call__(self, y: Tensor) -> bool:
        return bool(((y.double() - self.want).abs() <= self.bound).all())


def measure(case: Case, target: Target, *, is_hot: bool) -> list[Row]:
    site = case.site(target)
    operands = Operands.of(case, site, is_hot=is_hot)
    is_right = Judge(case, operands)
    rows: list[Row] = []
    graphs: list[torch.cuda.CUDAGraph] = []
    held: list[object] = []
    for label, tactic, config in candidates(site):
        row = Row(label)
        rows.append(row)
        try:
            calls, y = bind(tactic, site, config, operands)
            calls[0]()
            torch.cuda.synchronize()
            if not is_right(y):
                row.said = "WRONG"
                continue
            graphs.append(capture(lambda calls=calls: [call() for call in calls]))
            row.us = 0.0
            held.append((calls, y))
        except Exception as error:  # a refusal is a row too
            row.said = first_line(error, 120)
    for name, peer in case.peers.items():
        row = Row(f"= {name}")
        rows.append(row)
        try:
            if not is_right(peer(operands.x, operands.weights[0], operands.b)):
                row.said = "WRONG"
                continue
            graphs.append(capture(lambda peer=peer: _one_by_one(peer, operands)))
            row.us = 0.0
        except Exception as error:  # the library has no kernel for some groups
            row.said = first_line(error, 120)
    rows.append(Row(COPY, 0.0))
    graphs.append(capture(_copies(site, operands)))
    timings = interleave_graphs(graphs, calls=len(operands.weights))
    for row, timing in zip((row for row in rows if row.us == 0.0), timings, strict=True):
        row.us = timing.median_us
    return sorted(rows, key=lambda row: row.us)


def _one_by_one(peer: Callable[[Tensor, Tensor, Tensor], Tensor], operands: Operands) -> None:
    """No result is kept, so that all go to the same memory, as ours do."""
    for weight in operands.weights:
        peer(operands.x, weight, operands.b)


def _copies(site: Site, operands: Operands) -> Callable[[], None]:
    """As many copies as calls, each of the bytes of one; read as warm as the case reads its image."""
    images = 1 if "x" in site.specs else len({id(weight) for weight in operands.weights})
    size = moved_bytes(site) // 2
    sources = [torch.zeros(size, dtype=torch.uint8, device=operands.x.device) for _ in range(images)]
    target = torch.empty_like(sources[0])

    def run() -> None:
        for i in range(len(operands.weights)):
            target.copy_(sources[i % images])

    return run


def candidates(site: Site) -> list[tuple[str, Tactic, Config]]:
    willing = [tactic for tactic in TACTICS if not isinstance(read_offer(tactic, site), Refused)]
    return [
        (label(tactic, config), tactic, config)
        for tactic in willing
        for config in require_offer(tactic, site).configs
    ]


def label(tactic: Tactic, config: Config) -> str:
    values: dict[str, Any] = dict(config)
    form = "{bm}x{bn}x{bk} k{split} w{warps} s{stages}"
    if "bm" not in values:
        form = "{high}x{wide} p{positions} c{channels} w{warps}"
    return f"{tactic.name[7:]} {form.format(**values)}{' pf' if values.get('prefetch') else ''}"


def bind(
    tactic: Tactic, site: Site, config: Config, operands: Operands
) -> tuple[list[Callable[[], object]], Tensor]:
    """A frozen call per weight, all into one output."""
    outputs = [
        torch.empty_strided(spec.shape, spec.strides, dtype=HALF, device="cuda").fill_(math.nan)
        for spec in site.outputs
    ]
    calls: dict[int, Callable[[], object]] = {}
    for weight in operands.weights:
        if id(weight) not in calls:
            launch = require_offer(tactic, site).bind(config, {"w": weight, "b": operands.b})
            calls[id(weight)] = launch.frozen(operands.inputs(site, weight), outputs)
    return [calls[id(weight)] for weight in operands.weights], outputs[-1]


def compile_all(cases: Sequence[Case], target: Target) -> None:
    """Every kernel of the run at once, on every core."""
    start = time.perf_counter()
    kernels = [
        require_offer(tactic, site).kernels(config)[0]
        for site in (case.site(target) for case in cases)
        for _, tactic, config in candidates(site)
    ]
    kernels += [kernel for case in cases for kernel in case.peer_kernels(target)]
    made = compile_kernels(kernels, target.arch)
    spilled = sum(isinstance(c, Compiled) and c.spills > 0 for c in made)
    failed = sum(not isinstance(c, Compiled) for c in made)
    seconds = time.perf_counter() - start
    print(f"{len(kernels)} kernels in {seconds:.0f} s, {spilled} spill, {failed} do not compile", flush=True)


def copy_bytes_per_us() -> float:
    """Read and written, of a copy that no cache holds."""
    source = torch.empty(1 << 28, dtype=HALF, device="cuda").fill_(1.0)
    target = torch.empty_like(source)
    [timing] = interleave_graphs([capture(lambda: target.copy_(source))], calls=1)
    return 2 * source.nbytes / timing.median_us


def moved_bytes(site: Site) -> int:
    """Tensors in and out once each."""
    return sum(site.specs[name].nbytes for name in (*site.body.inputs, "y"))


def least_us(case: Case, site: Site, bytes_per_us: float) -> float:
    """The bytes at this rate, or the flops at what the maker states of a GPU like this one."""
    peak = ceilings_of_arch(site.target.arch).peak_flops["float32" if case.is_plain else "float16"]
    return max(moved_bytes(site) / bytes_per_us, case.flops / peak)


def show(case: Case, rows: Sequence[Row], count: int, least: float) -> float:
    """One line for the best of both sides, then our best few and what went wrong."""
    copy_us = next((row.us for row in rows if row.label == COPY), math.nan)
    rows = [row for row in rows if row.label != COPY]
    ours = [row for row in rows if not row.label.startswith("=") and row.us < math.inf]
    theirs = [row for row in rows if row.label.startswith("=") and row.us < math.inf]
    best, peer = (min(side, key=lambda row: row.us, default=Row("-")) for side in (ours, theirs))
    print(
        f"{case.name:34} ours {best.us:7.2f} us  {case.flops / best.us / 1e6:5.0f} TF  "
        f"peer {peer.us:7.2f} us ({peer.label[2:]})  {peer.us / best.us:5.2f}x  "
        f"least {least:6.2f} us ({least / best.us:4.0%})  copy {copy_us:6.2f} us ({copy_us / best.us:4.0%})"
    )
    for row in ours[:count]:
        print(f"    {row.us:7.2f}  {row.label}")
    for row in rows:
        if row.said:
            print(f"          -  {row.label}: {row.said}")
    return peer.us / best.us


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--case", default="", help="only cases whose name holds this")
    parser.add_argument("--rows", type=int, default=3, help="cuts shown per case, the fastest first")
    parser.add_argument("--hot", action="store_true", help="one weight for all calls: it stays in L2")
    parser.add_argument("--compile-only", metavar="ARCH", default="", help="compile for ARCH; needs no GPU")
    options = parser.parse_args()
    cases = [case for case in FAMILIES[options.family]() if options.case in case.name]
    if options.compile_only:
        compile_all(cases, Target("cuda", options.compile_only))
        return
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    torch.backends.cudnn.benchmark = True
    target = Target("cuda", "sm_{}{}".format(*torch.cuda.get_device_capability()))
    warmth = "hot" if options.hot else "cold"
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {warmth} weights")
    compile_all(cases, target)
    rate = copy_bytes_per_us()
    print(f"a copy moves {rate / 1e6:.2f} TB/s")
    ratios = [
        show(
            case,
            measure(case, target, is_hot=options.hot),
            options.rows,
            least_us(case, case.site(target), rate),
        )
        for case in cases
    ]
    known = [ratio for ratio in ratios if 0 < ratio < math.inf]
    if known:
        print(f"geometric mean of peer over ours: {math.exp(sum(map(math.log, known)) / len(known)):.2f}x")


if __name__ == "__main__":
    main()
