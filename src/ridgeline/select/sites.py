"""Selection: the only place that times candidates of a site. The fastest wins by a margin; losers stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep

import torch
from torch import Tensor

from ridgeline.base.choices import Candidate
from ridgeline.base.spec import Site, TensorSpec
from ridgeline.base.timing import interleave
from ridgeline.errors import BuildError, failure
from ridgeline.kernels.elements import TORCH_DTYPES
from ridgeline.tactics.aten import is_inferred
from ridgeline.tactics.base import Launch, Tactic
from ridgeline.tactics.cache import Entry

# a later candidate must beat an earlier, simpler one by this much
MARGIN = 0.03
# thread pools of different libraries spin after their last call and steal a core from the next
PAUSE_S = 0.002
# a candidate this many times slower than the best at first sight stays behind
HOPELESS = 2.5
# from here on one run tells the time of a call, so that less of a lead is believed
SLOW_US = 1000.0
SLOW_HOPELESS = 1.75
# of calls this long six samples are enough for a site; whole plans get their full time
LONG_US, LONG_ROUNDS = 5000.0, 2
# (p90 - p10) / median above which samples say more about the neighbours than about the call
UNSTEADY = 0.5


@dataclass(frozen=True)
class Effort:
    """What an optimisation level spends."""

    site_s: float  # per candidate of a site
    plan_s: float  # on each whole plan
    all_configs: bool
    long_rounds: int | None = LONG_ROUNDS  # on a site's long calls; None: as many as the time allows


EFFORTS = (
    Effort(0.0, 0.0, False),
    Effort(0.004, 0.2, False),
    Effort(0.008, 0.4, False),
    Effort(0.015, 0.8, True),
    Effort(0.05, 2.0, True, None),
    Effort(0.2, 5.0, True, None),
)


def candidates_of(
    site: Site, tactics: Sequence[Tactic], *, all_configs: bool
) -> tuple[list[Candidate], list[Candidate]]:
    """Who is willing, and who refused and why."""
    willing, refused = [], []
    for tactic in tactics:
        is_open = not is_inferred(site) and tactic.name not in ("aten", "ort")
        reason = "a shape inside depends on data" if is_open else _why_not(tactic, site)
        if reason is not None:
            refused.append(Candidate(tactic.name, {}, refused=reason))
            continue
        configs = list(tactic.configs(site))
        willing += [Candidate(tactic.name, config) for config in (configs if all_configs else configs[:1])]
    return willing, refused


def _why_not(tactic: Tactic, site: Site) -> str | None:
    try:
        return tactic.why_not(site)
    except Exception as error:  # a site its author did not think of: refused with the message
        return failure(error)


def time_site(
    site: Site,
    weights: Mapping[str, Tensor],
    tactics: Sequence[Tactic],
    *,
    effort: Effort,
    willing: Sequence[Candidate],
    refused: Sequence[Candidate],
    draw: Callable[[], Sequence[Tensor | None]],
    workspace_bytes: int | None = None,
) -> Entry:
    """Time every willing candidate side by side; one that fails on the way is refused with its message.

    `draw` makes the inputs. A candidate alone has no time: it gets the one it takes in the whole plan.
    Where nothing is timed, the first that runs is taken, and the others stay untried.
    """
    # where shapes depend on data nobody knows what to time it with: the floor takes whatever comes;
    # and one candidate alone need not run on values drawn without knowing the model
    if not is_inferred(site) or (len(willing) == 1 and workspace_bytes is None):
        return Entry(site.name, (*willing, *refused), 0)
    by_name = {tactic.name: tactic for tactic in tactics}
    dropped = list(refused)
    runnable: list[tuple[Candidate, Callable[[], object]]] = []
    inputs = draw()
    tried = 0
    for candidate in willing:
        tried += 1
        try:
            launch = by_name[candidate.tactic].bind(site, candidate.config, weights)
            check_workspace(launch.packed_bytes, workspace_bytes)
            by_name[candidate.tactic].examine(site, launch, inputs)
            call = _call(launch, site, inputs)
            call()
        except (
            Exception
        ) as error:  # a candidate that breaks is a refusal with its message, not a failed build
            dropped.append(Candidate(candidate.tactic, candidate.config, refused=failure(error)))
        else:
            runnable.append((candidate, call))
            if effort.site_s == 0:
                break
    if not runnable:
        raise BuildError(
            f"no tactic for {site.name} ({', '.join(op.op_type for op in site.body.ops)})",
            rows=[f"{m.tactic:24} {m.refused}" for m in dropped],
            help="allow more tactics: drop --without, or lower --level to see the first error",
        )
    if len(runnable) == 1:
        return Entry(site.name, (runnable[0][0], *willing[tried:], *dropped), 0)
    pause_s = PAUSE_S if any(c.tactic == "ort" for c, _ in runnable) else 0.0
    times, is_unsteady = race(
        [call for _, call in runnable], each_s=effort.site_s, pause_s=pause_s, long_rounds=effort.long_rounds
    )
    timed = [Candidate(c.tactic, c.config, us) for (c, _), us in zip(runnable, times, strict=True)]
    return Entry(site.name, (*ranked(timed), *dropped), is_unsteady=is_unsteady)


def check_workspace(needed: int, allowed: int | None) -> None:
    """Raise when copies of weights take more than the build may spend on them."""
    if allowed is not None and needed > allowed:
        raise BuildError(f"keeps {needed:,} bytes of packed weights, workspace_bytes allows {allowed:,}")


def race(
    calls: Sequence[Callable[[], object]], *, each_s: float, pause_s: float, long_rounds: int | None = None
) -> tuple[list[float], bool]:
    """Medians in µs, and whether the best was unsteady. Those far behind at first sight are left there."""
    first = _first_sight(calls, pause_s=pause_s)
    best_us = min(first)
    limit = best_us * (HOPELESS if best_us < SLOW_US else SLOW_HOPELESS)
    rivals = [i for i, us in enumerate(first) if us <= limit]
    rounds = long_rounds if best_us > LONG_US and pause_s else None
    timings = interleave(
        [calls[i] for i in rivals], budget_s=each_s * len(rivals), rounds=rounds, settle_s=pause_s
    )
    found = dict(zip(rivals, (t.median_us for t in timings), strict=True))
    best = min(timings, key=lambda t: t.median_us)
    return [round(found.get(i, us), 3) for i, us in enumerate(first)], best.spread > UNSTEADY


def _first_sight(calls: Sequence[Callable[[], object]], *, pause_s: float) -> list[float]:
    """A rough time of each, in µs. Slow calls speak for themselves; quick ones need a sample of many."""
    rough = [_glance_us(call, pause_s) for call in calls]
    quick = [i for i, us in enumerate(rough) if us < SLOW_US]
    timings = interleave([calls[i] for i in quick], rounds=1, min_sample_us=50, settle_s=pause_s)
    for i, timing in zip(quick, timings, strict=True):
        rough[i] = timing.min_us
    return rough


def _glance_us(call: Callable[[], object], pause_s: float) -> float:
    """The better of two runs, since the first may pay for waking threads and for another's cache."""
    if pause_s:
        sleep(pause_s)
    times = []
    for _ in range(2):
        start = perf_counter()
        call()
        times.append((perf_counter() - start) * 1e6)
    return min(times)


def ranked(timed: Sequence[Candidate]) -> list[Candidate]:
    """The winner, then the others by time."""
    best = fastest(timed)
    return [timed[best], *sorted((m for i, m in enumerate(timed) if i != best), key=_time)]


def fastest(timed: Sequence[Candidate]) -> int:
    """The earliest candidate that nobody later beats by the margin."""
    best = min(range(len(timed)), key=lambda i: _time(timed[i]))
    limit = _time(timed[best]) * (1 + MARGIN)
    return next(i for i, m in enumerate(timed) if _time(m) <= limit)


def _time(measured: Candidate) -> float:
    return measured.median_us if measured.median_us is not None else float("inf")


def _call(launch: Launch, site: Site, inputs: Sequence[Tensor | None]) -> Callable[[], object]:
    if launch.writes_out:
        return launch.frozen(inputs, [_empty(spec) for spec in site.outputs])
    return lambda: launch.run(inputs, ())


def _empty(spec: TensorSpec) -> Tensor:
    return torch.empty_strided(spec.shape, spec.strides, dtype=TORCH_DTYPES[spec.dtype])
