"""Models that one CUDA graph cannot hold, against PyTorch in the same run: wall time of a run on data.

    python -m bench.islands --out bench/results/h200-islands.json       # on this machine's GPU, in halves
    python -m bench.islands --target cpu --small                        # that all of it builds and verifies

A run takes tensors where they lie and ends when its results are there. Peers: the module eager, and compiled,
with torchvision's suppression if it is installed, else one in PyTorch; and a loop in Python around a step.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import ridgeline
from bench.gpu_cases import randomise
from bench.island_networks import Detector, Step, Suppression, retinanet, ssdlite, step
from ridgeline.analyze.runs import graphs_text
from ridgeline.base.timing import interleave, paired_ratio
from ridgeline.errors import RidgelineError

Run = Callable[[], object]
END = 1  # the token that ends a text
OPSET = 20


class Bench:
    """Where and in which type everything runs."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = "cpu" if args.target == "cpu" else "cuda"
        self.dtype = torch.float32 if self.device == "cpu" else torch.float16

    def place(self, made: nn.Module) -> nn.Module:
        return made.to(self.device, self.dtype)

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def row(self, name: str, model: onnx.ModelProto, feeds: dict[str, Tensor], peers: dict[str, Run]) -> Any:
        row: dict[str, Any] = {"case": name}
        start = time.perf_counter()
        options = {"target": self.args.target, "level": self.args.level, "progress": False}
        try:
            engine = ridgeline.build(model, verify=self.args.verify, **options)
        except RidgelineError as error:
            # in halves a score may lie on the other side of a threshold, and another box is picked
            row["verify_failed"] = str(error)[:1000]
            engine = ridgeline.build(model, verify="off", **options)
        row |= {"build_s": round(time.perf_counter() - start, 1), "verified": engine.report.verified}
        context = engine.context()
        calls: dict[str, Run] = {"ridgeline": lambda: context.run(feeds), **peers}
        for peer, call in list(calls.items()):
            try:
                for _ in range(3):
                    call()
            except Exception as error:  # a peer that breaks costs its own figure only
                row[f"{peer}_failed"] = f"{type(error).__name__}: {error}"[:300]
                del calls[peer]
        timings = interleave([self._ended(call) for call in calls.values()], budget_s=self.args.budget_s)
        for peer, timing in zip(calls, timings, strict=True):
            row[f"{peer}_ms"] = round(timing.median_us / 1e3, 4)
            if peer != "ridgeline":
                row[f"ratio_{peer}"] = round(paired_ratio(timing, timings[0]), 3)
        made = context.run(feeds)
        row["sizes"] = {name: list(array.shape) for name, array in made.items()}
        row["graphs"] = graphs_text(engine.report.run_parts)
        row["parts"] = [[p.graph, p.is_captured, list(p.steps), p.why] for p in engine.report.run_parts]
        row["islands"] = [[i.step, " ".join(i.ops), i.why, i.body] for i in engine.report.islands]
        return row | {"notes": engine.notes}

    def _ended(self, call: Run) -> Run:
        def run() -> None:
            call()
            self.wait()

        return run


# detectors


def detector_row(
    bench: Bench, name: str, model: Detector, size: int, asked: Suppression, folder: Path
) -> Any:
    image = torch.rand(1, 3, size, size)
    path = folder / f"{name}.onnx"
    model = randomise(model.eval()).to(bench.dtype)  # type: ignore[assignment]
    with torch.inference_mode():
        _, scores = model(image.to(bench.dtype))
        # random weights know no certainty: the threshold lets through what a trained model would
        least = float(scores.flatten().kthvalue(scores.numel() - 400).values)
    asked = Suppression(asked.most, asked.overlap, least)
    torch.onnx.export(
        model, (image.to(bench.dtype),), str(path), input_names=["image"], output_names=["boxes", "scores"],
        opset_version=OPSET, dynamo=True, verbose=False,
    )  # fmt: skip
    made = with_suppression(onnx.load(path), asked)
    given, there = image.to(bench.device, bench.dtype), bench.place(model)
    peers = {peer: _detect(_compiled(there, peer), given, asked) for peer in ("eager", "compile")}
    return bench.row(name, made, {"image": given}, peers)


