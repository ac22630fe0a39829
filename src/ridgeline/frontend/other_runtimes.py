"""ONNX Runtime and the onnx evaluator: ops that the first has, options of its sessions, who opens a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

import onnx
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from ridgeline.errors import BuildError, first_line

T = TypeVar("T")
# the setting that names the folder of external data
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


@lru_cache(maxsize=1)
def _runtime_ops() -> frozenset[tuple[str, str]]:
    listed = getattr(ort_state, "get_all_operator_schema", None)
    if listed is None:
        return frozenset()
    return frozenset((schema.domain, schema.name) for schema in listed())


def known_to_runtimes(domain: str, op_type: str) -> bool:
    """Whether ONNX Runtime's CPU build has an op outside the standard. Models with it are not refused."""
    return (domain, op_type) in _runtime_ops()


def session_options(
    *, threads: int = 0, is_optimised: bool = True, settings: Mapping[str, str] | None = None
) -> ort.SessionOptions:
    """Options of a session that logs nothing. No threads means all cores."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    if not is_optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for key, value in (settings or {}).items():
        options.add_session_config_entry(key, value)
    return options


def open_session(source: onnx.ModelProto | str, options: ort.SessionOptions) -> ort.InferenceSession:
    """The session of a model, or of the file at this path."""
    content = source if isinstance(source, str) else source.SerializeToString()
    return ort.InferenceSession(content, options, ["CPUExecutionProvider"])


def session_or_evaluator(
    session: Callable[[], T], evaluator: Callable[[], T], failed: Callable[[Sequence[str]], BuildError]
) -> tuple[T, bool]:
    """What the first opens, else the second, and whether it is the first. `failed` makes the error of both
    reasons, for when neither can."""
    try:
        return session(), True
    except Exception as first:  # ONNX Runtime lacks an op, a type or an opset: the evaluator has most of them
        try:
            return evaluator(), False
        except Exception as second:
            rows = [f"ONNX Runtime: {first_line(first)}", f"onnx reference: {first_line(second)}"]
            raise failed(rows) from second
