"""Predictions against measurements: every layer of every case, calibrated and not.

    PYTHONPATH=src:. python -m bench.predict_check --target cuda [--calibration FILE] [--cases a,b] [--out F]

The machine is calibrated first, unless a file is given, on networks of the calibration alone. Then each case
is predicted as `ridge predict` does, built, profiled, and compared: by layer what a step adds to the run, and
in all the captured run (on a CPU the run without transfers). No time of a case is read before its prediction.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch

import ridgeline
from bench.cases import CASES as CPU_CASES
from ridgeline.analyze.calibrate import calibrate
from ridgeline.analyze.predict import predict
from ridgeline.base.ceilings import Ceilings
from ridgeline.base.target_files import read_target, write_target
from ridgeline.options import make_options
from ridgeline.runtime.device import current_device
from ridgeline.tactics.cache import cpu_name
from ridgeline.targets import target_named
from ridgeline.targets.ceilings import stated_ceilings

GPU_DEFAULT = (
    "resnet50_b1", "resnet50_b32", "bert_base_s128_b1", "bert_base_s128_b32", "vit_b16_b1", "vit_b16_b32",
    "mobilenet_v2_b1", "mobilenet_v2_b32", "gpt2_s512_b1", "gpt2_s512_b8",
)  # fmt: skip
# nobody tuned the model for these: name, torchvision's name, batch
FURTHER = {
    "efficientnet_b0_b16": ("efficientnet_b0", 16), "convnext_tiny_b16": ("convnext_tiny", 16),
    "vgg16_bn_b8": ("vgg16_bn", 8), "regnet_y_800mf_b16": ("regnet_y_800mf", 16),
    "densenet121_b8": ("densenet121", 8),
}  # fmt: skip
CPU_DEFAULT = ("ppocr6_rec", "ppocr4_det", "minilm_18", "silero_vad", "nudenet", "ppocr6_cls")


def gpu_sources(names: list[str], folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    from bench.gpu_cases import CASES, Case, _image, _vision, export, randomise

    further = {n: Case(n, _vision(m), _image(b), is_image=True) for n, (m, b) in FURTHER.items()}
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


def check(
    name: str, source: str, options: dict[str, Any], target: str, known: dict[str, Ceilings]
) -> dict[str, Any]:
    predictions = {how: predict(source, c, make_options(options)) for how, c in known.items()}
    began = time.perf_counter()
    engine = ridgeline.build(source, target=target, verify="off", **options)
    row: dict[str, Any] = {"case": name, "build_s": round(time.perf_counter() - began, 1)}
    trace = engine.profile(engine.example_inputs())
    measured = {step.name: step.net_us for step in trace.steps}
    row |= {"measured_us": round(trace.total_us, 1), "steps": len(measured), "how": trace.how}
    for how, found in predictions.items():
        layers = {step.name: step.us for step in found.steps}
        errors = sorted(abs(layers[n] - us) / us for n, us in measured.items() if n in layers and us > 0)
        row[how] = {
            "predicted_us": round(found.total_us, 1),
            "end_to_end": round(found.total_us / trace.total_us - 1, 4),
            "median_layer": round(median(errors), 4) if errors else None,
            "p75_layer": round(errors[3 * len(errors) // 4], 4) if errors else None,
            "layers": len(errors),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--cases", default="")
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/ridge-predict"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    is_gpu = args.target == "cuda"
    target = target_named(make_options({"target": args.target}))
    began = time.perf_counter()
    calibrated = read_target(args.calibration) if args.calibration else calibrate(target)
    seconds = time.perf_counter() - began
    args.folder.mkdir(parents=True, exist_ok=True)
    write_target(calibrated, args.folder / "calibration.toml")
    known = {"calibrated": calibrated} | ({"uncalibrated": stated_ceilings(target)} if is_gpu else {})
    names = (
        args.cases.split(",") if args.cases else [*(GPU_DEFAULT + tuple(FURTHER) if is_gpu else CPU_DEFAULT)]
    )
    device: Any = current_device() if is_gpu else cpu_name()
    made: dict[str, Any] = {
        "date": str(date.today()), "device": asdict(device) if is_dataclass(device) else device,
        "torch": torch.__version__, "calibration_s": round(seconds, 1), "points": len(calibrated.points),
        "rows": [],
    }  # fmt: skip
    out = args.out or Path(f"bench/results/prediction-{args.target}-{date.today()}.json")
    for name, source, options in gpu_sources(names, args.folder) if is_gpu else cpu_sources(names):
        try:
            made["rows"].append(check(name, source, options, args.target, known))
        except Exception as error:  # a case that fails must not lose the others
            made["rows"].append({"case": name, "error": f"{type(error).__name__}: {error}"[:300]})
        print(json.dumps(made["rows"][-1]), flush=True)
        out.write_text(json.dumps(made, indent=1))
        gc.collect()


if __name__ == "__main__":
    main()
