"""The gate before a plugin's tactic is timed: a run between guard bytes, compared with the reference."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.spec import EPSILON, Site, TensorSpec
from ridgeline.errors import PluginError
from ridgeline.frontend.opsets import CANONICAL_OPSET
from ridgeline.kernels.elements import TORCH_DTYPES, cloned
from ridgeline.kernels.triton.compiler import COMPILED_HERE, KernelStore
from ridgeline.plugins.catalog import Plugin, spec_of
from ridgeline.tactics.aten import compile_body
from ridgeline.tactics.base import Launch, Offer, Refused, Tactic
from ridgeline.tactics.fallback import Surroundings
from ridgeline.tactics.offer import read_offer

BAND = 4096  # guard bytes on either side
GUARD = 0xA5
UNWRITTEN = 0xFF  # NaN in every float type
DRAWS = 2  # of moved inputs, to see how far rounding carries a result


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
    """A tactic of a plugin: it is offered as it is, and examined before it is timed."""

    def __init__(self, tactic: Tactic, plugin: Plugin, store: KernelStore = COMPILED_HERE) -> None:
        has_store = is_dataclass(tactic) and "store" in {field.name for field in fields(tactic)}
        self.tactic: Tactic = replace(tactic, store=store) if has_store else tactic  # type: ignore[type-var]
        self.plugin, self.name, self.store = plugin, tactic.name, store
        self.takes_open_shapes, self.takes_spans = tactic.takes_open_shapes, tactic.takes_spans
        self.spins_threads, self.runs_on = tactic.spins_threads, tactic.runs_on

    def offer(self, site: Site) -> Offer | Refused:
        return read_offer(self.tactic, site)

    def examine(self, site: Site, launch: Launch, inputs: Sequence[Any]) -> None:
        """Raise `PluginError` where a launch is not what the reference is, or writes where it must not."""
        problem = _problem(site, launch, inputs)
        if problem:
            raise PluginError(f"plugin {self.plugin}: {problem}")


def _problem(site: Site, launch: Launch, inputs: Sequence[Any]) -> str:
    """What is wrong with one launch over these inputs; "" where nothing is."""
    run, _ = compile_body(site.body, Surroundings.of(site, {"": CANONICAL_OPSET}), site.values)
    kept = [cloned(t) if isinstance(t, Tensor) else t for t in inputs]
    want = run(kept)
    limits = _limits(site, run, kept, want)
    with _examining() as workspaces:
        made, problem = _run(site, launch, inputs)
    damaged = (f"writes outside its workspace: {d}" for w in workspaces if (d := w.damage()))
    changed = (
        f"changes input {place}"
        for place, (now, before) in enumerate(zip(inputs, kept, strict=True))
        if isinstance(now, Tensor) and not _is_same(now, before)
    )
    problem = problem or next(damaged, "") or next(changed, "") or _difference(made, want, limits)
    if problem or not launch.in_place:
        return problem
    return _in_place_problem(site, launch, kept, want, limits)


def _run(site: Site, launch: Launch, inputs: Sequence[Any]) -> tuple[Sequence[Any], str]:
    """The results of a second call, which must not depend on the first, and what is wrong with the memory."""
    if not launch.writes_out:
        launch.run(inputs, ())
        return launch.run(inputs, ()) or (), ""
    device = next(
        (t.device for t in inputs if isinstance(t, Tensor)), torch.device(site.target.traits.device)
    )
    blocks = [Guarded(spec.nbytes, device) for spec in site.outputs]
    made = [block.tensor(spec) for block, spec in zip(blocks, site.outputs, strict=True)]
    call = launch.frozen(inputs, made)
    call()
    call()
    damaged = (f"writes outside output {i}: {d}" for i, b in enumerate(blocks) if (d := b.damage()))
    return made, next(damaged, "")


def _in_place_problem(
    site: Site, launch: Launch, inputs: Sequence[Any], want: Sequence[Tensor], limits: Sequence[float]
) -> str:
    """Whether the first output may lie on each input of its own type and shape, as the launch says."""
    spec = site.outputs[0]
    for place, name in enumerate(site.body.inputs):
        if site.specs.get(name) != spec or name in site.weights:
            continue
        given = [cloned(t) if isinstance(t, Tensor) else t for t in inputs]
        outputs = [given[place], *(torch.empty_like(tensor) for tensor in want[1:])]
        launch.frozen(given, outputs)()
        problem = _difference(outputs, want, limits)
        if problem:
            return f"{problem}, written over input {place}"
    return ""


def _limits(site: Site, run: Any, inputs: Sequence[Any], want: Sequence[Tensor]) -> list[float]:
    """How far rounding carries each output: twice what it moves when inputs move, and the type's own step."""
    eps = max((EPSILON.get(spec.dtype, 0.0) for spec in site.specs.values()), default=0.0)
    longest = max((size for spec in site.specs.values() for size in spec.shape), default=1)
    moved = [run([_moved(t, eps * math.sqrt(longest), seed) for t in inputs]) for seed in range(DRAWS)]
    limits = []
    for place, wanted in enumerate(want):
        reach = max((_distance(other[place], wanted) for other in moved), default=0.0)
        finite = wanted.double()[torch.isfinite(wanted.double())]
        limits.append(2 * reach + 2 * eps * (float(finite.abs().max()) if finite.numel() else 0.0))
    return limits


def _moved(value: Any, step: float, seed: int) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, value.shape, generator=generator).to(value.device) * 2 - 1
    return (value.double() * (1 + step * signs)).to(value.dtype)


def _distance(got: Tensor, want: Tensor) -> float:
    """The largest distance where both are finite."""
    if got.shape != want.shape or not want.numel():
        return 0.0
    off = (got.double() - want.double()).abs()
    return float(torch.where(torch.isfinite(off), off, 0.0).max())


def _difference(made: Sequence[Any], want: Sequence[Tensor], limits: Sequence[float]) -> str:
    if len(made) != len(want):
        return f"makes {len(made)} outputs, want {len(want)}"
    for place, (got, wanted, limit) in enumerate(zip(made, want, limits, strict=True)):
        if not isinstance(got, Tensor):
            return f"output {place} is {type(got).__name__}, want a tensor"
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            return f"output {place} is {spec_of(got)}, want {spec_of(wanted)}"
        ours, theirs = got.double(), wanted.double()
        stray = int((ours.isnan() & ~theirs.isnan()).sum())
        if stray:
            return f"output {place} has {stray} NaN, the reference has none there"
        off = torch.where(ours == theirs, 0.0, (ours - theirs).abs()).nan_to_num(nan=0.0)
        if off.numel() and float(off.max()) > limit:
            worst = torch.unravel_index(off.argmax(), off.shape)
            at = tuple(int(index) for index in worst)
            return f"output {place} is off by {float(off.max()):.3g} at {at}, rounding explains {limit:.3g}"
    return ""


def _is_same(now: Tensor, before: Tensor) -> bool:
    one, other = (t.contiguous().view(-1).view(torch.uint8) for t in (now, before))
    return torch.equal(one, other)
