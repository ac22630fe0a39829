"""From the path a user names to an engine: a `.ridge` file is loaded, an ONNX file is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.base.spec import Target, TensorSpec
from ridgeline.builder import build, load_engine
from ridgeline.cli.arguments import refuse_build_options
from ridgeline.cli.files import is_engine_file, require_engine_file, require_file
from ridgeline.cli.progress import StageProgress
from ridgeline.cli.render import talk
from ridgeline.errors import OptionError, did_you_mean
from ridgeline.kernels.triton.compiler import Compiled
from ridgeline.options import DimRange, make_options, parse_profile
from ridgeline.plan.plan import Plan
from ridgeline.runtime.embedded_kernels import collect
from ridgeline.runtime.engine import Engine
from ridgeline.targets import target_named


def build_engine(model: Path, options: Mapping[str, Any]) -> Engine:
    """Build with progress on stderr."""
    with StageProgress(talk) as progress:
        return build(model, **options, progress=progress)


def load_file(path: Path, *, trust: bool = False) -> Engine:
    """An engine file, and nothing else."""
    require_engine_file(path)
    return load_engine(path, trust=trust)


def load_or_build(path: Path, options: Mapping[str, Any], *, trust: bool = False) -> Engine:
    """The engine of either kind of file. Build options beside an engine file are errors, not ignored."""
    require_file(path)
    if not is_engine_file(path):
        return build_engine(path, options)
    engine = load_engine(path, trust=trust, limits=options.get("limits"))
    refuse_build_options(path, options, planned_threads=engine.plan.target.threads)
    return engine


def target_of(path: Path, options: Mapping[str, Any]) -> Target | None:
    """The machine that a model will be built for; None for an engine, which says it itself."""
    require_file(path)
    return None if is_engine_file(path) else target_named(make_options(dict(options)))


def compile_steps(engine: Engine) -> dict[str, Compiled]:
    """The GPU kernels of the engine's steps, by digest, compiled where the cache does not have them."""
    return collect(engine.planned_sites(), engine.fused.tactics, engine.fused.kernels.store)


def complete_feeds(
    engine: Engine, given: Mapping[str, np.ndarray], *, seed: int, sizes: Mapping[str, str] | None = None
) -> dict[str, np.ndarray]:
    """The given arrays, and random ones for the other inputs, which a note on stderr names.

    `sizes` are shapes for those, as `--shapes` has them; of a range, the size to tune for.
    """
    known = [port.name for port in engine.plan.inputs]
    for name in (*given, *(sizes or ())):
        if name not in known:
            raise OptionError(f"the engine has no input {name!r}", help=did_you_mean(name, known))
    missing = [name for name in known if name not in given]
    if not missing:
        return dict(given)
    shapes = {name: array.shape for name, array in given.items()} | _asked_shapes(sizes or {})
    random = engine.example_inputs(seed=seed, shapes=_shapes_beside(engine.plan, shapes))
    talk.print(f"random values (seed {seed}) for {', '.join(missing)}", style="dim", highlight=False)
    return {name: given[name] if name in given else random[name] for name in known}


def run_shapes(plan: Plan, sizes: Mapping[str, str]) -> dict[str, TensorSpec]:
    """The shapes to run at: those of `--shapes`, and the planned ones for the other inputs."""
    known = [port.name for port in plan.inputs]
    for name in sizes:
        if name not in known:
            raise OptionError(f"the engine has no input {name!r}", help=did_you_mean(name, known))
    return _shapes_beside(plan, _asked_shapes(sizes))


def require_same_sizes(given: Mapping[str, np.ndarray], sizes: Mapping[str, str]) -> None:
    """Raise if an array of the user's has another shape than `--shapes` asks for."""
    for name, shape in _asked_shapes(sizes).items():
        if name in given and given[name].shape != shape:
            raise OptionError(
                f"the array given for {name!r} has another shape than --shapes",
                got="x".join(map(str, given[name].shape)),
                want="x".join(map(str, shape)),
            )


def tell_notes(engine: Engine) -> None:
    """Print what did not go as planned on this machine. It is known after the engine has run."""
    for note in dict.fromkeys(engine.notes):
        talk.print(f"note: {note}", style="yellow")


def _asked_shapes(sizes: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for name, dims in parse_profile(sizes).items():
        if not all(isinstance(dim, DimRange) for dim in dims):
            raise OptionError(f"--shapes gives values for {name!r}", want="sizes, such as x=1x3x224x224")
        found[name] = tuple(dim.opt for dim in dims)
    return found


def _shapes_beside(plan: Plan, given: Mapping[str, Sequence[int]]) -> dict[str, TensorSpec]:
    """The planned shapes, with named dims at the sizes that these shapes have."""
    sizes: dict[int | str, int] = {}
    for port in plan.inputs:
        if port.name in given and port.dims is not None:
            sizes.update(zip(port.dims, given[port.name], strict=False))
    specs = {}
    for port in (port for port in plan.inputs if not port.is_non_tensor):
        planned = plan.planned_shapes[port.name]
        dims = port.dims if port.dims is not None else planned.shape
        pairs = zip(dims, planned.shape, strict=True)
        shape = tuple(sizes.get(dim, size) if isinstance(dim, str) else size for dim, size in pairs)
        shape = tuple(given.get(port.name, shape))
        # a shape tensor keeps its planned values if its length stays
        specs[port.name] = planned if shape == planned.shape else TensorSpec(planned.dtype, shape)
    return specs