SUPPRESSED = """<ir_version: 10, opset_import: ["": 20]>
suppressed (float[1,N,4] boxes, float[1,C,N] scores)
    => (float[K,4] boxes_out, float[K] scores_out, int64[K] classes_out) {
  nms_picked = NonMaxSuppression (boxes, scores, nms_most, nms_overlap, nms_least)
  nms_class = Gather <axis = 1> (nms_picked, nms_one)
  nms_box = Gather <axis = 1> (nms_picked, nms_two)
  classes_out = Squeeze (nms_class, nms_one)
  nms_row = Squeeze (nms_box, nms_one)
  nms_boxes = Squeeze (boxes, nms_zero)
  boxes_out = Gather <axis = 0> (nms_boxes, nms_row)
  scores_out = GatherND (scores, nms_picked)
}"""


def with_suppression(model: onnx.ModelProto, asked: Suppression) -> onnx.ModelProto:
    """Boxes, scores and classes of what NonMaxSuppression picks, in place of all."""
    constants = {
        "most": np.array([asked.most]), "overlap": np.float32([asked.overlap]),
        "least": np.float32([asked.least]),
        "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]),
    }  # fmt: skip
    tail = onnx.parser.parse_model(SUPPRESSED).graph
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), f"nms_{name}") for name, array in constants.items()
    )
    model.graph.node.extend(tail.node)
    del model.graph.output[:]
    model.graph.output.extend(tail.output)
    return model


def _compiled(model: nn.Module, peer: str) -> Callable[..., Any]:
    return torch.compile(model) if peer == "compile" else model


def _detect(model: Callable[..., Any], image: Tensor, asked: Suppression) -> Run:
    def run() -> object:
        with torch.inference_mode():
            boxes, scores = model(image)
            labels, rows = (scores[0] > asked.least).nonzero(as_tuple=True)
            found, certain = boxes[0][rows], scores[0][labels, rows]
            # boxes of other classes are moved apart, so that one suppression does for all
            apart = found + labels[:, None] * (found.max() - found.min() + 1)
            picked = _suppress(apart, certain, asked.overlap)
            return found[picked], certain[picked], labels[picked]

    return run


def _suppress(boxes: Tensor, scores: Tensor, overlap: float) -> Tensor:
    try:
        from torchvision.ops import nms
    except ImportError:
        return _suppress_here(boxes, scores, overlap)
    kept: Tensor = nms(boxes, scores, overlap)
    return kept


def _suppress_here(boxes: Tensor, scores: Tensor, overlap: float) -> Tensor:
    """All overlaps at once; who is suppressed by whom is decided on the host."""
    order = scores.argsort(descending=True)
    boxes = boxes[order]
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    hides = (common > overlap * (area[:, None] + area - common)).cpu().numpy()
    is_kept = np.ones(len(hides), bool)
    for row in range(len(hides)):
        if is_kept[row]:
            is_kept[row + 1 :] &= ~hides[row, row + 1 :]
    return order[torch.from_numpy(np.flatnonzero(is_kept)).to(order.device)]


# the decoder


