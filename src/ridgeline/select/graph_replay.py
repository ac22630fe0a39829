"""The timer of a GPU: candidates of a site checked against the floor, then timed as CUDA graphs.

Isolated timings are warm in the caches and know no neighbours. So the choice between a site's best is made in
the whole captured plan (`select/refine.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ridgeline.base.gpu_graph import CaptureError
from ridgeline.base.gpu_timing import capture, interleave_graphs, times_in_turn
from ridgeline.base.spec import EPSILON, TF32_EPSILON, Site, TensorSpec
from ridgeline.errors import BuildError, failure, first_line
from ridgeline.kernels.elements import TORCH_DTYPES, to_torch
from ridgeline.runtime.examples import site_inputs
from ridgeline.select.context import Contest, Selection, SelectionContext, check_workspace
from ridgeline.select.experience import ON_GPU
from ridgeline.select.heats import Heats, Timed, Trial
from ridgeline.select.pairs import close_pairs, take_by_times, weigh
from ridgeline.select.race import UNSTEADY
from ridgeline.select.refine import Refinement
from ridgeline.select.site_race import SiteRace
from ridgeline.select.streams import compose_streams
from ridgeline.select.wall_clock import REGIONS, Measuring, take_first
from ridgeline.tactics.base import Launch

# timing rounds of a site, and of a whole plan, by optimisation level
SITE_ROUNDS = (0, 3, 5, 5, 9, 15)
PLAN_ROUNDS = (0, 0, 5, 9, 15, 31)
CALLS_PER_GRAPH = 10
# a candidate this many times slower than the best at first sight stays behind
HOPELESS = 2.0
# an honest kernel differs from the floor by roundings of its type; a wrong one by as much as its values
ROUNDINGS = 64
FEW_ROUNDINGS = 8  # of what is quantised to float8
# of quantised results, those that may lie one step aside where all else is float32: sums of thousands of
# terms are off by up to a hundredth of one of 127 steps, and so many values cross a tie
ROUNDED_SHARE = 0.01
# and for each eps of a coarser type between: rounding a value of 64 steps, the mean of the range, moves it by
# a quarter of 64 eps on average. A kernel that cuts digits off or forgets half a step moves every second one
ROUNDED_PER_EPSILON = 16


class GraphTrial:
    """Candidates of a site as CUDA graphs over the same drawn inputs, replayed in turns.

    One that computes something else than the floor is refused; so is one that no graph can hold, but where
    nothing else runs.
    """

    pruning = ON_GPU

    def __init__(self, context: SelectionContext) -> None:
        self._context, self._rounds = context, SITE_ROUNDS[context.options.level]
        # why no candidate of a contest could be captured, by contests where that is so
        self._eager: dict[int, dict[int, str]] = {}

    def is_raced(self, contest: Contest) -> bool:
        """Where shapes depend on data nobody knows what to time it with: the floor takes whatever comes."""
        return contest.is_timeable

    def time(self, each: SiteRace, places: Sequence[int]) -> Timed:
        captured, eager = {}, {}
        for place, call in self._calls(each, places).items():
            try:
                captured[place] = capture(call, CALLS_PER_GRAPH)
            except CaptureError as error:
                eager[place] = f"cannot be captured in a CUDA graph: {error}"
            except Exception as error:  # a candidate that breaks is refused with its message
                self._refuse(each, place, error)
        was_eager = self._eager.pop(id(each), {})
        if not captured and eager and len(was_eager) == len(each.times_us):
            self._eager[id(each)] = was_eager | eager
            calls = self._calls(each, list(eager))
            return Timed(dict(zip(calls, times_in_turn(list(calls.values()), self._rounds), strict=True)))
        for place, reason in (was_eager | eager).items():
            each.refuse(place, reason)
        if not captured:
            return Timed()
        times, is_unsteady = _race_graphs(list(captured.values()), self._rounds)
        return Timed(dict(zip(captured, times, strict=True)), is_unsteady=is_unsteady)

    def runs(self, each: SiteRace, place: int) -> bool:
        return bool(self._calls(each, [place]))

    def _calls(self, each: SiteRace, places: Sequence[int]) -> dict[int, Callable[[], object]]:
        """Those that run and compute what the floor computes."""
        context, contest, site = self._context, each.contest, each.contest.site
        weights = context.weights_of(contest.region, site)
        inputs = site_inputs(site, weights, device="cuda")
        want = _reference(context, contest, inputs)
        made = {}
        for place in places:
            candidate = each.willing[place]
            try:
                launch = context.bind(site, candidate.tactic, candidate.config, weights)
                check_workspace(launch.packed_bytes, context.options.workspace_bytes)
                context.fused.tactics[candidate.tactic].examine(site, launch, inputs)
                call, outputs = bound_call(launch, site, inputs)
                _require_close(
                    outputs(), want, may_round=_rounds_to_integers(site), coarsest=_coarsest_epsilon(site),
                    operands=_operand_epsilon(site),
                )  # fmt: skip
                torch.cuda.synchronize()
                made[place] = call
            except Exception as error:  # a candidate that breaks is refused with its message
                self._refuse(each, place, error)
        return made

    def _refuse(self, each: SiteRace, place: int, error: Exception) -> None:
        candidate = each.willing[place]
        _require_device(f"{candidate.tactic} {dict(candidate.config)} at {each.contest.site.name}")
        each.refuse(place, failure(error))


class GraphReplay(Measuring):
    """Times are those of graph replays. At level 0 the first candidate that runs is taken."""

    all_configs_from = 1
    takes_pairs = True

    def trial(self, context: SelectionContext) -> Trial:
        return GraphTrial(context)

    def choose(self, context: SelectionContext, contests: Sequence[Contest]) -> None:
        trial = self.trial(context)
        if SITE_ROUNDS[context.options.level]:
            Heats(context, contests, trial, context.deadline.part(REGIONS)).run()
        else:
            take_first(context, contests, trial)

    def compose(self, context: SelectionContext, contests: Sequence[Contest], made: Selection) -> None:
        """Try the best few of each site in the whole plan, then pairs of regions, then steps side by side."""
        _refine(context, contests, made)
        close_pairs(context, made)
        super().compose(context, contests, made)
        compose_streams(context, made, PLAN_ROUNDS[context.options.level])


def _refine(context: SelectionContext, contests: Sequence[Contest], made: Selection) -> None:
    """What it captures is let go of with it, before other whole plans are made."""
    fresh = [contest for contest in contests if not contest.is_known]
    level, refinement = context.options.level, Refinement(context, contests, made)
    if fresh and SITE_ROUNDS[level]:
        if PLAN_ROUNDS[level]:
            refinement.run(fresh, PLAN_ROUNDS[level])
        refinement.time_the_rest(SITE_ROUNDS[level])
        made.entries = {region.name: contest.entry for contest in contests for region in contest.users}
    if any(not pair.contest.is_known for pair in made.pairs):
        weigh(made)
        # level 1 times no whole plans
        if not PLAN_ROUNDS[level] or not refinement.run_pairs(PLAN_ROUNDS[level]):
            take_by_times(made.pairs)


def _race_graphs(graphs: Sequence[torch.cuda.CUDAGraph], rounds: int) -> tuple[list[float], bool]:
    """Medians in µs, and whether the best was unsteady. Those far behind at first sight are left there."""
    first = [t.min_us for t in interleave_graphs(graphs, calls=CALLS_PER_GRAPH, rounds=1)]
    rivals = [i for i, us in enumerate(first) if us <= HOPELESS * min(first)]
    timings = interleave_graphs([graphs[i] for i in rivals], calls=CALLS_PER_GRAPH, rounds=rounds)
    found = dict(zip(rivals, (t.median_us for t in timings), strict=True))
    times = [round(found.get(i, us), 3) for i, us in enumerate(first)]
    return times, min(timings, key=lambda t: t.median_us).spread > UNSTEADY


def _require_device(what: str) -> None:
    """Raise when a candidate took the device down: nothing can be run in this process any more."""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise BuildError(
            f"{what} broke the device",
            got=first_line(error),
            help=f"build again without it: --without {what.split()[0]}",
        ) from error


def bound_call(
    launch: Launch, site: Site, inputs: Sequence[Tensor | None]
) -> tuple[Callable[[], object], Callable[[], Sequence[Tensor]]]:
    """The launch over these inputs as a call, and a way to run it once and see what it made."""
    given = list(inputs)
    if launch.wants_host_values:
        for i, name in enumerate(site.body.inputs):
            if name in site.values and name not in site.weights:
                given[i] = to_torch(site.values[name])
    if not launch.writes_out:
        return (lambda: launch.run(given, ())), (lambda: launch.run(given, ()) or ())
    outputs = [_poisoned(spec) for spec in site.outputs]
    call = launch.frozen(given, outputs)

    def run() -> Sequence[Tensor]:
        call()
        return outputs

    return call, run


def _poisoned(spec: TensorSpec) -> Tensor:
    dtype = TORCH_DTYPES[spec.dtype]
    made = torch.empty_strided(spec.shape, spec.strides, dtype=dtype, device="cuda")
    return made.fill_(float("nan")) if dtype.is_floating_point else made.zero_()


def _reference(
    context: SelectionContext, contest: Contest, inputs: Sequence[Tensor | None]
) -> Sequence[Tensor] | None:
    """What the floor makes of these inputs; None where it cannot run them."""
    site, weights = contest.site, context.weights_of(contest.region, contest.site)
    try:
        _, run = bound_call(context.bind(site, context.floor.name, {}, weights), site, inputs)
        return run()
    except (RuntimeError, ValueError, TypeError, NotImplementedError, BuildError):
        return None


def _rounds_to_integers(site: Site) -> bool:
    """Whether integers come from floats here: two right kernels may round a value near a half differently."""
    return any(op.op_type in ("QuantizeLinear", "DynamicQuantizeLinear") for op in site.body.ops)


def _coarsest_epsilon(site: Site) -> float:
    """Of the types between: the floor rounds every value to its type before the next op."""
    types = max((EPSILON.get(spec.dtype, 0.0) for spec in site.specs.values()), default=0.0)
    return max(types, _operand_epsilon(site))


def _operand_epsilon(site: Site) -> float:
    """Of products that may round what they read; the floor does not."""
    return TF32_EPSILON if site.body.may_round else 0.0


def _is_rounding(got: Tensor, want: Tensor, coarsest: float) -> bool:
    """A step aside, here and there.

    A kernel that keeps float32 between its ops rounds more values the other way than the floor, the coarser
    the types between. Near zero the steps of float8 are smaller than what such a type rounds: there, as many
    steps as make up that rounding.
    """
    steps = (got.double() - want.double()).abs()
    if want.is_floating_point():
        numbers = want.float()
        scale = float(torch.where(torch.isfinite(numbers), numbers, 0.0).abs().max())
        steps = (_ordinals(got).double() - _ordinals(want)).abs()
        # a NaN on one side only is never within a rounding
        off = torch.where(got.isnan() & want.isnan(), 0.0, (got.float() - numbers).abs())
        steps[off <= FEW_ROUNDINGS * coarsest * scale] = 0
    return bool(steps.max() <= 1 and steps.mean() <= ROUNDED_SHARE + ROUNDED_PER_EPSILON * coarsest)


def _ordinals(float8: Tensor) -> Tensor:
    """Neighbouring numbers of a float8 type as neighbouring integers."""
    bits = float8.contiguous().view(torch.uint8).to(torch.int32)
    return torch.where(bits < 128, bits, 128 - bits)


def _require_close(
    made: Sequence[Tensor],
    want: Sequence[Tensor] | None,
    *,
    may_round: bool,
    coarsest: float = 0.0,
    operands: float = 0.0,
) -> None:
    """Raise when these results cannot be right."""
    if want is None:
        return
    for got, wanted in zip(made, want, strict=True):
        if got.shape != wanted.shape:
            raise BuildError(f"made {list(got.shape)} where the floor makes {list(wanted.shape)}")
        is_float8 = wanted.is_floating_point() and wanted.element_size() == 1
        if is_float8 or not wanted.is_floating_point():
            are_equal = torch.equal(*(t.view(torch.uint8) if is_float8 else t for t in (got, wanted)))
            if not are_equal and not (may_round and _is_rounding(got, wanted, coarsest)):
                raise BuildError("wrong result: levels or whole numbers differ from the floor's")
            continue
        eps = EPSILON.get(str(wanted.dtype).removeprefix("torch."), EPSILON["bfloat16"])
        eps = max(eps, operands)
        finite = torch.isfinite(wanted)
        scale = float(torch.where(finite, wanted, 0).abs().max()) if wanted.numel() else 0.0
        off = torch.where(finite, (got.float() - wanted.float()).abs(), 0.0)
        worst = float(off.max()) if off.numel() else 0.0
        if not worst <= ROUNDINGS * eps * scale:  # a NaN is no better
            raise BuildError(f"wrong result: off {worst:.3g} from the floor at a scale of {scale:.3g}")
