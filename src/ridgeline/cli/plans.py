"""From the path a user names to its plan: an engine file is read as text, an ONNX file is built.

Reading imports neither torch nor numpy: `ridge show`, `ridge explain` and `ridge kernels` start at once.
Findings of `ridge explain` that need the graph of an engine load it whole.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.cli.arguments import refuse_build_options
from ridgeline.cli.files import is_engine_file, require_engine_file, require_file
from ridgeline.cli.render import talk
from ridgeline.errors import PluginError
from ridgeline.runtime.description import Description, open_members, read_description

if TYPE_CHECKING:
    from ridgeline.kernels.triton.compiler import Compiled

if TYPE_CHECKING:
    from ridgeline.runtime.engine import Engine


def describe_file(path: Path) -> Description:
    """Plan, report and kernels of an engine file, and of nothing else."""
    require_engine_file(path)
    if not zipfile.is_zipfile(path):
        from ridgeline.cli.engines import load_file

        load_file(path)  # raises; it can tell a model from a damaged file
    return read_description(path)


def describe_with_kernels(path: Path) -> Description:
    """As `describe_file`; kernels that the file lacks are compiled, which takes the whole engine."""
    described = describe_file(path)
    needed = {digest for step in described.plan.steps for digest in step.kernels}
    _, manifest = open_members(path)
    if not needed <= described.kernels.keys():
        from ridgeline.cli.engines import compile_steps, load_file

        described = replace(described, kernels={**compile_steps(load_file(path)), **described.kernels})
    if manifest.plugins and described.plan.target.traits.is_gpu:
        described = replace(described, kernels={**described.kernels, **_plugin_kernels(path)})
    return described


def _plugin_kernels(path: Path) -> Mapping[str, Compiled]:
    """Of CUDA C++, which is not in the file: the plugin makes them again, if it is here."""
    from ridgeline.cli.engine_kernels import compile_plugin_steps
    from ridgeline.cli.engines import load_file

    try:
        return compile_plugin_steps(load_file(path))
    except (PluginError, OSError) as error:
        why = error.what if isinstance(error, PluginError) else str(error)
        talk.print(f"note: kernels of plugins in CUDA C++ are not listed: {why}", style="yellow")
        return {}


def describe_or_build(
    path: Path, options: Mapping[str, Any], *, needs_graph: bool
) -> tuple[Description, Engine | None]:
    """Of either kind of file; with the engine where it was built, or its graph is asked for."""
    require_file(path)
    if is_engine_file(path) and not needs_graph:
        described = describe_file(path)
        refuse_build_options(path, options, planned_threads=described.plan.target.threads)
        return described, None
    from ridgeline.cli.engines import load_or_build

    engine = load_or_build(path, options)
    return Description(engine.plan, engine.report, kernels={}), engine