def decoder_row(bench: Bench, model: Step, steps: int, folder: Path) -> Any:
    model = randomise(model.eval()).to(bench.dtype)  # type: ignore[assignment]
    layers, width = len(model.qkv), model.last.in_features
    cache = torch.zeros(layers, model.heads, model.length, width // model.heads, dtype=bench.dtype)
    args = (torch.tensor(2), torch.tensor(0), cache, cache.clone())
    path = folder / "step.onnx"
    torch.onnx.export(model, args, str(path), input_names=["token", "place", "keys", "values"],
                      output_names=["following", "keys_out", "values_out"], opset_version=OPSET,
                      dynamo=True, verbose=False)  # fmt: skip
    made = in_a_loop(onnx.load(path), cache)
    there = bench.place(model)
    feeds = {"start": args[0].to(bench.device), "steps": torch.tensor(steps).to(bench.device)}
    empty = cache.to(bench.device)
    run_step = {"eager": there, "compile": torch.compile(there, mode="reduce-overhead")}
    peers = {peer: _decode(call, feeds["start"], empty, steps) for peer, call in run_step.items()}
    return bench.row("greedy_decoder", made, feeds, peers)


LOOP = """<ir_version: 10, opset_import: ["": 20]>
greedy_decoder (int64 start, int64 steps) => (int64 last, int64[K] tokens) {
  last, last_keys, last_values, tokens = Loop (steps, , start, cache, cache) <body =
    step (int64 place, bool go, int64 token, CACHE keys, CACHE values)
        => (bool go_on, int64 following, CACHE keys_out, CACHE values_out, int64 said) {
      is_end = Equal (following, end_token)
      go_on = Not (is_end)
      said = Identity (following)
    } >
}"""


def in_a_loop(model: onnx.ModelProto, cache: Tensor) -> onnx.ModelProto:
    """The step as the body of a Loop that ends after so many steps, or at the last token."""
    kind = {torch.float32: "float", torch.float16: "float16"}[cache.dtype]
    made = onnx.parser.parse_model(LOOP.replace("CACHE", f"{kind}[{','.join(map(str, cache.shape))}]"))
    body = made.graph.node[0].attribute[0].g
    ending = list(body.node)
    del body.node[:]
    body.node.extend([*model.graph.node, *ending])
    made.graph.initializer.extend(model.graph.initializer)
    constants = {"cache": cache.numpy(), "end_token": np.array(END)}
    made.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    made.functions.extend(model.functions)
    del made.opset_import[:]
    made.opset_import.extend(model.opset_import)
    made.ir_version = model.ir_version
    return made


def _decode(call: Callable[..., Any], start: Tensor, empty: Tensor, steps: int) -> Run:
    def run() -> object:
        with torch.inference_mode():
            token, keys, values, said = start, empty, empty, []
            for place in range(steps):
                made = call(token, torch.tensor(place, device=start.device), keys, values)
                # a captured step writes to the same memory again
                token, keys, values = (tensor.clone() for tensor in made)
                said.append(token)
                if token.item() == END:
                    break
            return torch.stack(said)

    return run


def rows(bench: Bench, names: Sequence[str], folder: Path) -> dict[str, Callable[[], Any]]:
    small = bench.args.small
    size, steps = (256, 160), 64
    every: dict[str, Callable[[], Any]] = {
        "retinanet_like": lambda: detector_row(
            bench, "retinanet_like", retinanet(size[0], 20, 64) if small else retinanet(),
            size[0] if small else 512, Suppression(100, 0.5, 0.0), folder,
        ),
        "ssdlite_like": lambda: detector_row(
            bench, "ssdlite_like", ssdlite(size[1], 20) if small else ssdlite(),
            size[1] if small else 320, Suppression(200, 0.55, 0.0), folder,
        ),
        "greedy_decoder": lambda: decoder_row(
            bench, step(2, 128, 1000, 32) if small else step(), 16 if small else steps, folder
        ),
    }  # fmt: skip
    return {name: every[name] for name in names or every}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", default="", help="retinanet_like, ssdlite_like, greedy_decoder")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--verify", default="full")
    parser.add_argument("--small", action="store_true", help="small networks: a look, not a result")
    parser.add_argument("--budget-s", type=float, default=10.0, help="of timing, for each case")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    bench, made = Bench(args), []
    with tempfile.TemporaryDirectory() as folder:
        names = [name for name in args.cases.split(",") if name]
        for name, run in rows(bench, names, Path(folder)).items():
            try:
                row = run()
            except Exception as error:  # one case that breaks must not cost the others
                traceback.print_exc()
                row = {"case": name, "failed": f"{type(error).__name__}: {error}"[:2000]}
            made.append(row)
            print(json.dumps(row), flush=True)
            if args.out is not None:
                args.out.parent.mkdir(parents=True, exist_ok=True)
                args.out.write_text(json.dumps({"torch": torch.__version__, "rows": made}, indent=1))


if __name__ == "__main__":
    main()
