"""Writes docs/performance.md from the results of `bench/models.py`.

python bench/performance_page.py bench/results/h200-2026-11-15.json > docs/performance.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

WANTED = {
    "resnet50_b1": 1.05, "resnet50_b32": 1.0, "bert_base_s128_b1": 1.15, "bert_base_s128_b32": 1.12,
    "vit_b16_b1": 1.35, "vit_b16_b32": 1.3, "mobilenet_v2_b1": 1.0, "mobilenet_v2_b32": 1.0,
    "gpt2_s512_b1": 1.15, "gpt2_s512_b8": 1.1,
}  # fmt: skip
# what holds a row back, and what was tried against it
LIMITS = {
    "bert_base_s128_b32": "tensor cores and the erf-GELU between them: own GEMM reads through cp.async and"
    " trails cuBLAS by 25-35 % at 4096 rows, cuBLAS leaves the GELU to a second kernel. Tried: a shorter erf"
    " (FFN1 47.6 to 44.7 µs). Next: a persistent GEMM on the bulk copy engine with an overlapped epilogue.",
    "vit_b16_b32": "the same products at 6304 rows, and the patch convolution (67 µs, a product of 12 µs in"
    " disguise: its input was read three channels at a time). Since then its sum runs along the lines of the"
    " image; not yet timed.",
    "gpt2_s512_b8": "tensor cores: 71 % of the roofline; cuBLAS takes the products, own attention 19 µs.",
    "resnet50_b32": "memory: 68 % of the roofline; cuDNN takes the 3x3 convolutions.",
    "mobilenet_v2_b32": "memory: 77 % of the roofline.",
}
BATCH_1 = "latency: kernels of 1.2 to 6 µs, each with its ramp; dependent launch hides most of the gaps."

HEAD = """# Performance on a GPU

{device}, CUDA {cuda}, torch {torch}, Triton {triton}, {date}. {note}

Measured ceilings in the same runs: copy {copy} TB/s, fp16 product {product} TFLOP/s. The roofline is the
plan's: each step at the copy's bandwidth or the product's rate, whichever takes longer. Peers: eager captured
in a CUDA graph; `torch.compile` with freezing, captured in a CUDA graph. ONNX Runtime's GPU build was not on
that machine.
Every row's engine was verified against the model in float32.
"""
COLUMNS = (
    "case", "ridgeline ms", "torch.compile ms", "eager + graph ms", "against the best", "wanted",
    "of the roofline", "steps", "build cold / warm s", "host µs bound / run",
)  # fmt: skip


def row_text(row: dict[str, Any]) -> str:
    peers = [row[key] for key in ("compile_ms", "eager_ms") if row.get(key)]
    ratio = min(peers) / row["ridgeline_ms"]
    wanted = WANTED.get(row["case"], 1.0)
    verdict = f"**{ratio:.2f}×**" if ratio >= wanted else f"{ratio:.3f}× (short)"
    warm = f"{row['build_warm_s']:.1f}" if "build_warm_s" in row else "–"
    cells = [
        row["case"], f"{row['ridgeline_ms']:.4f}", _ms(row, "compile_ms"), _ms(row, "eager_ms"), verdict,
        f"{wanted:.2f}×", f"{row['bound_ms'] / row['ridgeline_ms']:.0%}", str(row["steps"]),
        f"{row['build_cold_s']:.1f} / {warm}", f"{row['host_us_bound']:.0f} / {row['host_us_run']:.0f}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _ms(row: dict[str, Any], key: str) -> str:
    return f"{row[key]:.4f}" if row.get(key) else "–"


def main() -> None:
    made = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    device, ceilings = made["device"], made["ceilings"]
    print(HEAD.format(
        device=device["name"], cuda=device["cuda"], torch=made["torch"], triton=made["triton"],
        date=made["date"], note=made["note"], copy=ceilings["copy_tb_s"], product=ceilings["fp16_tflop_s"],
    ))  # fmt: skip
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---|" + "---:|" * (len(COLUMNS) - 1))
    for row in made["rows"]:
        print(row_text(row))
    print("\n## What limits each row\n")
    for row in made["rows"]:
        limit = LIMITS.get(row["case"], BATCH_1)
        tactics = ", ".join(f"{count} {name}" for name, count in row["tactics"].items())
        print(f"- **{row['case']}**: {limit} Steps: {tactics}.")


if __name__ == "__main__":
    main()
