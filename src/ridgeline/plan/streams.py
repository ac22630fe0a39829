"""A schedule over streams: on which stream each step runs, what it waits for, and what that puts in order.

Steps are counted from 0 in the order of the plan, which is also the order in which each stream gets its own.
Sets of steps are whole numbers, one bit a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from ridgeline.plan.plan import Step

MAX_STREAMS = 4
# whole plans that compete, as they are called among a plan's alternatives
ONE, SEVERAL = "one stream", "streams"


class Named(Protocol):
    """What makes values of other values, by their names."""

    @property
    def inputs(self) -> tuple[str, ...]: ...

    @property
    def outputs(self) -> tuple[str, ...]: ...


class Placed(Named, Protocol):
    """A step of a plan."""

    @property
    def name(self) -> str: ...

    @property
    def stream(self) -> int: ...

    @property
    def waits(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Schedule:
    """The stream of each step, and the steps of other streams whose end it waits for."""

    streams: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]

    @property
    def n_streams(self) -> int:
        return len(set(self.streams))

    @property
    def n_waits(self) -> int:
        return sum(map(len, self.waits))

    @cached_property
    def before(self) -> tuple[int, ...]:
        """For each step, the steps that have ended when it begins."""
        made: list[int] = []
        last: dict[int, int] = {}
        for step, (stream, waits) in enumerate(zip(self.streams, self.waits, strict=True)):
            earlier = waits if stream not in last else (*waits, last[stream])
            ended = 0
            for other in earlier:
                ended |= made[other] | 1 << other
            made.append(ended)
            last[stream] = step
        return tuple(made)

    def before_among(self, steps: Sequence[int]) -> tuple[int, ...]:
        """As `before`, of these steps alone, counted as they stand here."""
        return tuple(
            sum(1 << place for place, other in enumerate(steps) if self.before[step] >> other & 1)
            for step in steps
        )


def needs_of(steps: Sequence[Named]) -> list[tuple[int, ...]]:
    """For each step, the earlier ones that make what it reads."""
    maker: dict[str, int] = {}
    needs = []
    for i, step in enumerate(steps):
        needs.append(tuple(sorted({maker[name] for name in step.inputs if name in maker})))
        maker.update(dict.fromkeys(step.outputs, i))
    return needs


def with_waits(streams: Sequence[int], needs: Sequence[Sequence[int]]) -> Schedule:
    """The fewest waits by which every step comes after those that it needs.

    What the stream's own order or another wait puts before a step anyway is not waited for.
    """
    before: list[int] = []
    last: dict[int, int] = {}
    waits = []
    for step, stream in enumerate(streams):
        ended = 0
        if stream in last:
            ended = before[last[stream]] | 1 << last[stream]
        found = []
        # a later step has earlier ones behind it, never the other way round
        for other in sorted(needs[step], reverse=True):
            if not ended >> other & 1:
                found.append(other)
                ended |= before[other] | 1 << other
        waits.append(tuple(sorted(found)))
        before.append(ended)
        last[stream] = step
    return Schedule(tuple(streams), tuple(waits))


def schedule_of(steps: Sequence[Placed]) -> Schedule | None:
    """The schedule of a plan's steps; None where all run on one stream."""
    if not any(step.stream or step.waits for step in steps):
        return None
    return Schedule(tuple(step.stream for step in steps), tuple(step.waits for step in steps))


def on_streams(steps: Sequence[Step], schedule: Schedule) -> tuple[Step, ...]:
    """A plan's steps, each on its stream."""
    placed = zip(steps, schedule.streams, schedule.waits, strict=True)
    return tuple(replace(step, stream=stream, waits=waits) for step, stream, waits in placed)


def schedule_problems(steps: Sequence[Placed], *, may_fork: bool) -> Iterator[str]:
    """What is wrong with the streams and waits of a plan that may be anybody's."""
    schedule = schedule_of(steps)
    if schedule is None:
        return
    if not may_fork:
        yield "steps are on several streams, which this target has not"
        return
    wrong = list(_wrong_numbers(steps))
    yield from wrong
    if wrong:
        return
    for i, (step, needs) in enumerate(zip(steps, needs_of(steps), strict=True)):
        for other in needs:
            if not schedule.before[i] >> other & 1:
                at = f"stream {steps[other].stream}"
                yield f"{step.name}: reads what {steps[other].name} makes on {at}, and does not wait for it"


def _wrong_numbers(steps: Sequence[Placed]) -> Iterator[str]:
    for i, step in enumerate(steps):
        if not 0 <= step.stream < MAX_STREAMS:
            yield f"{step.name}: stream {step.stream}, want 0 to {MAX_STREAMS - 1}"
        for other in step.waits:
            if not 0 <= other < i:
                yield f"{step.name}: waits for step {other}, want one before it, from 0 to {i - 1}"
