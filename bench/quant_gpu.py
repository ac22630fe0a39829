"""Products of quantised operands on a GPU: our kernels against our own half precision and the libraries.

    PYTHONPATH=src python -m bench.quant_gpu [--families gemm weight_only conv] [--case 4096] [--rows 4]

GPU time of CUDA graphs, all rivals of a case in turns, medians. Data are random. A graph of a product with a
packed weight holds one call after the other, each with a weight of its own, together more than four times
what L2 holds. No row without a passed check against float64; `error` is the relative L2 error of the result.
Rows go to a JSON file in $OUT, or in bench/results.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product as combinations
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bench.quant_cases import Case, Rival, cases_of
from ridgeline.base.gpu_timing import capture, interleave_graphs
from ridgeline.base.spec import Config, Site, Target
from ridgeline.errors import first_line
from ridgeline.kernels.elements import cloned
from ridgeline.kernels.triton.compiler import Compiled, compile_kernels
from ridgeline.kernels.triton.quant_products import CodeWindow
from ridgeline.kernels.triton.source import Kernel
from ridgeline.tactics.base import Refused
from ridgeline.tactics.cuda.triton_conv import TritonConv, TritonConv1x1
from ridgeline.tactics.cuda.triton_linear import TritonGemm, TritonGemv
from ridgeline.tactics.cuda.triton_product import TritonProduct
from ridgeline.tactics.cuda.triton_quant import TritonCodeConv, TritonCodeGemm
from ridgeline.tactics.cuda.triton_weight_only import TritonWeightOnly
from ridgeline.tactics.offer import read_offer, require_offer

TACTICS: tuple[TritonProduct, ...] = (
    TritonGemv(), TritonGemm(), TritonCodeGemm(), TritonWeightOnly(), TritonConv1x1(), TritonConv(),
    TritonCodeConv(),
)  # fmt: skip
# a call per weight, and what the first of them computed
Bound: TypeAlias = tuple[list[Callable[[], object]], Callable[[], Tensor]]
COLD_FACTOR = 4  # copies of a weight are this many times what L2 holds
RESULTS = Path(__file__).parent / "results"


@dataclass
class Row:
    """One way to compute a case."""

    case: str
    rival: str
    label: str
    us: float = math.inf
    error: float = math.nan
    tflops: float = 0.0
    gbytes: float = 0.0  # of weight per second
    said: str = ""
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidate:
    """A kernel of ours for one of a case's sites."""

    rival: Rival
    tactic: TritonProduct
    config: Config

    @property
    def label(self) -> str:
        values: dict[str, Any] = dict(self.config)
        text = "{bm}x{bn}x{bk} k{split} w{warps} s{stages}".format(**values)
        marks = [name for name in ("prefetch", "is_promoted") if values.get(name)]
        return f"{self.tactic.name.removeprefix('triton.')} {text} {' '.join(marks)}".strip()

    @property
    def kernel(self) -> Kernel:
        return require_offer(self.tactic, self.rival.site).kernels(self.config)[0]


def candidates(case: Case, *, is_wide: bool) -> list[Candidate]:
    """Everything that the tactics offer, and with `is_wide` also what they rank lower."""
    found: list[Candidate] = []
    for rival in case.rivals:
        # float tactics would take codes too, with the weight dequantised at bind: that is another rival
        ops = rival.site.body.ops if rival.site is not None else ()
        is_coded = any(op.op_type == "DequantizeLinear" for op in ops)
        for tactic in TACTICS:
            if rival.site is None or tactic.reads_levels != is_coded:
                continue
            offer = read_offer(tactic, rival.site)
            if isinstance(offer, Refused):
                continue
            configs = [dict(config) for config in offer.configs[: rival.most]]
            if is_wide and rival.is_wide:
                more = more_configs(tactic, case, rival.site, is_integer=rival.name == "int8")
                configs += [config for config in more if config not in configs]
            found += [Candidate(rival, tactic, config) for config in configs]
    return found


