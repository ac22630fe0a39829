"""Writes docs/json.md: what `--json` prints, form by form, read from the classes that hold it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from ridgeline.analyze.bench import BenchReport
from ridgeline.analyze.bench_sweep import SweepReport
from ridgeline.analyze.buckets import Proposal
from ridgeline.analyze.compare import Comparison
from ridgeline.analyze.diff import Diff
from ridgeline.analyze.doctor import DoctorReport
from ridgeline.analyze.explain import Explanation
from ridgeline.analyze.headline import Headline
from ridgeline.analyze.kernel_code import CodeReport
from ridgeline.analyze.kernel_report import KernelReport
from ridgeline.analyze.model_nodes import ModelNodes
from ridgeline.analyze.predict import Prediction
from ridgeline.analyze.predict_llm import LlmPrediction
from ridgeline.analyze.profile_report import ProfileReport
from ridgeline.analyze.ranges import RangeReport
from ridgeline.analyze.report_data import EngineReport
from ridgeline.analyze.sensitivity import SensitivityReport
from ridgeline.analyze.show import Summary
from ridgeline.analyze.tensors import TensorRow
from ridgeline.analyze.top import TopReport
from ridgeline.base.ceilings import Ceilings
from ridgeline.cli.render import SCHEMA_VERSION
from ridgeline.plan.report import Report
from ridgeline.plugins.catalog import PluginRow
from ridgeline.precision.quantize_report import QuantizeReport
from ridgeline.serve.clients.rows import Inference
from ridgeline.serve.loadtest.rows import LoadReport
from ridgeline.surgery.extract import Extracted
from ridgeline.surgery.lint import LintReport
from ridgeline.surgery.reduce import Reduced

HEAD = f"""# What --json prints

<!-- written by docs/make_json.py; run `make docs` -->

Every command takes `--json` and then prints one JSON object on standard output and nothing else there;
progress and notes stay on standard error. The field `schema` names the form and its version,
`ridgeline/FORM/{SCHEMA_VERSION}`. The version goes up when a field goes or changes its meaning; new fields
may come at any time.

Numbers are numbers (`_us` microseconds, `_s` seconds, `_bytes` bytes), NaN and infinities are `null`. Dims
are lists: a number, the name of a dim that may change, or `null` where the model says nothing. Paths are as
they were given or made.

