"""Which steps run beside others: streams chosen by the critical path, and what a run would take with them.

The estimate only says whether a schedule is worth timing. Steps that run at the same time share the device:
each has a demand, the share of it that the step keeps busy, and more than the whole device nobody gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.plan.streams import MAX_STREAMS, Schedule, with_waits

# what a step pays for each wait: the launch behind it is not a dependent one. Twice what a small kernel loses
# without dependent launch (docs/gpu.md, "Dependent launch"), since the join itself was not timed
WAIT_US = 1.5
# of the time, what a further stream must save: libraries keep scratch memory for each
FURTHER = 0.02
# trying whole stretches of steps back on the main stream costs a simulation each
MOST_RETURNS = 200


@dataclass(frozen=True)
class Task:
    """A step as the estimate sees it."""

    us: float  # alone on the device
    demand: float = 0.5  # of the device, from 0 to 1
    needs: tuple[int, ...] = ()  # earlier tasks
    stays: bool = False  # never runs beside another one that does: all of them are on one stream


@dataclass(frozen=True)
class Forecast:
    """A schedule with what a run should take, beside the same steps one after the other."""

    schedule: Schedule
    us: float
    in_order_us: float

    @property
    def gain(self) -> float:
        """Share of the time in order that is saved."""
        return 1 - self.us / self.in_order_us if self.in_order_us else 0.0


def best_schedule(tasks: Sequence[Task]) -> Forecast:
    """The schedule of the shortest estimate; one stream where nothing is gained."""
    in_order_us = sum(task.us for task in tasks)
    needs = [task.needs for task in tasks]
    best = Forecast(with_waits([0] * len(tasks), needs), in_order_us, in_order_us)
    if critical_us(tasks) >= in_order_us:
        return best
    for n_streams in range(2, MAX_STREAMS + 1):
        for order in (by_critical_path(tasks), list(range(len(tasks)))):
            streams = _as_they_come(assign(tasks, order, n_streams))
            schedule = with_waits(streams, needs)
            us = simulate(tasks, schedule)
            is_further = schedule.n_streams > best.schedule.n_streams
            if us < best.us * (1 - FURTHER * is_further):
                best = Forecast(schedule, us, in_order_us)
    return _with_returns(tasks, best)


def levels(tasks: Sequence[Task]) -> list[float]:
    """For each task, the longest way from its begin to the end of the run, in µs."""
    after = [0.0] * len(tasks)
    made = [0.0] * len(tasks)
    for i in reversed(range(len(tasks))):
        made[i] = tasks[i].us + after[i]
        for other in tasks[i].needs:
            after[other] = max(after[other], made[i])
    return made


def critical_us(tasks: Sequence[Task]) -> float:
    """The longest way through the run: no schedule is shorter."""
    return max(levels(tasks), default=0.0)


def by_critical_path(tasks: Sequence[Task]) -> list[int]:
    """An order in which every task comes after its needs, the one with the longest way to go first."""
    level = levels(tasks)
    # whoever needs a task has a shorter way to go; equal ways, where a task takes no time, keep their order
    return sorted(range(len(tasks)), key=lambda i: (-level[i], i))


def assign(tasks: Sequence[Task], order: Sequence[int], n_streams: int) -> list[int]:
    """Each task in turn where it ends first; on a tie, behind what it needs, then on the lowest stream.

    Those that stay are on the first.
    """
    free = [0.0] * n_streams
    streams, ends = [0] * len(tasks), [0.0] * len(tasks)
    for i in order:
        task = tasks[i]
        options = []
        for stream in range(1 if task.stays else n_streams):
            ready = max((ends[n] + WAIT_US * (streams[n] != stream) for n in task.needs), default=0.0)
            end = max(ready, free[stream]) + task.us
            is_elsewhere = bool(task.needs) and all(streams[n] != stream for n in task.needs)
            options.append((end, is_elsewhere, stream))
        ends[i], _, streams[i] = min(options)
        free[streams[i]] = ends[i]
    return streams


def _as_they_come(streams: Sequence[int]) -> list[int]:
    """The same streams, numbered in the order in which steps take them: the first step is on the main one."""
    number: dict[int, int] = {}
    return [number.setdefault(stream, len(number)) for stream in streams]


def simulate(tasks: Sequence[Task], schedule: Schedule) -> float:
    """What a run takes: each stream runs its tasks in order, and those that run together share the device."""
    queues: dict[int, list[int]] = {}
    for i, stream in enumerate(schedule.streams):
        queues.setdefault(stream, []).append(i)
    heads = dict.fromkeys(queues, 0)
    done = [False] * len(tasks)
    left: dict[int, float] = {}  # of those that run, the time each would still need alone
    now, n_done = 0.0, 0
    while n_done < len(tasks):
        for stream, queue in queues.items():
            head = heads[stream]
            if head == len(queue) or queue[head] in left:
                continue
            task = queue[head]
            if all(done[other] for other in schedule.waits[task]):
                left[task] = tasks[task].us + WAIT_US * bool(schedule.waits[task])
        slow = max(1.0, sum(tasks[task].demand for task in left))
        passed = min(left.values())
        now += passed * slow
        for task in [task for task, us in left.items() if us <= passed]:
            done[task] = True
            n_done += 1
            heads[schedule.streams[task]] += 1
            del left[task]
        left = {task: us - passed for task, us in left.items()}
    return now


def _with_returns(tasks: Sequence[Task], best: Forecast) -> Forecast:
    """Stretches of a stream that gain nothing where they are go back to the main stream."""
    needs = [task.needs for task in tasks]
    movable = [each for each in _stretches(best.schedule) if not any(tasks[i].stays for i in each)]
    for stretch in movable[:MOST_RETURNS]:
        streams = list(best.schedule.streams)
        for i in stretch:
            streams[i] = 0
        schedule = with_waits(_as_they_come(streams), needs)
        us = simulate(tasks, schedule)
        if us <= best.us:
            best = Forecast(schedule, us, best.in_order_us)
    return best


def _stretches(schedule: Schedule) -> list[list[int]]:
    """Runs of neighbours on one auxiliary stream, begun anew at every wait."""
    open_runs: dict[int, list[int]] = {}
    found: list[list[int]] = []
    for i, stream in enumerate(schedule.streams):
        if stream == 0:
            continue
        if stream not in open_runs or schedule.waits[i]:
            open_runs[stream] = []
            found.append(open_runs[stream])
        open_runs[stream].append(i)
    return found
