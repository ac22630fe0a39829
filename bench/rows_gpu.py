"""Row kernels against a copy: softmax, LayerNorm and RMSNorm at 128 to 262,144 columns, best cut of each.

python bench/rows_gpu.py --out bench/results/rows-h200-2026-11-15.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.gpu_timing import capture, interleave_graphs
from ridgeline.base.spec import Body, Config, Op, Site, Target, TensorSpec
from ridgeline.kernels.triton.source import triton_version
from ridgeline.runtime.device import current_device
from ridgeline.select.graph_replay import bound_call
from ridgeline.tactics.cuda.triton_codegen import TritonRows
from ridgeline.tactics.offer import precompile, require_offer

COLUMNS = (128, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
ELEMENTS = 1 << 27  # 256 MiB in, 256 MiB out: several times the L2
OPS = {
    "Softmax": Op("Softmax", ("x",), ("y",), {"axis": -1}),
    "LayerNormalization": Op("LayerNormalization", ("x", "scale", "bias"), ("y",), {"axis": -1}),
    "RMSNormalization": Op("RMSNormalization", ("x", "scale"), ("y",), {"axis": -1}),
}


def make_site(op: Op, rows: int, columns: int, target: Target) -> Site:
    specs = {name: TensorSpec("float16", (columns,)) for name in op.inputs[1:]}
    specs |= {name: TensorSpec("float16", (rows, columns)) for name in ("x", "y")}
    weights = frozenset(op.inputs[1:])
    return Site(Body(op.inputs, ("y",), (op,)), specs, weights, {}, target, name=op.op_type)


def reference(op: Op, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
    wide = x.float()
    if op.op_type == "Softmax":
        return torch.softmax(wide, -1)
    if op.op_type == "LayerNormalization":
        centred = wide - wide.mean(-1, keepdim=True)
        unit = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return unit * weights["scale"].float() + weights["bias"].float()
    return wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights["scale"].float()


def measure(op: Op, columns: int, target: Target, copy_us: float) -> dict[str, Any]:
    rows = ELEMENTS // columns
    site, tactic = make_site(op, rows, columns, target), TritonRows()
    configs = require_offer(tactic, site).configs
    x = torch.randn(rows, columns, device="cuda").half()
    weights = {name: torch.randn(columns, device="cuda").half() for name in op.inputs[1:]}
    sample = reference(op, x[:4], weights)
    graphs, kept, refused = [], [], []
    for config in configs:
        try:
            launch = require_offer(tactic, site).bind(config, weights)
            call, outputs = bound_call(launch, site, [x, *weights.values()])
            error = float((outputs()[0][:4].float() - sample).abs().max() / sample.abs().max())
            assert error < 4e-3, f"off by {error}"
            assert not outputs()[0][-1].isnan().any(), "the last row has values that were never written"
            graphs.append(capture(call))
            kept.append(config)
        except Exception as problem:
            refused.append(f"{dict(config)}: {problem}"[:200])
    times = [t.median_us for t in interleave_graphs(graphs, rounds=5)]
    best = min(range(len(times)), key=times.__getitem__)
    return {
        "op": op.op_type, "columns": columns, "rows": rows, "us": round(times[best], 1),
        "share_of_copy": round(copy_us / times[best], 3), "wanted_share": wanted_share(columns),
        "cut": cut_name(kept[best]), "config": dict(kept[best]),
        "tb_s": round(4 * ELEMENTS / times[best] / 1e6, 2), "refused": refused,
        "all_us": {cut_name(config): round(us, 1) for config, us in zip(kept, times, strict=True)},
    }  # fmt: skip


def wanted_share(columns: int) -> float:
    return 0.9 if 1024 <= columns <= 32768 else 0.75


def cut_name(config: Config) -> str:
    """Such as `shared 4 x 16384, 8 warps`."""
    cols, splits, warps = config["cols"], config["splits"], config["warps"]
    if config["held"]:
        piece = int(config["held"]) * int(cols)
        return f"{'shared' if int(splits) > 1 else 'held'} {splits} x {piece}, {warps} warps"
    kind = "whole" if config["whole"] else "split" if int(splits) > 1 else "loop"
    return f"{kind} {config['rows']} x {cols}{f' in {splits}' if int(splits) > 1 else ''}, {warps} warps"


def compile_all(target: Target) -> float:
    """Every candidate of every row, all cores at once; what fails is refused where it is measured."""
    start, tactic = perf_counter(), TritonRows()
    sites = [make_site(op, ELEMENTS // n, n, target) for op in OPS.values() for n in COLUMNS]
    offers = [(site, require_offer(tactic, site)) for site in sites]
    precompile([(tactic, site, offer, config) for site, offer in offers for config in offer.configs])
    return round(perf_counter() - start, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = current_device()
    target = Target("cuda", device.arch, 1)
    compile_s = compile_all(target)
    a = torch.randn(ELEMENTS, device="cuda").half()
    b = torch.empty_like(a)
    copy_us = interleave_graphs([capture(lambda: b.copy_(a))], rounds=9)[0].median_us
    made: dict[str, Any] = {
        "device": asdict(device), "torch": torch.__version__, "triton": triton_version(),
        "copy_tb_s": round(4 * ELEMENTS / copy_us / 1e6, 2), "compile_s": compile_s, "rows": [],
    }  # fmt: skip
    print(device.key, "copy", made["copy_tb_s"], "TB/s, compiled in", compile_s, "s", flush=True)
    for op in OPS.values():
        for columns in COLUMNS:
            row = measure(op, columns, target, copy_us)
            made["rows"].append(row)
            shown = f"{row['op']:20} {columns:7} {row['tb_s']:5.2f} TB/s {row['share_of_copy']:6.1%} of copy"
            print(shown, f"(want {row['wanted_share']:.0%})", row["cut"], *row["refused"][:1], flush=True)
    if args.out is not None:
        args.out.write_text(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
