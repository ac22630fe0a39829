"""One Q/DQ file in our engine and in ONNX Runtime, from one QuantizeLinear to the next.

    python -m bench.same_file [--only TASK,…] [--samples N] [--level N] [--without ort] [--out FILE]

A level that flips within rounding of a tie is carried on by a deep network, so outputs of a whole model say
little about one runtime against another. Here every piece of the file that `ridgeline.quantize` wrote starts
from the levels that ONNX Runtime made in a whole run, its optimisations off, and both make the next ones.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

import ridgeline
from bench.accuracy import MODELS, RESULTS
from bench.accuracy_rows import Workspace, quantised_file
from bench.accuracy_tasks import TASKS, Feeds, Task
from ridgeline.errors import RidgelineError
from ridgeline.frontend.other_runtimes import open_session, session_options


@dataclass
class Row:
    """One model: levels made by all pieces over all samples, and how many differ by how much."""

    task: str
    samples: int
    pieces: int = 0
    levels: int = 0
    differ: int = 0
    most_apart: int = 0  # in levels
    float_error: float = 0.0  # of outputs that are no levels, the largest distance by the largest value
    tactics: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)


class _Enough(Exception):
    """The samples that were asked for are here."""


def first_samples(task: Task, count: int) -> list[Feeds]:
    """The first inputs that the task is evaluated with."""
    found: list[Feeds] = []

    def record(feeds: Feeds) -> dict[str, np.ndarray]:
        found.append(dict(feeds))
        if len(found) == count:
            raise _Enough
        return session.run(feeds)

    with tempfile.TemporaryDirectory() as folder:
        session = Workspace(Path(folder), "cpu", 1, 1).session(task.model)
        with suppress(_Enough):
            task.evaluate(record)
    return found


class Pieces:
    """A model cut behind every QuantizeLinear of what is computed."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self.producer = {name: node for node in model.graph.node for name in node.output if name}
        self.inputs = {port.name for port in model.graph.input} - set(self.constants)
        outputs = [port.name for port in model.graph.output]
        cut = [
            node.output[0]
            for node in model.graph.node
            if node.op_type == "QuantizeLinear" and self._is_computed(node.input[0])
        ]
        self.ends = list(dict.fromkeys([*cut, *outputs]))
        self._borders = self.inputs | set(self.ends)

    def _is_computed(self, name: str) -> bool:
        waiting, seen = [name], {""}
        while waiting:
            each = waiting.pop()
            if each in self.inputs:
                return True
            if each not in seen and each in self.producer:
                waiting += self.producer[each].input
            seen.add(each)
        return False

    def before(self, end: str) -> tuple[onnx.ModelProto, list[str]]:
        """The piece that makes a value, without types of its inputs, and the values it starts from."""
        waiting, nodes, starts = list(self.producer[end].input), {id(self.producer[end])}, []
        while waiting:
            name = waiting.pop()
            if name in self._borders:
                starts.append(name)
            elif name in self.producer and id(self.producer[name]) not in nodes:
                nodes.add(id(self.producer[name]))
                waiting += self.producer[name].input
        chosen = [node for node in self.model.graph.node if id(node) in nodes]
        used = {name for node in chosen for name in node.input}
        piece = onnx.ModelProto(ir_version=self.model.ir_version, opset_import=self.model.opset_import)
        piece.graph.name = "piece"
        piece.graph.node.extend(chosen)
        piece.graph.initializer.extend(tensor for name, tensor in self.constants.items() if name in used)
        return piece, list(dict.fromkeys(starts))


def port(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    made = onnx.ValueInfoProto(name=name)
    made.type.tensor_type.elem_type = numpy_helper.from_array(array.ravel()[:0]).data_type
    made.type.tensor_type.shape.SetInParent()
    for size in array.shape:
        made.type.tensor_type.shape.dim.add().dim_value = size
    return made


def runtime_values(model: onnx.ModelProto, names: Iterable[str], feeds: Feeds) -> dict[str, np.ndarray]:
    """These values of a whole run by ONNX Runtime, with its optimisations off."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    have = {each.name for each in shown.graph.output}
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in have)
    session = open_session(shown, session_options(threads=1, is_optimised=False))
    wanted = list(names)
    return dict(zip(wanted, session.run(wanted, dict(feeds)), strict=True))


def compare(row: Row, model: onnx.ModelProto, samples: Sequence[Feeds], **options: Any) -> None:
    """Fills the row; `options` are those of the builds."""
    pieces = Pieces(model)
    runs = [{**feeds, **runtime_values(model, pieces.ends, feeds)} for feeds in samples]
    used: Counter[str] = Counter()
    for end in pieces.ends:
        for values in runs:
            piece, starts = pieces.before(end)
            piece.graph.input.extend(port(name, values[name]) for name in starts)
            piece.graph.output.append(port(end, values[end]))
            try:
                engine = ridgeline.build(piece, verify="off", threads=1, progress=False, **options)
            except RidgelineError as error:
                row.refused.append(f"{end}: {str(error).splitlines()[0]}")
                break
            used.update(step.tactic for step in engine.plan.steps)
            got = engine.context().run({name: values[name] for name in starts})
            count(row, np.asarray(got[end]), values[end])
        row.pieces += 1
    row.tactics = dict(used.most_common())


def count(row: Row, got: np.ndarray, want: np.ndarray) -> None:
    if want.dtype.kind not in "iu":
        largest = float(np.abs(want).max(initial=0.0)) or 1.0
        off = float(np.abs(got - want).max(initial=0.0)) / largest
        row.float_error = max(row.float_error, off if np.isfinite(off) else np.inf)
        return
    apart = np.abs(got.astype(np.int64) - want.astype(np.int64))
    row.levels += apart.size
    row.differ += int((apart > 0).sum())
    row.most_apart = max(row.most_apart, int(apart.max(initial=0)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(TASKS), help="tasks, by comma")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--level", type=int, default=1)
    parser.add_argument("--without", nargs="*", default=[], help="tactics to leave out")
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--out", type=Path, default=RESULTS / f"same-file-{datetime.now(UTC):%Y-%m-%d}.json")
    arguments = parser.parse_args()
    options = {"level": arguments.level, "without": tuple(arguments.without)}
    about = {"onnxruntime": onnxruntime.__version__, **options}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder), "cpu", 1, arguments.level)
        for name in arguments.only.split(","):
            task = TASKS[name](arguments.models)
            row = Row(name, arguments.samples)
            model = onnx.load(quantised_file(workspace, task, "int8", {"format": "int8"}))
            compare(row, model, first_samples(task, arguments.samples), **options)
            rows.append(row)
            print(row, flush=True)
            arguments.out.write_text(
                json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
