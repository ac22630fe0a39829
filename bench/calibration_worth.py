"""What each set of calibration networks is worth to predictions: the order in which a calibration takes them.

    PYTHONPATH=src:. python -m bench.calibration_worth [--folder /tmp/ridge-predict] [--out FILE]

Nothing is built or timed: the points of one calibration and the measured layers of 15 networks are read from
bench/results, and predictions are made again from fewer points. A set is worth what predictions lose without
it, for each second that measuring it takes. Its witnesses are the networks and, since of some kinds of layers
there is one network or none, the other sets: what is not measured has to be predicted from what is.

Whether such an order holds for networks that it was not made with is asked by making it again without each
network, and predicting that network from the sets it then begins with.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.predict_check import FURTHER, GPU_DEFAULT, gpu_sources
from ridgeline.analyze.calibration_sets import GPU_SETS, dtype_of
from ridgeline.analyze.predict import computed_sites, fused_for
from ridgeline.base.ceilings import Ceilings, Point
from ridgeline.base.spec import Site, Target
from ridgeline.options import make_options
from ridgeline.tactics.cost_features import Features, features_of
from ridgeline.tactics.cost_model import CostModel
from ridgeline.targets.ceilings import stated_ceilings

TARGET = Target("cuda", "sm_90")
POINTS = Path("bench/results/calibration-h200-2026-11-16.json")
LAYERS = Path("bench/results/prediction-cuda-2026-11-16.json")
PER_TERA = 1e6
# what is asked of predictions: by layer, end to end, and end to end of the further five
BY_LAYER, END_TO_END, FURTHER_END_TO_END = 0.10, 0.12, 0.15
# of what the other sets tell of one that is left out, beside what the networks do
SETS_WEIGHT = 0.25
LARGEST_LOSS = 50.0  # of one witness: one that is far off says no more than that
BUDGETS_S = (60, 80, 100, 120, 140, 160)
REDEFINED = 1  # the feature that counts the rest of a region's work has changed since the points were taken


@dataclass(frozen=True)
class Layer:
    """A region of a network or of a calibration, what the first factor says of it, and what it took."""

    features: Features
    modelled_us: float
    measured_us: float

    @property
    def point(self) -> Point:
        return Point(self.features.family, self.features.values, self.measured_us, self.modelled_us)


@dataclass(frozen=True)
class Witness:
    """Somebody whose time is predicted: a network, or a set of the calibration."""

    name: str
    layers: tuple[Layer, ...]
    whole_us: float

    @property
    def network(self) -> str:
        """Equal for all batch sizes of a network."""
        return self.name.rsplit("_b", 1)[0]

    @property
    def is_of_the_table(self) -> bool:
        return self.name in GPU_DEFAULT


@dataclass(frozen=True)
class Error:
    """How far a prediction is off: by layer, and in all."""

    layers: tuple[float, ...]
    end_to_end: float

    @property
    def loss(self) -> float:
        """2 where both errors are as large as they may be; one that is far beyond weighs most."""
        by_layer = (median(self.layers) / BY_LAYER) ** 2
        return min(by_layer + (self.end_to_end / END_TO_END) ** 2, LARGEST_LOSS)


@dataclass
class Study:
    """Predictions from any of the sets."""

    rated: Ceilings
    sets: dict[str, Witness]
    networks: tuple[Witness, ...]
    cost_s: dict[str, float]
    _errors: dict[tuple[frozenset[str], str], Error] = field(default_factory=dict)
    _corrections: dict[tuple[frozenset[str], str, Features, float], float] = field(default_factory=dict)

    @cached_property
    def _families(self) -> dict[str, frozenset[str]]:
        return {
            name: frozenset(layer.features.family for layer in each.layers)
            for name, each in self.sets.items()
        }

    def error(self, kept: Iterable[str], witness: Witness) -> Error:
        kept = frozenset(kept)
        key = kept, witness.name
        if key not in self._errors:
            self._errors[key] = self._error(kept, witness)
        return self._errors[key]

    def _error(self, kept: frozenset[str], witness: Witness) -> Error:
        times = [layer.modelled_us * self._correction(kept, layer) for layer in witness.layers]
        pairs = zip(times, witness.layers, strict=True)
        return Error(
            layers=tuple(abs(us / layer.measured_us - 1) for us, layer in pairs if layer.measured_us > 0),
            end_to_end=sum(times) / witness.whole_us - 1,
        )

    def _correction(self, kept: frozenset[str], layer: Layer) -> float:
        # sets without its family change nothing, unless none has it
        family = layer.features.family
        having = frozenset(name for name in kept if family in self._families[name])
        key = having or kept, family if having else "", layer.features, layer.modelled_us
        if key not in self._corrections:
            points = tuple(layer.point for name in key[0] for layer in self.sets[name].layers)
            model = CostModel(replace(self.rated, points=points))
            self._corrections[key] = model.correction(layer.features, layer.modelled_us)
        return self._corrections[key]

    def loss(self, kept: Sequence[str], without: str = "") -> float:
        """Of all witnesses but this network; a set that is measured need not be predicted."""
        by_network: dict[str, list[float]] = {}
        for each in self.networks:
            if each.network != without:
                by_network.setdefault(each.network, []).append(self.error(kept, each).loss)
        networks = sum(sum(losses) / len(losses) for losses in by_network.values()) / len(by_network)
        others = sum(self.error(kept, each).loss for name, each in self.sets.items() if name not in kept)
        return networks + SETS_WEIGHT * others / len(self.sets)

    def order(self, without: str = "") -> list[str]:
        """From all sets the one is taken out that is worth least for its seconds, again and again."""
        kept, taken = list(self.sets), list[str]()
        while kept:
            now = self.loss(kept, without)

            def worth(name: str, now: float = now) -> float:
                left = [other for other in kept if other != name]
                return (self.loss(left, without) - now) / self.cost_s[name]

            least = min(kept, key=worth)
            kept.remove(least)
            taken.append(least)
        return taken[::-1]

    def first(self, order: Sequence[str], budget_s: float) -> list[str]:
        kept: list[str] = []
        for name in order:
            if sum(self.cost_s[other] for other in (*kept, name)) > budget_s:
                break
            kept.append(name)
        return kept

    def summary(self, kept_for: dict[str, Sequence[str]]) -> dict[str, Any]:
        """Errors when each network is predicted from these sets."""
        made = {}
        for group, is_in in (("table", True), ("further", False)):
            chosen = [each for each in self.networks if each.is_of_the_table is is_in]
            errors = {each.name: self.error(kept_for[each.network], each) for each in chosen}
            worst = max((error.end_to_end for error in errors.values()), key=abs)
            made[group] = {
                "median_layer": round(median(e for error in errors.values() for e in error.layers), 4),
                "worst_end_to_end": round(worst, 4),
                "end_to_end": {name: round(error.end_to_end, 4) for name, error in errors.items()},
            }
        return made

    def from_sets(self, kept: Sequence[str]) -> dict[str, Any]:
        return self.summary({each.network: kept for each in self.networks})


def is_inside(summary: dict[str, Any]) -> bool:
    table, further = summary["table"], summary["further"]
    return bool(
        table["median_layer"] <= BY_LAYER
        and abs(table["worst_end_to_end"]) <= END_TO_END
        and abs(further["worst_end_to_end"]) <= FURTHER_END_TO_END
    )


def rated_machine(stored: dict[str, Any]) -> Ceilings:
    """The machine of the stored calibration, without its points."""
    return replace(
        stated_ceilings(TARGET), measured=stored["when"], launch_us=stored["launch_us"],
        copy=tuple((size, rate * PER_TERA) for size, rate in stored["copy_tb_s"]),
        flops={name: rate * PER_TERA for name, rate in stored["tflops"].items()},
    )  # fmt: skip


def sites_of_model(source: Any, cost: CostModel) -> tuple[list[tuple[Site, Features, float]], int]:
    """Every region with its features and what the first factor says; and how many are distinct."""
    _, fused, shapes = fused_for(source, TARGET, make_options({}))
    tactics = tuple(fused.tactics.values())
    known: dict[str, tuple[Features, float]] = {}
    rows = []
    for _, site in computed_sites(fused, shapes, TARGET):
        if site.key not in known:
            known[site.key] = features_of(site), cost.modelled_us(site, tactics) or 0.0
        rows.append((site, *known[site.key]))
    return rows, len(known)


def measured_sets(stored: dict[str, Any], cost: CostModel) -> Iterator[Witness]:
    """The stored points by the set that they are of.

    A calibration writes the points of a set one after the other, a point for each distinct region: they are
    where the sizes of the set's regions stand in the file in this order. A set that is not found has none.
    """
    rows = stored["points"]
    for each in GPU_SETS:
        sites = sites_of_model(each.model(dtype_of(TARGET)), cost)[0]
        wanted = list({site.key: (features, modelled_us) for site, features, modelled_us in sites}.values())
        starts = [
            start
            for start in range(len(rows) - len(wanted) + 1)
            if all(_is_of(row, f) for row, (f, _) in zip(rows[start:], wanted, strict=False))
        ]
        if not starts:
            print(f"no points of {each.name!r}", flush=True)
            continue
        (start,) = starts
        layers = tuple(
            Layer(features, modelled_us, row[1])
            for row, (features, modelled_us) in zip(rows[start:], wanted, strict=False)
        )
        yield Witness(each.name, layers, sum(layer.measured_us for layer in layers))


def _is_of(row: Sequence[Any], features: Features) -> bool:
    """Whether a stored point is of a region of these features, as far as four digits say it."""
    pairs = zip(row[3:], features.values, strict=False)
    same = all(abs(a - b) <= 1e-3 * max(1.0, b) for i, (a, b) in enumerate(pairs) if i != REDEFINED)
    return bool(row[0] == features.family and len(row) - 3 == len(features.values) and same)


def measured_networks(
    stored: dict[str, Any], cost: CostModel, folder: Path
) -> Iterator[tuple[Witness, int, float]]:
    """The networks with the time of each layer, how many regions are distinct, and seconds of their build.

    Layers are told by their place: exporters number nodes in different ways.
    """
    by_name = {row["case"]: row for row in stored["rows"]}
    for name, path, _ in gpu_sources([*GPU_DEFAULT, *FURTHER], folder):
        row = by_name[name]
        regions, distinct = sites_of_model(path, cost)
        if len(regions) != len(row["steps"]):
            raise ValueError(f"{name} has {len(regions)} regions, {len(row['steps'])} were measured")
        layers = tuple(
            Layer(features, modelled_us, us)
            for (_, features, modelled_us), us in zip(regions, row["steps"].values(), strict=True)
        )
        yield Witness(name, layers, row["measured_us"]), distinct, row["build_s"]


def seconds_of(distinct: Sequence[int], build_s: Sequence[float]) -> dict[str, float]:
    """What a build takes, as a start and a time for each distinct region: least squares of the ratios."""
    times = np.array(build_s)
    columns = np.stack([np.ones(len(times)), np.array(distinct, float)], 1)
    start, region = np.linalg.lstsq(columns / times[:, None], np.ones(len(times)), rcond=None)[0]
    errors = np.abs(columns @ [start, region] / times - 1)
    return {
        "start_s": round(float(start), 2), "region_s": round(float(region), 3),
        "median_error": round(float(np.median(errors)), 3), "worst_error": round(float(errors.max()), 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("/tmp/ridge-predict"), help="exported networks")
    parser.add_argument("--out", type=Path, default=Path("bench/results/calibration-worth-2026-11-18.json"))
    args = parser.parse_args()
    stored, layers = json.loads(POINTS.read_text()), json.loads(LAYERS.read_text())
    rated = rated_machine(stored)
    cost = CostModel(rated)
    found = list(measured_networks(layers, cost, args.folder))
    seconds = seconds_of([distinct for _, distinct, _ in found], [build_s for *_, build_s in found])
    cost_s = {each.name: seconds["start_s"] + seconds["region_s"] * each.regions for each in GPU_SETS}
    sets = {each.name: each for each in measured_sets(stored, cost)}
    study = Study(rated, sets, tuple(witness for witness, *_ in found), cost_s)
    args.out.write_text(json.dumps(result(study, seconds), indent=1) + "\n")
    print(args.out)


def result(study: Study, seconds: dict[str, float]) -> dict[str, Any]:
    order = study.order()
    every = study.from_sets(order)
    again = {
        name: study.order(without=name) for name in dict.fromkeys(each.network for each in study.networks)
    }
    budgets = {
        str(budget): {
            "sets": len(study.first(order, budget)),
            "errors": study.from_sets(study.first(order, budget)),
            "left_out": study.summary({name: study.first(made, budget) for name, made in again.items()}),
        }
        for budget in BUDGETS_S
    }
    rows: list[dict[str, Any]] = []
    for place, name in enumerate(order):
        others = [other for other in order if other != name]
        own = study.error(others, study.sets[name])
        rows.append({
            "set": name, "expected_s": round(study.cost_s[name], 1),
            "summed_s": round(sum(study.cost_s[other] for other in order[: place + 1]), 1),
            "points": len(study.sets[name].layers),
            "errors_so_far": _short(study.from_sets(order[: place + 1])),
            "errors_without_it": _short(study.from_sets(others)),
            "its_points_from_the_others": {
                "median_layer": round(median(own.layers), 4), "end_to_end": round(own.end_to_end, 4)
            },
        })  # fmt: skip
    inside = [row for row in rows if is_inside(row["errors_so_far"])]
    return {
        "date": "2026-11-18", "points": str(POINTS), "layers": str(LAYERS),
        "how": "expected_s: of a build on that machine without a process that compiles ahead; left_out: each "
        "network predicted from the first sets of an order that was made without it",
        "build_seconds": seconds, "all_sets_s": round(sum(study.cost_s.values()), 1),
        "sets_without_points": [name for name in study.cost_s if name not in study.sets],
        "order": order, "first_inside_bounds_s": inside[0]["summed_s"] if inside else None,
        "all_sets": every, "no_sets": study.from_sets([]), "sets": rows, "budgets": budgets,
        "orders_without": again,
    }  # fmt: skip


def _short(summary: dict[str, Any]) -> dict[str, Any]:
    return {group: {k: v for k, v in one.items() if k != "end_to_end"} for group, one in summary.items()}


if __name__ == "__main__":
    main()
