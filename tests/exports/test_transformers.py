"""Transformers as their library exports them: right against torch and ONNX Runtime, their regions found.

One spelling per family here; `bench/exports.py` walks all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

# after the skips: these need both
from bench.exports import check
from bench.families import Export

FOUND = {
    Export("bert", "sdpa", 24, layers=1): {"Attention": 1, "LayerNormalization": 3, "Gelu": 1},
    Export("gpt2", "eager", 20, layers=1): {"Attention": 1, "LayerNormalization": 3, "Gelu": 1},
    Export("llama", "eager", 23, layers=1): {"Attention": 1, "RotaryEmbedding": 2, "RMSNormalization": 3},
    Export("vit", "sdpa", 18, layers=1): {"Attention": 1, "LayerNormalization": 3, "Gelu": 1},
    Export("clip", "eager", 24, layers=1): {"Attention": 2, "LayerNormalization": 7},
    Export("t5", "eager", 18, layers=1): {"Attention": 3, "RMSNormalization": 7, "Gelu": 2},
    Export("whisper", "sdpa", 23, layers=1): {"Attention": 3, "LayerNormalization": 7, "Gelu": 4},
    Export("bert", "eager", 18, "script", layers=1): {"Attention": 1, "LayerNormalization": 3, "Gelu": 1},
    Export("llama", "sdpa", 18, "script", layers=1): {
        "Attention": 1, "RotaryEmbedding": 2, "RMSNormalization": 3,
    },
    Export("t5", "sdpa", 18, "script", layers=1): {"Attention": 3, "RMSNormalization": 7, "Gelu": 2},
}  # fmt: skip


@pytest.mark.parametrize("export", FOUND, ids=lambda export: export.name)
def test_export_is_right_and_its_layers_are_found(export: Export, tmp_path: Path) -> None:
    row = check(export, tmp_path, levels=(0,))
    assert row.gate == "pass"
    assert row.found == FOUND[export]
