"""Writes docs/performance.md from the results of `bench/models.py`.

python bench/performance_page.py bench/results/h200-2026-11-15.json > docs/performance.md

Results of `bench/rows_gpu.py` and `bench/cross_gpu.py` that lie beside it, as rows-*.json and cross-*.json,
become tables of their own.
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
    "bert_base_s128_b32": "tensor cores. cuBLASLt called directly takes bias and residual in one kernel;"
    " the erf-GELU is fused behind our own GEMM (40.6 µs; 47.6 with the library's erf, 44.7 with Hastings')."
    " Tried: GEMMs on the bulk copy engine, with and without a persistent grid: level with cuBLAS at best"
    " (h200-tried-2026-11-15.json).",
    "vit_b16_b32": "the same products at 6304 rows, where tiles of 128 rows leave the last wave half empty;"
    " the GELU behind our own GEMM takes 72 µs, cuBLASLt with a second kernel 71. The patch convolution went"
    " from 67 to 24 µs when its sum began to run along the lines of the image.",
    "gpt2_s512_b8": "tensor cores: cuBLASLt takes every product and its tanh-GELU; own attention 18.5 µs.",
    "resnet50_b32": "memory: cuBLASLt takes the 1x1 convolutions, our own kernels and cuDNN share the 3x3.",
    "mobilenet_v2_b32": "memory.",
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
    "of the roofline", "steps", "build cold / warm s", "host µs bound / run", "MB stated / driver's",
)  # fmt: skip


def row_text(row: dict[str, Any]) -> str:
    peers = [row[key] for key in ("compile_ms", "eager_ms") if row.get(key)]
    ratio = min(peers) / row["ridgeline_ms"]
    wanted = WANTED.get(row["case"], 1.0)
    verdict = f"**{ratio:.2f}×**" if ratio >= wanted else f"{ratio:.3f}× (short)"
    warm = f"{row['build_warm_s']:.1f}" if "build_warm_s" in row else "–"
    memory = (row[key] / 1e6 for key in ("stated_bytes", "driver_bytes") if key in row)
    cells = [
        row["case"], f"{row['ridgeline_ms']:.4f}", _ms(row, "compile_ms"), _ms(row, "eager_ms"), verdict,
        f"{wanted:.2f}×", f"{row['bound_ms'] / row['ridgeline_ms']:.0%}", str(row["steps"]),
        f"{row['build_cold_s']:.1f} / {warm}", f"{row['host_us_bound']:.0f} / {row['host_us_run']:.0f}",
        " / ".join(f"{size:.0f}" for size in memory) or "–",
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
    place = Path(sys.argv[1])
    for kind, table in (("rows", rows_table), ("cross", cross_table)):
        beside = place.with_name(f"{kind}-{place.name}")
        if beside.exists():
            print("\n".join(table(json.loads(beside.read_text(encoding="utf-8")))))


def rows_table(made: dict[str, Any]) -> list[str]:
    columns = sorted({row["columns"] for row in made["rows"]})
    share = {(row["op"], row["columns"]): row for row in made["rows"]}
    lines = [
        "\n## Rows that are reduced\n",
        f"Share of the copy's bandwidth ({made['copy_tb_s']} TB/s in the same run), float16, 256 MiB in and"
        " out, the best cut of each; wanted: 90 % from 1,024 to 32,768 columns, else 75 %.\n",
        "| | " + " | ".join(f"{n:,}" for n in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for op in dict.fromkeys(row["op"] for row in made["rows"]):
        cells = [f"{share[op, n]['share_of_copy']:.1%}" for n in columns]
        lines.append(f"| {op} | " + " | ".join(cells) + " |")
    return lines


def cross_table(made: dict[str, Any]) -> list[str]:
    lines = [
        "\n## Engines built where no GPU is seen\n",
        "Loaded without Triton and without compiling; the first context settles what was predicted.\n",
        "| case | load s | settle s | cross-built ms | natively tuned ms | ratio |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    return lines + [
        f"| {r['case']} | {r['load_s']:.2f} | {r['settle_s']:.1f} | {r['cross_ms']:.4f} |"
        f" {r['native_ms']:.4f} | {r['cross_over_native']:.3f} |"
        for r in made["rows"]
    ]


if __name__ == "__main__":
    main()