A command that fails prints the form `error` instead: `error` (the class, see [errors](errors.md)), `what`,
`got`, `want`, `rows`, `help` as far as there are such, and `exit`, the [exit status](command-line.md).
A `VerifyError` has the `checks` that were made as well, failed ones among them, as `ridge verify` has them.
`ridge lint` and a failed gate of `ridge bench` print their own form and exit with 1 and 3.
"""
FILES = {
    "file": "string: the engine, the part or the report; what was read, where nothing is written",
    "file_bytes": "number: its size",
    "source": "string: the ONNX file, where the command read one",
}
# form: who prints it, what it holds, and which paths
FORMS: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "engine": ("`ridge build`, `show`, `settle`", Summary, ("file", "file_bytes", "source")),
    "model": ("`ridge show MODEL.onnx`", ModelNodes, ("file",)),
    "outputs": ("`ridge run`, in `rows`", TensorRow, ("file",)),
    "checks": ("`ridge verify`", Report, ("file", "source")),
    "comparison": ("`ridge compare`", Comparison, ()),
    "ranges": ("`ridge debug ranges`", RangeReport, ("source",)),
    "sensitivity": ("`ridge debug precision`", SensitivityReport, ("source",)),
    "quantized": ("`ridge quantize`", QuantizeReport, ("file", "source")),
    "bench": ("`ridge bench`", BenchReport, ("file",)),
    "bench_sweep": ("`ridge bench --sweep`", SweepReport, ("file",)),
    "profile": ("`ridge profile`", ProfileReport, ("file",)),
    "explanation": ("`ridge explain`", Explanation, ("file",)),
    "report": (
        "`ridge report`, also as a file with `--format json`",
        EngineReport,
        ("file", "file_bytes", "source"),
    ),
    "prediction": ("`ridge predict`", Prediction, ("file",)),
    "llm_prediction": ("`ridge predict config.json`", LlmPrediction, ("file",)),
    "diff": ("`ridge diff`, with the paths `a` and `b`", Diff, ()),
    "ceilings": ("`ridge calibrate`, with `seconds`", Ceilings, ("file",)),
    "shapes": ("`ridge shapes`", Proposal, ("file",)),
    "kernels": ("`ridge kernels`", KernelReport, ("file",)),
    "kernel_code": ("`ridge kernels --sass`, `--ptx`", CodeReport, ("file",)),
    "inference": ("`ridge infer`", Inference, ()),
    "load_test": ("`ridge loadtest`", LoadReport, ()),
    "plugins": ("`ridge plugins`, in `rows`", PluginRow, ()),
    "part": ("`ridge extract`", Extracted, ("file", "source")),
    "problems": ("`ridge lint`", LintReport, ("source",)),
    "reduced": ("`ridge reduce`", Reduced, ("file", "source")),
    "doctor": ("`ridge doctor`", DoctorReport, ()),
    "top": ("`ridge top`", TopReport, ()),
    "demo": ("`ridge demo`, in `rows`", Headline, ("file",)),
}
PLAIN = {str: "string", bool: "true or false", int: "number", float: "number", Any: "any"}


def json_page() -> str:
    parts = [HEAD]
    told: dict[str, Any] = {}
    for form, (who, cls, paths) in FORMS.items():
        parts.append(
            f"## {form}\n\n{who}. {_doc(cls)}\n\n{_table(cls, {name: FILES[name] for name in paths})}"
        )
        told.update((_name(inner), inner) for inner in _inner(cls))
    parts.append("## Parts of these\n")
    parts += [f"### {name}\n\n{_doc(cls)}\n\n{_table(cls, {})}" for name, cls in sorted(told.items())]
    return "\n".join(parts)


def _name(cls: Any) -> str:
    """``Step Row``; with its module for a class of `surgery`, which has names of its own."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", cls.__qualname__)
    package, module = cls.__module__.split(".")[-2:]
    return f"{words} of {module}" if package == "surgery" else words


def _doc(cls: type) -> str:
    return " ".join((inspect.getdoc(cls) or "").split())


def _members(cls: type) -> dict[str, Any]:
    """Fields and properties, as `to_json` writes them."""
    hints = get_type_hints(cls)
    made = {field.name: hints[field.name] for field in fields(cls)}
    for name, what in vars(cls).items():
        if isinstance(what, property) and what.fget is not None:
            made[name] = get_type_hints(what.fget)["return"]
    return made


def _table(cls: type, more: Mapping[str, str]) -> str:
    rows = [f"| `{name}` | {_type(hint)} |" for name, hint in _members(cls).items()]
    rows += [f"| `{name}` | {text} |" for name, text in more.items()]
    return "\n".join(["| field | |", "| --- | --- |", *rows, ""])


def _type(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        name = _name(hint)
        return f"[{name}](#{name.lower().replace(' ', '-')})"
    if origin in (Union, UnionType):
        kinds = dict.fromkeys("null" if a is NoneType else _type(a) for a in arguments)
        return " or ".join(kinds)
    if origin is tuple:
        return "list of " + " or ".join(dict.fromkeys(_type(a) for a in arguments if a is not Ellipsis))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"object of {_type(arguments[1])}"
    return PLAIN.get(hint, "string")


def _inner(cls: type) -> Iterator[type]:
    """The dataclasses that a form holds, at any depth."""
    for hint in _members(cls).values():
        pending = [hint]
        while pending:
            at = pending.pop()
            if is_dataclass(at) and isinstance(at, type):
                yield at
                yield from _inner(at)
            pending += get_args(at)


if __name__ == "__main__":
    (Path(__file__).parent / "json.md").write_text(json_page(), encoding="utf-8")
