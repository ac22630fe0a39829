"""Resize as generated C++: nearest of any type, linear and cubic of float32."""

from __future__ import annotations

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Site
from ridgeline.kernels.cpp.resize import resize_source
from ridgeline.tactics.cpu.cpp import CppReading, GeneratedCpp, by_threads
from ridgeline.tactics.read.resize import read_resize


class CppResize(GeneratedCpp):
    """y[h, w] = Σ share · x[line, column]: nearest, linear and cubic, from tables."""

    name = "cpp.resize"

    def read(self, site: Site) -> CppReading:
        keys = [op.key for op in site.body.ops]
        if keys != ["Resize"]:
            raise RefusedError(f"the region is {' '.join(keys[:3])}, want Resize alone")
        found = read_resize(site)
        return CppReading(
            by_threads(site), lambda config: resize_source(found, threads=int(config["threads"]))
        )
