"""The gate before a plugin's tactic is timed: a run between guard bytes, compared with the reference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.spec import EPSILON, Config, Site, TensorSpec
from ridgeline.errors import PluginError
from ridgeline.frontend.opsets import CANONICAL_OPSET
from ridgeline.kernels.elements import TORCH_DTYPES, cloned, fill
from ridgeline.kernels.triton.compiler import COMPILED_HERE, KernelStore
from ridgeline.plugins.catalog import Plugin, blaming, is_same, spec_of
from ridgeline.tactics.aten import compile_body
from ridgeline.tactics.base import Bind, Launch, Offer, Refused, Tactic
from ridgeline.tactics.fallback import Surroundings

BAND = 4096  # guard bytes on either side
GUARD = 0xA5
UNWRITTEN = 0xFF  # NaN in every float type


class Guarded:
    """A block of memory between two bands of guard bytes."""

    def __init__(self, nbytes: int, device: torch.device | str) -> None:
        self.whole = torch.full((nbytes + 2 * BAND,), GUARD, dtype=torch.uint8, device=device)
        self.inner = self.whole[BAND : BAND + nbytes].fill_(UNWRITTEN)

    def tensor(self, spec: TensorSpec) -> Tensor:
        flat = self.inner.view(TORCH_DTYPES[spec.dtype])
        return flat.as_strided(spec.shape, spec.strides, flat.storage_offset())

    def damage(self) -> str:
        """Which guard bytes were written over; "" where none was."""
        before = (self.whole[:BAND] != GUARD).nonzero()
        after = (self.whole[BAND + self.inner.numel() :] != GUARD).nonzero()
        sides = ((before, "before its start"), (after, "after its end"))
        return ", ".join(f"{len(found)} bytes {where}" for found, where in sides if len(found))


# filled while a launch is examined: its workspaces then lie between guard bytes
_EXAMINED: ContextVar[list[Guarded] | None] = ContextVar("_EXAMINED", default=None)


@contextmanager
def _examining() -> Iterator[list[Guarded]]:
    made: list[Guarded] = []
    token = _EXAMINED.set(made)
    try:
        yield made
    finally:
        _EXAMINED.reset(token)


def make_workspace(nbytes: int, device: str) -> Tensor:
    """Memory that a call may use as it likes."""
    examined = _EXAMINED.get()
    if examined is None:
        return torch.empty(nbytes, dtype=torch.uint8, device=device)
    examined.append(Guarded(nbytes, device))
    return examined[-1].inner


class GatedTactic(Tactic):
    """A tactic of a plugin: its offers are checked, and its launches are examined before they are timed."""

    is_examined = True

    def __init__(self, tactic: Tactic, plugin: Plugin, store: KernelStore = COMPILED_HERE) -> None:
        has_store = is_dataclass(tactic) and "store" in {field.name for field in fields(tactic)}
        self.tactic: Tactic = replace(tactic, store=store) if has_store else tactic  # type: ignore[type-var]
        self.plugin, self.name, self.store = plugin, tactic.name, store
        self.takes_open_shapes, self.takes_spans = tactic.takes_open_shapes, tactic.takes_spans
        self.pair_ops = tactic.pair_ops
        self.spins_threads, self.runs_on = tactic.spins_threads, tactic.runs_on

    def offer(self, site: Site) -> Offer | Refused:
        made: Any = self.tactic.offer(site)
        if isinstance(made, Refused) and isinstance(made.reason, str) and made.reason:
            return made
        if not isinstance(made, Offer):
            return Refused(f"answers {made!r}, want an Offer, or a reason why not")
        wrong = [config for config in made.configs if not _is_config(config)]
        if wrong or not made.configs:
            return Refused(
                f"its configs are {wrong or 'none'}, want settings by name: numbers, texts, truths"
            )
        return replace(made, bind=partial(self._bind, made.bind))

    def _bind(self, bind: Bind, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        with blaming(f"plugin {self.plugin}: {self.name}"):
            return bind(config, weights)

    def examine(self, site: Site, launch: Launch, inputs: Sequence[Any]) -> None:
        """Raise `PluginError` where a launch is not what the reference is, or writes where it must not."""
        problem = _problem(site, launch, inputs)
        if problem:
            raise PluginError(f"plugin {self.plugin}: {problem}")


def _is_config(config: Any) -> bool:
    """Whether a plan can keep it."""
    return isinstance(config, Mapping) and all(
        isinstance(name, str) and name.isidentifier() and isinstance(value, (int, float, str))
        for name, value in config.items()
    )


def _problem(site: Site, launch: Launch, inputs: Sequence[Any]) -> str:
    """What is wrong with a launch over these inputs, and over others after them; "" where nothing is."""
    run, _ = compile_body(site.body, Surroundings.of(site, {"": CANONICAL_OPSET}), site.values)
    kept = [cloned(t) if isinstance(t, Tensor) else t for t in inputs]
    is_weight = [name in site.weights for name in site.body.inputs]
    other = [t if weight else _reversed(t) for t, weight in zip(kept, is_weight, strict=True)]
    wants = [run(case) for case in (kept, other)]
    limits = _limits(site, run, (kept, other), wants)
    with _examining() as workspaces:
        trials = [Trial(site, launch, case, inputs) for case in (kept, other)]
        # a second call must not depend on the first, and one on other tensors not reach the first ones
        for trial in (trials[0], *trials):
            trial.call()
    found = chain(
        (f"writes outside {name}: {d}" for t in trials for name, b in t.blocks.items() if (d := b.damage())),
        (f"writes outside its workspace: {d}" for w in workspaces if (d := w.damage())),
        (f"changes input {place}" for trial in trials for place in trial.changed()),
        (trial.difference(want, limits) for trial, want in zip(trials, wants, strict=True)),
        _in_place_problems(site, launch, kept, wants[0], limits) if launch.in_place else (),
    )
    return next(filter(None, found), "")


def _in_place_problems(
    site: Site, launch: Launch, inputs: Sequence[Any], want: Sequence[Tensor], limits: Sequence[float]
) -> Iterator[str]:
    """Whether the first output may lie on each input of its own type and shape, as the launch says."""
    for place, name in enumerate(site.body.inputs):
        if site.specs.get(name) == site.outputs[0] and name not in site.weights:
            trial = Trial(site, launch, inputs, inputs, over=place)
            trial.call()
            if problem := trial.difference(want, limits):
                yield f"{problem}, written over input {place}"


class Trial:
    """A launch over copies of inputs, with guard bytes around every tensor. Weights are given as they are.

    `over`: the input that the first output lies on.
    """

    def __init__(
        self, site: Site, launch: Launch, inputs: Sequence[Any], given: Sequence[Any], over: int | None = None
    ) -> None:
        self.inputs, self.given = inputs, list(given)
        self.blocks: dict[str, Guarded] = {}
        self.outputs: list[tuple[Guarded, TensorSpec]] = []
        for place, (name, spec, tensor) in enumerate(zip(site.body.inputs, site.inputs, inputs, strict=True)):
            if isinstance(tensor, Tensor) and spec is not None and name not in site.weights:
                block = self.blocks[f"input {place}"] = Guarded(spec.nbytes, tensor.device)
                self.given[place] = block.tensor(spec)
                fill(self.given[place], tensor)
        device = next((t.device for t in given if isinstance(t, Tensor)), site.target.traits.device)
        for place, spec in enumerate(site.outputs if launch.writes_out else ()):
            block = Guarded(spec.nbytes, device) if place or over is None else self.blocks[f"input {over}"]
            self.blocks[f"output {place}"] = block
            self.outputs.append((block, spec))
        self._call = launch.frozen(self.given, self.made())

    def call(self) -> None:
        self.returned: Any = self._call()

    def changed(self) -> Iterator[int]:
        for place, (now, before) in enumerate(zip(self.given, self.inputs, strict=True)):
            if isinstance(now, Tensor) and not is_same(now, before):
                yield place

    def made(self) -> list[Tensor]:
        """What lies in the planned memory, whatever a call did with its tensors."""
        return [block.tensor(spec) for block, spec in self.outputs]

    def difference(self, want: Sequence[Tensor], limits: Sequence[float]) -> str:
        return _difference(self.made() or self.returned or (), want, limits)


def _reversed(value: Any) -> Any:
    """Other numbers of the same kind."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.double().flatten().flip(0).view(value.shape).to(value.dtype)


