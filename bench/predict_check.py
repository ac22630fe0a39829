"""Predictions against measurements: every layer of every case, calibrated and not.

    PYTHONPATH=src:. python -m bench.predict_check --target cuda [--calibration FILE] [--cases a,b] [--out F]

The machine is calibrated first, unless a file is given, on networks of the calibration alone. Then each case
is predicted as `ridge predict` does, built, profiled, and compared: by layer what a step adds to the run, and
in all the captured run (on a CPU the run without transfers). No time of a case is read before its prediction.
With `--measured FILE` nothing is built: predictions are compared with what an earlier run measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch

import ridgeline
from bench.cases import CASES as CPU_CASES
from ridgeline.analyze.calibrate import calibrate
from ridgeline.analyze.predict import Prediction, predict
from ridgeline.base.spec import Target
from ridgeline.base.target_files import read_target, write_target
from ridgeline.options import make_options
from ridgeline.targets import target_named
from ridgeline.targets.ceilings import stated_ceilings

GPU_DEFAULT = (
    "resnet50_b1", "resnet50_b32", "bert_base_s128_b1", "bert_base_s128_b32", "vit_b16_b1", "vit_b16_b32",
    "mobilenet_v2_b1", "mobilenet_v2_b32", "gpt2_s512_b1", "gpt2_s512_b8",
)  # fmt: skip
# by torchvision's name, batch and size of an image; the calibration has layers of all their kinds
FURTHER = {
    "efficientnet_b0_b16": ("efficientnet_b0", 16, 224), "convnext_tiny_b16": ("convnext_tiny", 16, 224),
    "vgg16_bn_b8": ("vgg16_bn", 8, 224), "regnet_y_800mf_b16": ("regnet_y_800mf", 16, 224),
    "densenet121_b8": ("densenet121", 8, 224),
}  # fmt: skip
# and these nobody looked at while it was made: --cases unseen
UNSEEN = {
    "inception_v3_b8": ("inception_v3", 8, 299), "mnasnet1_0_b16": ("mnasnet1_0", 16, 224),
    "resnext50_32x4d_b8": ("resnext50_32x4d", 8, 224), "swin_t_b8": ("swin_t", 8, 224),
    "shufflenet_v2_x1_0_b16": ("shufflenet_v2_x1_0", 16, 224),
}  # fmt: skip
# silero_vad is one If, whose branches are not predicted
CPU_DEFAULT = ("ppocr6_rec", "ppocr4_det", "minilm_18", "nudenet", "ppocr6_cls")


class Stages:
    """Progress of a calibration: when rates and each of its sets began."""

    def __init__(self) -> None:
        self.began: dict[str, float] = {}
        self.ended = 0.0

    def __call__(self, stage: str, done: int, total: int, detail: str = "") -> None:
        self.ended = time.perf_counter()
        self.began.setdefault(stage, self.ended)

    def seconds(self) -> dict[str, float]:
        """Of each up to the next; of the last up to its last message."""
        times = [*self.began.values(), self.ended]
        return {name: round(b - a, 1) for name, a, b in zip(self.began, times, times[1:], strict=False)}


def gpu_sources(names: list[str], folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    from bench.gpu_cases import CASES, Case, _image, _vision, export, randomise

    others = {**FURTHER, **UNSEEN}
    further = {n: Case(n, _vision(m), _image(b, s), is_image=True) for n, (m, b, s) in others.items()}
    for name in names:
        case = CASES.get(name) or further[name]
        path = folder / name / "model.onnx"
        if not path.exists():
            torch.manual_seed(0)
            export(randomise(case.make().eval()).half(), case.inputs(), path)
        yield name, str(path), {}


def cpu_sources(names: list[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name in names:
        yield name, str(CPU_CASES[name].path()), {"profiles": CPU_CASES[name].profiles}


def measure(source: str, options: dict[str, Any], target: str) -> dict[str, Any]:
    """The model built and profiled."""
    began = time.perf_counter()
    engine = ridgeline.build(source, target=target, verify="off", **options)
    build_s = time.perf_counter() - began
    trace = engine.profile(engine.example_inputs())
    return {
        "build_s": round(build_s, 1), "how": trace.how, "measured_us": round(trace.total_us, 1),
        "steps": {step.name: round(step.net_us, 3) for step in trace.steps},
    }  # fmt: skip


def compared(measured: dict[str, Any], found: Prediction) -> dict[str, Any]:
    layers = {step.name: step.us for step in found.steps}
    steps = {name: us for name, us in measured["steps"].items() if name in layers and us > 0}
    errors = sorted(abs(layers[name] - us) / us for name, us in steps.items())
    return {
        "predicted_us": round(found.total_us, 1),
        "end_to_end": round(found.total_us / measured["measured_us"] - 1, 4),
        "median_layer": round(median(errors), 4) if errors else None,
        "p75_layer": round(errors[3 * len(errors) // 4], 4) if errors else None,
        "layers": len(errors),
        "steps": {name: round(layers[name], 3) for name in steps},
    }


def summary(rows: list[dict[str, Any]], how: str) -> dict[str, Any]:
    """Over all layers of the ten of the table, and of the others."""
    made: dict[str, Any] = {}
    for group, is_in in (("table", True), ("further", False)):
        chosen = [
            row for row in rows if how in row and (row["case"] in (*GPU_DEFAULT, *CPU_DEFAULT)) is is_in
        ]
        errors = [
            abs(us - row["steps"][name]) / row["steps"][name]
            for row in chosen
            for name, us in row[how]["steps"].items()
        ]
        if errors:
            made[group] = {
                "median_layer": round(median(errors), 4),
                "worst_median_layer": max(row[how]["median_layer"] or 0.0 for row in chosen),
                "worst_end_to_end": max((row[how]["end_to_end"] for row in chosen), key=abs),
            }
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--cases", default="")
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/ridge-predict"))
    parser.add_argument("--measured", type=Path, help="an earlier result: nothing is built")
    parser.add_argument("--threads", type=int, help="of a processor")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    is_gpu = args.target == "cuda"
    threads = {"threads": args.threads} if args.threads else {}
    began, stages = time.perf_counter(), Stages()
    if args.calibration:
        calibrated = read_target(args.calibration)
    else:
        calibrated = calibrate(target_named(make_options({"target": args.target, **threads})), tell=stages)
    target = Target(calibrated.kind, calibrated.arch, calibrated.threads)
    seconds = time.perf_counter() - began
    args.folder.mkdir(parents=True, exist_ok=True)
    write_target(calibrated, args.folder / "calibration.toml")
    known = {"calibrated": calibrated} | ({"uncalibrated": stated_ceilings(target)} if is_gpu else {})
    names = _names(args.cases, is_gpu=is_gpu)
    made: dict[str, Any] = {
        "date": str(date.today()), "calibrated_on": calibrated.measured,
        "torch": torch.__version__, "calibration_s": round(seconds, 1), "points": len(calibrated.points),
        "calibration_sets_s": stages.seconds(), "left_out": dict(calibrated.left_out), "rows": [],
    }  # fmt: skip
    fields = ("build_s", "how", "measured_us", "steps")
    rows = json.loads(args.measured.read_text())["rows"] if args.measured else []
    earlier = {row["case"]: {field: row[field] for field in fields} for row in rows if "steps" in row}
    out = args.out or Path(f"bench/results/prediction-{args.target}-{date.today()}.json")
    for name, source, options in gpu_sources(names, args.folder) if is_gpu else cpu_sources(names):
        try:
            found = {how: predict(source, c, make_options(options)) for how, c in known.items()}
            row = {
                "case": name,
                **(earlier.get(name) or measure(source, {**options, **threads}, args.target)),
            }
            made["rows"].append(row | {how: compared(row, one) for how, one in found.items()})
        except Exception as error:  # a case that fails must not lose the others
            made["rows"].append({"case": name, "error": f"{type(error).__name__}: {error}"[:300]})
        made |= {how: summary(made["rows"], how) for how in known}
        print(json.dumps(_short(made["rows"][-1])), flush=True)
        out.write_text(json.dumps(made, indent=1))
        gc.collect()
    print(json.dumps({how: made.get(how) for how in known}))


def _names(cases: str, *, is_gpu: bool) -> list[str]:
    if cases == "unseen":
        return [*UNSEEN]
    if cases:
        return cases.split(",")
    return [*GPU_DEFAULT, *FURTHER] if is_gpu else [*CPU_DEFAULT]


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """Without its layers."""
    cut = {key: _short(value) if isinstance(value, dict) else value for key, value in row.items()}
    return {key: value for key, value in cut.items() if key != "steps"}


if __name__ == "__main__":
    main()
