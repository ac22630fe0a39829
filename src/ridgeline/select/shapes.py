"""Shapes to plan for: those of the profiles, else the first guess that the model takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Protocol

import onnx_ir as ir
from torch import Tensor

from ridgeline.base.guards import Term, broken
from ridgeline.base.spec import Port, Target, TensorSpec
from ridgeline.base.tuning_points import Corner
from ridgeline.errors import BuildError, LimitError, OptionError, PluginError, UnsupportedError, first_line
from ridgeline.frontend.from_onnx import Loaded
from ridgeline.frontend.from_torch import Sample
from ridgeline.frontend.ports import guessed_shapes, ports
from ridgeline.frontend.profiles import (
    Resolved,
    profile_shapes,
    resolve_profile,
    shapes_text,
    with_names_that_fit,
    with_own_names,
    with_values,
)
from ridgeline.frontend.tuned_parts import tuned_parts
from ridgeline.ir.infer import Inferred
from ridgeline.options import ENDS_FROM_LEVEL, DimRange, Options, Ranges
from ridgeline.passes.shape_inputs import shape_inputs
from ridgeline.plan.plan import Plan
from ridgeline.runtime.examples import example_feeds
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.weights import default_of
from ridgeline.select.shape_search import MOST_SECONDS, ShapeSearch

# of inputs whose sizes nobody gave: guesses that settle and take more than this are not tried
GUESSED_BYTES = 1 << 28


@dataclass(frozen=True)
class Shapes:
    """The inputs' signature, and the concrete shapes a build works with."""

    inputs: tuple[Port, ...]
    opt: Mapping[str, TensorSpec]
    low: Mapping[str, TensorSpec] | None
    high: Mapping[str, TensorSpec] | None
    is_guess: bool = False
    profile: Resolved = field(default_factory=Resolved)
    # shape tensors left open: the op that reads each
    sized_by: Mapping[str, str] = field(default_factory=dict)
    guards: tuple[Term, ...] = ()
    # of a profile that is tuned at several points: the sizes that this one takes
    part: Mapping[str, Ranges] = field(default_factory=dict)
    is_further: bool = False  # another point of the same profile came before

    @staticmethod
    def of(plan: Plan) -> Shapes:
        """Those that an engine was planned for."""
        profile = Resolved(shapes=dict(plan.profile), values=dict(plan.value_profile))
        tensors = [port for port in plan.inputs if not port.is_non_tensor]
        low, high = (profile_shapes(tensors, profile, which) for which in ("min", "max"))
        return Shapes(plan.inputs, plan.planned_shapes, low, high, profile=profile)

    @property
    def are_fixed(self) -> bool:
        """No dimension can ever take another size."""
        if all(isinstance(d, int) for port in self.inputs for d in (port.dims or ("?",))):
            return True
        return self.low is not None and self.low == self.high

    @property
    def other_corners(self) -> list[Mapping[str, TensorSpec]]:
        """The profile's ends, where they are not the planned shapes."""
        return [corner for corner in (self.low, self.high) if corner is not None and corner != self.opt]


class Original(Protocol):
    """The model as somebody else runs it."""

    def open(self) -> None:
        """Raise if nobody can run it."""

    def run(self, feeds: Mapping[str, Any], *, keep: bool = False) -> object: ...