def more_configs(tactic: TritonProduct, case: Case, site: Site, *, is_integer: bool) -> list[dict[str, Any]]:
    """Cuts beside those that are offered."""
    if isinstance(tactic, TritonCodeGemm):
        tiles = [
            (128, 256, 64, 8, 4), (128, 256, 128, 8, 3), (128, 256, 128, 8, 4), (256, 128, 128, 8, 3),
            (128, 128, 128, 8, 4), (128, 128, 128, 4, 3), (128, 128, 256, 8, 3), (64, 256, 128, 8, 4),
        ]  # fmt: skip
        return [
            _config(bm, bn, bk, 1, warps, stages) | {"is_promoted": promoted}
            for (bm, bn, bk, warps, stages), promoted in combinations(
                tiles, (False,) if is_integer else (True, False)
            )
        ]
    if isinstance(tactic, TritonCodeConv):
        problem = tactic.read(site).problem
        depth = problem.channels if isinstance(problem, CodeWindow) else problem.depth
        if depth % 64:
            return []
        bk = min(128, depth)
        steps = problem.depth // bk
        cuts = [(64, 64, 4), (128, 64, 4), (64, 128, 4), (128, 128, 8), (256, 64, 8), (128, 32, 4)]
        return [
            _config(bm, bn, bk, 1, warps, stages) | {"is_promoted": False}
            for (bm, bn, warps), stages in combinations(cuts, (2,) if steps < 2 else (3,))
            if bn <= problem.columns
        ]
    if isinstance(tactic, TritonWeightOnly):
        bm = min(64, max(16, 1 << (case.rows - 1).bit_length()))
        sizes = combinations((64, 128), (128, 256, 512), (1, 2, 4), (4,))
        tiles = [
            _config(bm, bn, bk, split, 8 if bn == 128 and bm == 64 else 4, stages)
            for bn, bk, split, stages in sizes
        ]
        if case.rows == 1 and tactic.read(site).problem.takes_one_row:
            few = combinations((2, 4, 8, 16), (1, 2, 4, 8), (1, 2, 4))
            tiles += [_config(1, bn, 1024 * warps, split, warps, 1) for bn, warps, split in few]
        return [config | {"prefetch": True} for config in tiles]
    return []


def _config(bm: int, bn: int, bk: int, split: int, warps: int, stages: int) -> dict[str, Any]:
    return {
        "bm": bm, "bn": bn, "bk": bk, "split": split, "warps": warps, "stages": stages, "prefetch": False,
    }  # fmt: skip


def compile_all(found: Sequence[Candidate], arch: str) -> None:
    """Every kernel of the run at once, on every core."""
    start = time.perf_counter()
    made = compile_kernels([one.kernel for one in found], arch)
    spilled = sum(isinstance(c, Compiled) and c.spills > 0 for c in made)
    failed = [(one.label, str(c)) for one, c in zip(found, made, strict=True) if not isinstance(c, Compiled)]
    seconds = time.perf_counter() - start
    print(
        f"{len(made)} kernels in {seconds:.0f} s, {spilled} spill, {len(failed)} do not compile", flush=True
    )
    for label, error in failed[:5]:
        print(f"    {label}: {error}")


def measure(case: Case, found: Sequence[Candidate], l2_bytes: int) -> list[Row]:
    """All rivals of one case in turns. Copies of weights are made per rival and shared by its kernels."""
    data = case.make()
    rows: list[Row] = []
    graphs: list[tuple[torch.cuda.CUDAGraph, Row, int]] = []
    held: list[object] = []
    sets = {rival.name: weight_sets(rival, data, l2_bytes if case.is_cold else 0) for rival in case.rivals}
    runs = [(one.label, dict(one.config), one.rival, bind_ours(one, data, sets)) for one in found]
    runs += [("library", {}, r, bind_library(r, data, sets)) for r in case.rivals if r.library is not None]
    for label, config, rival, bind in runs:
        row = Row(case.name, rival.name, label, config=config)
        rows.append(row)
        try:
            calls, y = bind()
            calls[0]()
            torch.cuda.synchronize()
            want = data[rival.want]
            scale = float(data[rival.unit]) if rival.unit else 1.0
            row.error = float((y().double() * scale - want).norm() / want.norm())
            if not row.error <= rival.most_error:
                row.said = f"WRONG: off by {row.error:.2g}, want {rival.most_error:.2g}"
                continue
            graphs.append((capture(lambda calls=calls: [call() for call in calls]), row, len(calls)))
            held.append((calls, y))
        except Exception as error:  # a refusal is a row too
            row.said = first_line(error, 120)
    timings = [
        timing
        for count in sorted({calls for _, _, calls in graphs})
        for timing in interleave_graphs([g for g, _, calls in graphs if calls == count], calls=count)
    ]
    sizes = {rival.name: rival.weight_bytes for rival in case.rivals}
    ordered = [row for count in sorted({c for _, _, c in graphs}) for _, row, c in graphs if c == count]
    for row, timing in zip(ordered, timings, strict=True):
        row.us = timing.median_us
        row.tflops = case.flops / row.us / 1e6
        row.gbytes = sizes[row.rival] / row.us / 1e3
    return sorted(rows, key=lambda row: row.us)


def weight_sets(rival: Rival, data: Mapping[str, Tensor], l2_bytes: int) -> list[dict[str, Tensor]]:
    """The rival's weights, and as many copies as L2 cannot hold."""
    return copies_of(
        rival.weights(data), max(1, math.ceil(COLD_FACTOR * l2_bytes / max(rival.weight_bytes, 1)))
    )


