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
from ridgeline.runtime.description import Description, read_description

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
    if needed <= described.kernels.keys():
        return described
    from ridgeline.cli.engines import compile_steps, load_file

    return replace(described, kernels={**compile_steps(load_file(path)), **described.kernels})


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