def choose_every_shapes(
    loaded: Loaded,
    inference: Inference,
    reference: Original | None,
    options: Options,
    sample: Sample | None = None,
    guards: Sequence[Term] = (),
) -> list[Shapes]:
    """Shapes to plan for, one set for each profile, or for each part of one that has several points.

    What a profile leaves open, a sample call may tell.
    """
    inputs = with_own_names(ports(loaded.model.graph.inputs, what="input"), options.profiles)
    sized_by = shape_inputs(inference.program, inputs)
    profiles = [resolve_profile(inputs, profile) for profile in options.profiles or ({},)]
    for name in {name: None for profile in profiles for name in profile.values}:
        if name not in sized_by:
            raise OptionError(
                f"values are given for input {name!r}, and no shape depends on them",
                help="leave them out: it is data, and any value will do",
            )
    made = []
    usual: tuple[Corner, ...] = ("min", "max") if options.level >= ENDS_FROM_LEVEL else ()
    tensors = [port for port in inputs if not port.is_non_tensor]

    def why_not(part: Resolved) -> list[str]:
        specs = profile_shapes(tensors, part, "opt")
        if specs is None:
            return []
        rows = broken(guards, {name: spec.shape for name, spec in specs.items()})
        return rows or ([] if options.tune_at is not None else refusals_at(specs, inference, reference))

    every_part = tuned_parts(inputs, profiles, options.tune_at, usual, why_not)
    for profile, parts in zip(profiles, every_part, strict=True):
        open_ = [name for name in sized_by if name not in profile.values]
        made += [
            replace(
                choose_shapes(inputs, part, inference, reference, sample, sized_by),
                profile=profile,
                part=part.shapes if len(parts) > 1 else {},
                is_further=part is not parts[0],
                sized_by={name: sized_by[name].op_type for name in open_},
                guards=tuple(guards),
            )
            for part in parts
        ]
    return made


def refusals_at(
    specs: Mapping[str, TensorSpec], inference: Inference, reference: Original | None
) -> list[str]:
    """Why the model cannot be timed at shapes that nobody asked for: they are empty, or do not fit."""
    try:
        inference.at(specs)
        if reference is not None:
            reference.run(example_feeds(inference, specs, seed=0), keep=True)
    except (LimitError, PluginError):
        raise
    except Exception as error:  # whatever the model has against them
        return [first_line(error)]
    return [f"{name} is empty" for name, spec in specs.items() if not spec.numel]


def choose_shapes(
    inputs: tuple[Port, ...],
    profile: Resolved,
    inference: Inference,
    reference: Original | None,
    sample: Sample | None,
    sized_by: Collection[str],
) -> Shapes:
    """The profile's shapes, those of a sample call, else the first guess that the model takes."""
    tensors = [port for port in inputs if not port.is_non_tensor]
    corners = {which: profile_shapes(tensors, profile, which) for which in ("min", "opt", "max")}
    opt = corners["opt"]
    if opt is not None:
        inference.at(opt)
        return Shapes(inputs, opt, corners["min"], corners["max"], profile=profile)
    if sample is not None:
        return Shapes(inputs, sample_shapes(tensors, profile, sample), None, None, profile=profile)
    if reference is not None:
        reference.open()
    guess = _first_guess(tensors, profile, inference, reference, sized_by)
    named = with_names_that_fit(inputs, guess)
    return Shapes(named, guess, None, None, is_guess=True, profile=profile)


