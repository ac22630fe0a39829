"""Our attention kernel, every block shape, against torch's SDPA backends; GPU time of graphs of ten calls.

    PYTHONPATH=src python bench/attention_gpu.py [--case b1.s128] [--all]

Shapes that the tactic would offer are marked *; `--all` times the others too. `other sizes` times the offered
shapes with lengths as constants where they are arguments, and the other way round. No row without a passed
check against float64. TFLOP/s counts two products, half of them where attention is causal.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from ridgeline.base.devices import device_of
from ridgeline.base.gpu_timing import capture, interleave_graphs
from ridgeline.base.spec import EPSILON, Body, Config, Op, Site, Target, TensorSpec
from ridgeline.errors import first_line
from ridgeline.kernels.triton.attention import attention_ref
from ridgeline.kernels.triton.compiler import compile_kernels
from ridgeline.tactics.base import Refused, Tactic
from ridgeline.tactics.cuda import triton_attention
from ridgeline.tactics.cuda.sdpa import BACKENDS, CudaSdpa
from ridgeline.tactics.cuda.triton_attention import (
    Blocks,
    TritonAttention,
    block_shapes,
    kernel_of,
    rank_blocks,
)
from ridgeline.tactics.offer import read_offer, require_offer
from ridgeline.tactics.read.attention import AttentionSite, read_attention

CALLS = 10


@dataclass(frozen=True)
class Case:
    """B batch, H heads, S queries, T keys (0: as many as queries, all in one merged projection), D width."""

    name: str
    batch: int
    heads: int
    queries: int
    width: int
    keys: int = 0
    is_causal: int = 0
    dtype: str = "float16"
    mask: tuple[int, ...] | None = None
    mask_dtype: str = ""
    kv_heads: int = 0


TIMED = (
    Case("b1.s128", 1, 12, 128, 64),
    Case("b32.s128", 32, 12, 128, 64),
    Case("b1.s128.mask", 1, 12, 128, 64, mask=(1, 1, 1, 128), mask_dtype="float16"),
    Case("b1.s197", 1, 12, 197, 64),
    Case("b32.s197", 32, 12, 197, 64),
    Case("b1.s512.causal", 1, 12, 512, 64, is_causal=1),
    Case("b8.s512.causal", 8, 12, 512, 64, is_causal=1),
    Case("b4.s2048.d128.causal", 4, 16, 2048, 128, is_causal=1),
    Case("b1.s1024.t777", 1, 8, 1024, 64, keys=777),
)
# odd ones, checked and not timed
CHECKED = (
    Case("bf16", 2, 3, 130, 64, dtype="bfloat16"),
    Case("fp32", 2, 3, 70, 64, dtype="float32", is_causal=1),
    Case("wide, causal, lopsided", 2, 3, 300, 120, keys=517, is_causal=1),
    Case("one query", 2, 4, 1, 128, keys=999),
    Case("grouped", 2, 8, 65, 80, keys=65, kv_heads=2),
    Case("bool mask", 2, 3, 37, 64, keys=101, mask=(2, 1, 37, 101), mask_dtype="bool"),
    Case("float mask, causal", 2, 3, 320, 32, mask=(3, 320, 320), mask_dtype="float16", is_causal=1),
)


def site_of(case: Case, target: Target) -> Site:
    columns, keys, kv_heads = case.heads * case.width, case.keys or case.queries, case.kv_heads or case.heads
    attrs = {"q_num_heads": case.heads, "kv_num_heads": kv_heads, "is_causal": case.is_causal}
    inner = {"q": (case.batch, case.queries, columns), "y": (case.batch, case.queries, columns)}
    inner |= dict.fromkeys("kv", (case.batch, keys, kv_heads * case.width))
    specs = {name: TensorSpec(case.dtype, shape) for name, shape in inner.items()}
    ops: tuple[Op, ...] = ()
    inputs: tuple[str, ...] = ("q", "k", "v")
    if not case.keys:
        inputs, ops = ("x",), (Op("Split", ("x",), inputs, {"axis": -1, "num_outputs": 3}),)
        specs["x"] = TensorSpec(case.dtype, (case.batch, case.queries, 3 * columns))
    names: tuple[str, ...] = ("q", "k", "v")
    if case.mask is not None:
        inputs, names = (*inputs, "m"), (*names, "m")
        specs["m"] = TensorSpec(case.mask_dtype, case.mask)
    body = Body(inputs, ("y",), (*ops, Op("Attention", names, ("y",), attrs)))
    return Site(body, specs, frozenset(), {}, target, name=case.name)


def inputs_of(site: Site) -> list[Tensor]:
    made = []
    for spec in site.inputs:
        assert spec is not None
        x = torch.randn(spec.shape, device="cuda")
        if spec.dtype == "bool":
            made.append(x > 0)
            made[-1][..., 1, :] = False  # a query that sees no key
        else:
            made.append(x.to(getattr(torch, spec.dtype)))
    return made


class Judge:
    """Says whether a result is right: off from float64 by no more than twice what torch in the dtype is."""

    def __init__(self, site: Site, inputs: Sequence[Tensor]) -> None:
        attention = read_attention(site)
        kind = getattr(torch, attention.dtype)
        self.exact, narrow = (self._run(site, attention, inputs, k).double() for k in (torch.float64, kind))
        rounding = 2 * EPSILON[attention.dtype] * float(self.exact.abs().max())
        self.allowed = 2 * float((narrow - self.exact).abs().max()) + rounding

    def _run(
        self, site: Site, attention: AttentionSite, inputs: Sequence[Tensor], kind: torch.dtype
    ) -> Tensor:
        wide = [x.to(kind) if x.is_floating_point() else x for x in inputs]
        attend = partial(attention_ref, scale=attention.scale, is_causal=attention.is_causal)
        made = attention.launch(attend).run(wide, ())
        assert made is not None, "such a call returns its result"
        return made[0]

    def __call__(self, y: Tensor) -> bool:
        return float((y.double() - self.exact).abs().max()) <= self.allowed  # NaN is not


@dataclass
class Candidate:
    label: str
    call: Callable[[], object] | None
    said: str = ""
    us: float = math.inf


def candidate(
    tactic: Tactic, site: Site, config: Config, inputs: Sequence[Tensor], is_right: Judge, label: str
) -> Candidate:
    """Bound, run once and judged."""
    try:
        launch = require_offer(tactic, site).bind(config, {})
        out = [torch.full(s.shape, math.nan, dtype=inputs[0].dtype, device="cuda") for s in site.outputs]
        call = launch.frozen(inputs, out if launch.writes_out else ())
        returned: Any = call()
        torch.cuda.synchronize()
        if not is_right((out if launch.writes_out else returned)[0]):
            return Candidate(label, None, "WRONG")
    except Exception as error:  # a refusal is a row too
        return Candidate(label, None, first_line(error, 120))
    return Candidate(label, call)


@contextmanager
def other_sizes(case: Case) -> Iterator[None]:
    """Constants where the tactic has arguments, and the other way round."""
    usual = triton_attention.FIXED_KEYS
    is_fixed = max(case.queries, case.keys) <= usual
    triton_attention.FIXED_KEYS = 0 if is_fixed else 1 << 20
    try:
        yield
    finally:
        triton_attention.FIXED_KEYS = usual


def measure(case: Case, target: Target, *, every_shape: bool) -> list[Candidate]:
    site = site_of(case, target)
    attention, inputs = read_attention(site), inputs_of(site)
    is_right = Judge(site, inputs)
    offered = rank_blocks(attention, target)
    shapes = [
        *offered,
        *(b for b in block_shapes(attention, device_of(target.arch)) if every_shape and b not in offered),
    ]
    found = []
    for blocks in shapes:
        label = f"{'*' if blocks in offered else ' '} {text(blocks)}"
        found.append(candidate(TritonAttention(), site, blocks.config(), inputs, is_right, label))
    with other_sizes(case):
        for blocks in offered:
            label = f"  {text(blocks)} other sizes"
            found.append(candidate(TritonAttention(), site, blocks.config(), inputs, is_right, label))
    for config in require_offer(CudaSdpa(), site).configs:
        label = f"= torch {config['backend']}"
        found.append(candidate(CudaSdpa(), site, config, inputs, is_right, label))
    runnable = [c for c in found if c.call is not None]
    timings = interleave_graphs([capture(c.call, CALLS) for c in runnable if c.call], calls=CALLS)
    for c, timing in zip(runnable, timings, strict=True):
        c.us = timing.median_us
    return sorted(found, key=lambda c: c.us)


def text(blocks: Blocks) -> str:
    return f"{blocks.queries}x{blocks.keys} w{blocks.warps} s{blocks.stages}"


def compile_all(cases: Sequence[Case], target: Target, *, every_shape: bool) -> None:
    """Every kernel of the run at once, on every core."""
    kernels = []
    for case in cases:
        site = site_of(case, target)
        attention = read_attention(site)
        offered = rank_blocks(attention, target)
        every = block_shapes(attention, device_of(target.arch))
        shapes = every if every_shape and case in TIMED else offered
        kernels += [kernel_of(attention, blocks, target) for blocks in shapes]
        if case in TIMED:
            with other_sizes(case):
                kernels += [kernel_of(attention, blocks, target) for blocks in offered]
    start = time.perf_counter()
    compile_kernels(kernels, target.arch)
    print(f"{len(kernels)} kernels compiled in {time.perf_counter() - start:.0f} s")


def tflops(case: Case, us: float) -> float:
    keys = case.keys or case.queries
    flops = 4 * case.batch * case.heads * case.queries * keys * case.width
    return flops / (2 if case.is_causal else 1) / us / 1e6


def show(case: Case, found: Sequence[Candidate], *, rows: int) -> None:
    ours = [c for c in found if not c.label.startswith("=")]
    offered = [c for c in ours if c.label.startswith("*")]
    theirs = min((c for c in found if c.label.startswith("=")), key=lambda c: c.us)
    best = min(offered, key=lambda c: c.us)
    print(
        f"\n{case.name}: ours {best.us:.2f} us ({best.label[2:]}), {tflops(case, best.us):.0f} TFLOP/s; "
        f"{theirs.label[2:]} {theirs.us:.2f} us; {theirs.us / best.us:.2f}x"
    )
    shown = [c for c in found if c.us < math.inf]
    for c in shown[:rows] + [c for c in shown[rows:] if c.label.startswith("=")]:
        print(f"  {c.us:8.2f}  {c.label}")
    for c in found:
        if c.said:
            print(f"         -  {c.label}: {c.said}")


def check_odd_ones(target: Target) -> None:
    for case in CHECKED:
        site = site_of(case, target)
        inputs = inputs_of(site)
        is_right = Judge(site, inputs)
        bad = []
        for tactic in (TritonAttention(), CudaSdpa()):
            offer = read_offer(tactic, site)
            if isinstance(offer, Refused):
                bad.append(f"{tactic.name}: {offer.reason}")
                continue
            for config in offer.configs:
                made = candidate(tactic, site, config, inputs, is_right, f"{tactic.name} {dict(config)}")
                bad += [f"{made.label}: {made.said}"] if made.call is None else []
        print(f"check {case.name}: {'right' if not bad else ''}", *bad, sep="\n    " if bad else "")


def show_blind_rows() -> None:
    """What each backend gives a query to which every key is masked."""
    q = torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.half)
    allowed = torch.ones(64, 64, device="cuda", dtype=torch.bool)
    allowed[3] = False
    for kind, mask in (
        ("bool", allowed),
        ("float", torch.zeros_like(q[0, 0]).masked_fill(~allowed, -math.inf)),
    ):
        said = []
        for name in ("cudnn", "efficient", "math"):
            with sdpa_kernel(BACKENDS[name]):
                row = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)[0, 0, 3]
            said.append(
                f"{name} {'NaN' if row.isnan().any() else 'zeros' if (row == 0).all() else 'numbers'}"
            )
        print(f"rows without a key, {kind} mask: {', '.join(said)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", default="", help="only cases whose name begins so")
    parser.add_argument("--all", action="store_true", help="every block shape, not only those offered")
    parser.add_argument("--rows", type=int, default=9, help="fastest rows shown per case")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    major, minor = torch.cuda.get_device_capability()
    target = Target("cuda", f"sm_{major}{minor}")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    timed = [case for case in TIMED if case.name.startswith(options.case)]
    compile_all([*timed, *CHECKED], target, every_shape=options.all)
    check_odd_ones(target)
    show_blind_rows()
    for case in timed:
        show(case, measure(case, target, every_shape=options.all), rows=options.rows)


if __name__ == "__main__":
    main()
