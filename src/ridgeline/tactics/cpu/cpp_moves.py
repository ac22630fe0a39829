"""Slice, Split, Concat, Pad and Gather as generated C++: a copy to known places costs no Python."""

from __future__ import annotations

from ridgeline.base.spec import Config, Site
from ridgeline.kernels.cpp.moves import find_moves, moves_source
from ridgeline.kernels.scalar.program import Program
from ridgeline.tactics.cpu.cpp import CppTactic


class CppMoves(CppTactic):
    """y = x at other places: boxes copied from strided to strided memory."""

    name = "cpp.moves"

    def _source(self, site: Site, config: Config) -> tuple[Program, str]:
        return moves_source(site, find_moves(site), threads=int(config["threads"]))
