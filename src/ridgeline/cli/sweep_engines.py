"""Engines for `ridge bench --sweep`: one that covers every size, or one for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ridgeline.analyze.bench_sweep import Sweep, find_dim, require_sizes, sweep_profile
from ridgeline.cli.engines import build_engine, load_or_build
from ridgeline.cli.files import is_engine_file, require_file
from ridgeline.errors import OptionError
from ridgeline.frontend.from_onnx import load
from ridgeline.frontend.ports import ports
from ridgeline.options import parse_profile
from ridgeline.plugins.entry_points import load_plugins
from ridgeline.runtime.engine import Engine


def engines_for(
    path: Path, asked: Sweep, options: Mapping[str, Any], *, rebuild: bool, trust: bool
) -> tuple[Callable[[int], Engine], Sweep]:
    """The engine to run at a size, and the sweep with the dim's own name."""
    require_file(path)
    if is_engine_file(path):
        if rebuild:
            raise OptionError(
                f"{path} is built already, and --rebuild builds",
                help="name the ONNX file instead of the engine",
            )
        engine = load_or_build(path, options, trust=trust)
        wanted = Sweep(find_dim(engine.plan.inputs, asked.dim), asked.sizes)
        require_sizes(engine.plan, wanted.dim, wanted.sizes)
        return (lambda _: engine), wanted
    load_plugins()
    inputs = ports(load(path).model.graph.inputs, what="input")
    wanted = Sweep(find_dim(inputs, asked.dim), asked.sizes)
    given = parse_profile(options.get("profiles") or {})

    def build(*sizes: int) -> Engine:
        profile = sweep_profile(inputs, wanted.dim, sizes, given)
        return build_engine(path, {**options, "profiles": profile})

    if rebuild:
        return build, wanted
    engine = build(*wanted.sizes)
    return (lambda _: engine), wanted