def _limits(
    site: Site, run: Any, cases: Sequence[Sequence[Any]], wants: Sequence[Sequence[Tensor]]
) -> list[float]:
    """How far rounding carries each output: twice what it moves when inputs move, and the type's own step."""
    eps = max((EPSILON.get(spec.dtype, 0.0) for spec in site.specs.values()), default=0.0)
    longest = max((size for spec in site.specs.values() for size in spec.shape), default=1)
    limits = [0.0] * len(wants[0])
    for seed, (case, want) in enumerate(zip(cases, wants, strict=True)):
        moved = run([_moved(t, eps * math.sqrt(longest), seed) for t in case])
        for place, (wanted, other) in enumerate(zip(want, moved, strict=True)):
            numbers = _numbers(wanted)
            finite = numbers[torch.isfinite(numbers)]
            step = eps * (float(finite.abs().max()) if finite.numel() else 0.0)
            limits[place] = max(limits[place], 2 * _distance(other, wanted) + 2 * step)
    return limits


def _moved(value: Any, step: float, seed: int) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, value.shape, generator=generator).to(value.device) * 2 - 1
    return (value.double() * (1 + step * signs)).to(value.dtype)


def _numbers(tensor: Tensor) -> Tensor:
    """In float64; a complex number is two."""
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


def _distance(got: Tensor, want: Tensor) -> float:
    """The largest distance where both are finite."""
    if got.shape != want.shape or not want.numel():
        return 0.0
    off = (_numbers(got) - _numbers(want)).abs()
    return float(torch.where(torch.isfinite(off), off, 0.0).max())


def _difference(made: Sequence[Any], want: Sequence[Tensor], limits: Sequence[float]) -> str:
    if len(made) != len(want):
        return f"makes {len(made)} outputs, want {len(want)}"
    for place, (got, wanted, limit) in enumerate(zip(made, want, limits, strict=True)):
        if not isinstance(got, Tensor):
            return f"output {place} is {type(got).__name__}, want a tensor"
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            return f"output {place} is {spec_of(got)}, want {spec_of(wanted)}"
        ours, theirs = _numbers(got), _numbers(wanted)
        stray, missing = (int((a.isnan() & ~b.isnan()).sum()) for a, b in ((ours, theirs), (theirs, ours)))
        if stray == ours.numel():
            return f"output {place} is NaN everywhere: is `out` filled?"
        if stray:
            return f"output {place} has {stray} NaN, the reference has none there"
        if missing:
            return f"output {place} has no NaN at {missing} places where the reference has one"
        off = torch.where(ours == theirs, 0.0, (ours - theirs).abs()).nan_to_num(nan=0.0)
        if off.numel() and float(off.max()) > limit:
            worst = torch.unravel_index(off.argmax(), off.shape)
            at = tuple(int(index) for index in worst)
            return f"output {place} is off by {float(off.max()):.3g} at {at}, rounding explains {limit:.3g}"
    return ""