def copies_of(weights: dict[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    """These, and copies that differ in one bit: launches whose packed weights are equal share one.

    Zero points stay what they are: kernels are chosen by them.
    """
    most = max(t.numel() for t in weights.values())
    differ = {n for n, t in weights.items() if t.numel() == most or (t.is_floating_point() and t.numel() > 1)}
    return [
        weights,
        *(
            {n: _changed(t, i) if n in differ else cloned(t) for n, t in weights.items()}
            for i in range(count - 1)
        ),
    ]


def _changed(weight: Tensor, place: int) -> Tensor:
    """A copy, with the last bit of an element turned."""
    made = cloned(weight)
    items = torch.empty(0, dtype=torch.uint8, device=made.device).set_(made.untyped_storage())
    items[place % made.numel() * made.element_size()] ^= 1
    return made


def bind_ours(
    one: Candidate, data: Mapping[str, Tensor], sets: Mapping[str, list[dict[str, Tensor]]]
) -> Callable[[], Bound]:
    def bind() -> Bound:
        site: Site = one.rival.site  # type: ignore[assignment]
        spec = site.outputs[0]
        y = torch.empty_strided(spec.shape, spec.strides, dtype=getattr(torch, spec.dtype), device="cuda")
        y.fill_(math.nan if y.is_floating_point() else 77)
        calls = []
        inputs = one.rival.inputs(data)
        for weights in sets[one.rival.name]:
            launch = require_offer(one.tactic, site).bind(one.config, weights)
            given = {**inputs, **weights}
            calls.append(launch.frozen([given[name] for name in site.body.inputs], [y]))
        return calls, lambda: y

    return bind


def bind_library(
    rival: Rival, data: Mapping[str, Tensor], sets: Mapping[str, list[dict[str, Tensor]]]
) -> Callable[[], Bound]:
    def bind() -> Bound:
        assert rival.library is not None, "a library's way"
        bound = [rival.library({**rival.inputs(data), **weights}) for weights in sets[rival.name]]
        return [call for call, _ in bound], bound[0][1]

    return bind


def show(case: Case, rows: Sequence[Row], count: int) -> None:
    """The best of every rival beside the first one's, then the fastest kernels and what went wrong."""
    print(f"\n{case.name}")
    best: dict[str, Row] = {}
    for row in rows:
        if row.us < math.inf:
            best.setdefault(row.rival, row)
    base = min((best[r.name].us for r in case.rivals if r.is_base and r.name in best), default=math.nan)
    for name, row in best.items():
        print(
            f"  {name:22} {row.us:9.2f} us {row.tflops:7.0f} TF {row.gbytes:7.0f} GB/s "
            f"{base / row.us:6.2f}x  error {row.error:.1e}  {row.label}"
        )
    for row in [r for r in rows if r.us < math.inf][:count]:
        print(f"      {row.us:9.2f}  {row.rival}: {row.label}  error {row.error:.1e}")
    said: dict[str, list[str]] = {}
    for row in rows:
        if row.said:
            said.setdefault(row.said, []).append(f"{row.rival}: {row.label}")
    for reason, labels in said.items():
        print(f"      -  {len(labels)}x {labels[0]}: {reason}")


def show_totals(cases: Sequence[Case], rows: Sequence[Row]) -> None:
    """The fastest kernel of every rival, over all cases of a model that have it."""
    counted = [case for case in cases if case.count > 1]
    for name in dict.fromkeys(rival.name for case in counted for rival in case.rivals):
        best = [
            case.count * min((r.us for r in rows if (r.case, r.rival) == (case.name, name)), default=math.inf)
            for case in counted
        ]
        print(f"  {name:22} {sum(best):9.1f} us for {sum(case.count for case in counted)} of a model")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--families", "--family", nargs="*", dest="family", default=["gemm", "weight_only", "conv"]
    )
    parser.add_argument("--case", default="", help="only cases whose name this expression finds")
    parser.add_argument("--rows", type=int, default=4, help="kernels shown per case, the fastest first")
    parser.add_argument("--offered", action="store_true", help="only what the tactics offer")
    parser.add_argument("--out", type=Path, help="the JSON file; otherwise quant_gpu.json in $OUT")
    parser.add_argument("--compile-only", metavar="ARCH", default="", help="compile for ARCH; needs no GPU")
    options = parser.parse_args()
    arch = options.compile_only or "sm_{}{}".format(*torch.cuda.get_device_capability())
    cases = [
        case
        for family in options.family
        for case in cases_of(family, Target("cuda", arch))
        if re.search(options.case, case.name)
    ]
    found = {case.name: candidates(case, is_wide=not options.offered) for case in cases}
    compile_all([one for each in found.values() for one in each], arch)
    if options.compile_only:
        return
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, L2 {l2_bytes >> 20} MiB")
    start, made = time.perf_counter(), []
    out = options.out or Path(os.environ.get("OUT", RESULTS)) / "quant_gpu.json"
    for case in cases:
        rows = measure(case, found[case.name], l2_bytes)
        made += rows
        show(case, rows, options.rows)
        torch.cuda.empty_cache()
        head = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        out.write_text(json.dumps(head | {"rows": [asdict(row) for row in made]}, indent=1))
    show_totals(cases, made)
    print(f"\n{len(cases)} cases in {time.perf_counter() - start:.0f} s; rows in {out}")


if __name__ == "__main__":
    main()
