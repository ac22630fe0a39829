"""Resize against a copy of as many bytes and against PyTorch: every offered cut, GPU time of CUDA graphs.

    PYTHONPATH=src python bench/resize_gpu.py [--out FILE] [--compile-only sm_90]

No row without a passed check against float64. `share_of_copy` is the time of a copy that moves as many bytes,
in the same run and as warm in L2, divided by ours. A graph holds ten calls: its own launch would be a part of
both times, and bring them together.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.gpu_timing import capture, interleave_graphs
from ridgeline.base.spec import EPSILON, Body, Layout, Op, Site, Target, TensorSpec
from ridgeline.errors import first_line
from ridgeline.kernels.floor import call_floor
from ridgeline.kernels.triton.compiler import Compiled, compile_kernels
from ridgeline.kernels.triton.source import triton_version
from ridgeline.runtime.device import current_device
from ridgeline.select.graph_replay import bound_call
from ridgeline.tactics.cuda.triton_resize import TritonResize
from ridgeline.tactics.offer import require_offer

CALLS = 10  # in one graph
LAST: Layout = "channels_last"
CONTIGUOUS: Layout = "contiguous"
LINEAR = {"mode": "linear"}
TWICE = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}


@dataclass(frozen=True)
class Case:
    """One Resize of NCHW shapes; `layouts` are those of the input and the output."""

    name: str
    x: tuple[int, ...]
    size: tuple[int, int]
    layouts: tuple[Layout, Layout]
    attrs: Mapping[str, Any] = field(default_factory=lambda: LINEAR)
    dtype: str = "float16"

    def site(self, target: Target) -> Site:
        op = Op("Resize", ("x", "", "", "s"), ("y",), {**self.attrs, "axes": (2, 3)})
        specs = {
            "x": TensorSpec(self.dtype, self.x, self.layouts[0]),
            "y": TensorSpec(self.dtype, (*self.x[:2], *self.size), self.layouts[1]),
            "s": TensorSpec("int64", (2,)),
        }
        body = Body(("x", "s"), ("y",), (op,))
        return Site(body, specs, frozenset(), {"s": np.array(self.size)}, target, name=self.name)


def cases() -> list[Case]:
    layouts = ((LAST, LAST), (CONTIGUOUS, CONTIGUOUS), (LAST, CONTIGUOUS))
    shapes: tuple[tuple[str, tuple[int, ...], tuple[int, int], Mapping[str, Any]], ...] = (
        ("segformer 16 to 128", (4, 256, 16, 16), (128, 128), LINEAR),
        ("segformer 32 to 128", (4, 256, 32, 32), (128, 128), LINEAR),
        ("segformer 64 to 128", (4, 256, 64, 64), (128, 128), LINEAR),
        ("segformer logits", (4, 150, 128, 128), (512, 512), LINEAR),
        ("pyramid, nearest, twice", (4, 256, 80, 80), (160, 160), TWICE),
        ("cubic, twice", (4, 64, 128, 128), (256, 256), {"mode": "cubic"}),
        ("linear, smaller", (4, 64, 320, 320), (224, 224), LINEAR),
        ("linear, odd ratio", (4, 64, 100, 100), (170, 170), LINEAR),
    )
    return [Case(name, x, size, pair, attrs) for name, x, size, attrs in shapes for pair in layouts]


def measure(case: Case, target: Target) -> dict[str, Any]:
    site, tactic = case.site(target), TritonResize()
    x = torch.randn(case.x, device="cuda").to(getattr(torch, case.dtype))
    x = torch.empty_strided(case.x, site.specs["x"].strides, dtype=x.dtype, device="cuda").copy_(x)
    sizes = torch.tensor(case.size)
    (op,) = site.body.ops
    exact = call_floor(op, [x.double(), None, None, sizes])[0]
    # two roundings of the type, for a library that rounds between the axes; and coordinates in float32
    bound = EPSILON[case.dtype] * (1 + exact.abs()) + 2.0**-12
    graphs, kept, refused = [], [], []
    for config in require_offer(tactic, site).configs:
        try:
            launch = require_offer(tactic, site).bind(config, {})
            call, outputs = bound_call(launch, site, [x, None])
            made = outputs()[0]
            assert bool(((made.double() - exact).abs() <= bound).all()), "wrong"
            graphs.append(capture(call, CALLS))
            kept.append(dict(config))
        except Exception as problem:
            refused.append(f"{dict(config)}: {first_line(problem, 120)}")
    moved = site.specs["x"].nbytes + site.specs["y"].nbytes
    graphs += _peers(op, x, sizes, site, moved)
    times = [timing.median_us for timing in interleave_graphs(graphs, calls=CALLS)]
    ours, (torch_us, copy_us) = times[:-2], times[-2:]
    row: dict[str, Any] = {
        "case": case.name, "x": str(site.specs["x"]), "y": str(site.specs["y"]), "mode": case.attrs["mode"],
        "torch_us": round(torch_us, 2), "copy_us": round(copy_us, 2), "refused": refused,
    }  # fmt: skip
    if not ours:
        return row
    best = min(range(len(ours)), key=ours.__getitem__)
    return row | {
        "us": round(ours[best], 2), "config": kept[best], "tb_s": round(moved / ours[best] / 1e6, 2),
        "share_of_copy": round(copy_us / ours[best], 3), "against_torch": round(torch_us / ours[best], 2),
        "all_us": [[config, round(us, 2)] for config, us in zip(kept, ours, strict=True)],
    }  # fmt: skip


def _peers(op: Op, x: Tensor, sizes: Tensor, site: Site, moved: int) -> list[torch.cuda.CUDAGraph]:
    """PyTorch, in the layout that is wanted, and a copy of as many bytes."""
    source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
    to = torch.empty_like(source)
    is_last = site.specs["y"].layout == LAST
    wanted = torch.channels_last if is_last else torch.contiguous_format
    calls: Sequence[Callable[[], object]] = (
        lambda: call_floor(op, [x, None, None, sizes])[0].contiguous(memory_format=wanted),
        lambda: to.copy_(source),
    )
    return [capture(call, CALLS) for call in calls]


def compile_all(target: Target) -> str:
    """Every candidate at once, on every core."""
    tactic, kernels = TritonResize(), []
    for case in cases():
        offer = require_offer(tactic, case.site(target))
        kernels += [kernel for config in offer.configs for kernel in offer.kernels(config)]
    made = compile_kernels(kernels, target.arch)
    spilled = sum(isinstance(each, Compiled) and each.spills > 0 for each in made)
    failed = sum(not isinstance(each, Compiled) for each in made)
    return f"{len(kernels)} kernels, {spilled} spill, {failed} do not compile"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compile-only", metavar="ARCH", default="", help="compile for ARCH; needs no GPU")
    options = parser.parse_args()
    if options.compile_only:
        print(compile_all(Target("cuda", options.compile_only)))
        return
    device = current_device()
    target = Target("cuda", device.arch)
    print(device.key, compile_all(target), flush=True)
    rows = []
    for case in cases():
        row = measure(case, target)
        rows.append(row)
        print(
            f"{row['case']:26} {row['x']:28} {row['y'][-4:]:4} {row.get('us', float('nan')):8.2f} us "
            f"{row.get('share_of_copy', 0):6.1%} of copy, torch {row['torch_us']:8.2f} us "
            f"{row.get('config', '')} {'; '.join(row['refused'][:1])}",
            flush=True,
        )
    if options.out is not None:
        made = {
            "device": asdict(device), "torch": torch.__version__, "triton": triton_version(), "rows": rows,
        }  # fmt: skip
        options.out.write_text(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