def _first_guess(
    tensors: Sequence[Port],
    profile: Resolved,
    inference: Inference,
    reference: Original | None,
    sized_by: Collection[str],
) -> dict[str, TensorSpec]:
    """The first guess that the model takes, or an error that lists what was tried."""
    problems: dict[str, str] = {}
    over: list[LimitError] = []
    # where every guess leaves some value empty, that value may be empty at any size: the first will do
    spare: list[dict[str, TensorSpec]] = []
    guesses = list(guessed_shapes(tensors, _sizes_of_defaults(tensors, inference.weights) | profile.symbols))
    open_ = [port for port in tensors if port.name not in profile.shapes and port.name not in profile.values]
    moving = [p.name for p in open_ if p.dims is None or not all(isinstance(d, int) for d in p.dims)]
    search = ShapeSearch(open_, guesses, inference)
    for guess in chain(guesses, spare, search):
        guess = with_values(guess, profile, "opt")
        is_spare = guess in spare
        if shapes_text(guess) in problems and not is_spare:
            continue
        if sum(guess[name].nbytes for name in moving if name in guess) > GUESSED_BYTES:
            problems[shapes_text(guess)] = f"a guess of more than {GUESSED_BYTES:,} bytes"
            continue
        try:
            empty = empty_values(inference.at(guess), inference.weights)
            if empty and not is_spare:
                problems[shapes_text(guess)] = f"{empty[0]!r} would be empty"
                spare.append(guess)
                continue
            if reference is not None:
                reference.run(example_feeds(inference, guess, seed=0), keep=True)
        except Exception as error:  # not a shape this model takes: the next guess may be
            if isinstance(error, LimitError) and error.limit == "loop_trips":
                raise  # another shape would take as long to fail
            problems[shapes_text(guess)] = first_line(error)
            over += [error] if isinstance(error, LimitError) else []
            continue
        return guess
    if over and len(over) == len(problems):
        raise over[0]
    raise BuildError(
        "no shape could be guessed that this model takes",
        rows=[
            *([f"the search was stopped after {MOST_SECONDS:.0f} s"] if search.is_cut_short else []),
            *(f"{text}: {problem}" for text, problem in problems.items()),
        ],
        help=f"say which: ridge build MODEL {_open_flags(tensors, profile, sized_by)}",
    )


def _sizes_of_defaults(inputs: Sequence[Port], weights: Mapping[str, Tensor]) -> dict[str, DimRange]:
    """Open dims as they are when a call leaves an input out."""
    made = {}
    for port in inputs:
        default = default_of(weights, port.name)
        for dim, size in zip(port.dims or (), () if default is None else default.shape, strict=False):
            if isinstance(dim, str):
                made[dim] = DimRange(size, size, size)
    return made


def sample_shapes(inputs: Sequence[Port], profile: Resolved, sample: Sample) -> dict[str, TensorSpec]:
    """Shapes of a sample call; a dim that the profile names has the profile's size."""
    made = {}
    for port in inputs:
        sizes = tuple(sample.feeds[port.name].shape)
        dims = port.dims if port.dims is not None else sizes
        given = [profile.symbols.get(dim) if isinstance(dim, str) else None for dim in dims]
        shape = tuple(size if r is None else r.opt for size, r in zip(sizes, given, strict=True))
        made[port.name] = TensorSpec(port.dtype, shape)
    return with_values(made, profile, "opt")


def require_tensors(model: ir.Model, target: Target) -> None:
    """A GPU holds numbers only."""
    every = (*ports(model.graph.inputs, what="input"), *ports(model.graph.outputs, what="output"))
    rows = [f"{port.name}: {port}" for port in every if port.is_non_tensor]
    if rows and target.traits.is_gpu:
        raise UnsupportedError("a GPU takes and gives tensors of numbers", rows=rows, help="--target cpu")


def empty_values(inferred: Inferred, weights: Mapping[str, Tensor]) -> list[str]:
    """What a guess leaves nothing of: most likely no shape the model was made for."""
    return [n for n, spec in inferred.specs.items() if not spec.numel and n not in weights]


def _open_flags(inputs: Sequence[Port], profile: Resolved, sized_by: Collection[str]) -> str:
    """What was not given, with a blank where only the user knows the number."""
    flags = []
    for port in inputs:
        if port.name in profile.shapes or port.name in profile.values:
            continue
        if port.name in sized_by:
            length = port.dims[0] if port.dims and isinstance(port.dims[0], int) else 1
            flags.append(f"--shapes '{port.name}=[{', '.join('…' * length)}]'")
        elif port.dims is None or any(isinstance(dim, str) for dim in port.dims):
            dims = port.dims if port.dims is not None else ("…",)
            flags.append(
                f"--shapes {port.name}={'x'.join(str(d) if isinstance(d, int) else '…' for d in dims)}"
            )
    values = " (in brackets: the values of a shape tensor)" if any("[" in flag for flag in flags) else ""
    return " ".join(flags) + values
