"""`ridge kernels` lists the kernels of plugins as well: in Triton, and in CUDA C++, which no plan lists."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path

import onnx.parser
import pytest

import ridgeline
from ridgeline.plugins import CATALOG, unregister
from ridgeline.plugins.gpu_tactics import has_nvrtc

Ridge = Callable[..., tuple[int, str, str]]
EXAMPLE = Path(__file__).parents[2] / "examples" / "plugins" / "04_cuda_op" / "acme_histogram.py"
MODEL = """<ir_version: 11, opset_import: ["": 23, "acme.image": 1]>
g (uint8[64,4096] x) => (int32[64,256] y) { y = acme.image.Histogram (x) }"""


@pytest.mark.skipif(not has_nvrtc(), reason="cuda-core is not installed, which brings NVRTC")
def test_a_kernel_in_cuda_is_compiled_again_and_listed(ridge: Ridge, here: Path) -> None:
    before = {plugin.name for plugin in CATALOG.plugins()}
    runpy.run_path(str(EXAMPLE))["register"]()
    ridgeline.build(onnx.parser.parse_model(MODEL), target="cuda:sm_90", level=1).save(here / "g.ridge")
    code, stdout, stderr = ridge("kernels", "g.ridge", "--json")
    assert code == 0, stderr
    report = json.loads(stdout)
    (row,) = report["kernels"]
    assert (row["name"], row["tactic"], row["steps"]) == ("histogram", "acme.histogram.cuda", [1])
    assert row["registers"] > 0
    assert row["shared_bytes"] == 256 * 4, "what the source declares"
    assert row["warps"] == 8
    assert "narrow loads" in {finding["name"] for finding in row["findings"]}, "it loads bytes"
    assert report["library_steps"] == 0
    assert "ATOMS" in ridge("kernels", "g.ridge", "--sass", "histogram")[1]
    code, _, stderr = ridge("kernels", "g.ridge", "--ptx", "histogram")
    assert code == 1
    assert "--sass shows them" in stderr
    for name in {plugin.name for plugin in CATALOG.plugins()} - before:
        unregister(name)
    code, stdout, stderr = ridge("kernels", "g.ridge", "--json")
    assert (code, json.loads(stdout)["kernels"]) == (0, [])
    assert "not listed" in stderr
