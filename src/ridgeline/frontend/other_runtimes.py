"""ONNX Runtime and the onnx evaluator: options of a session, and who of the two opens a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import onnx
import onnxruntime as ort

from ridgeline.errors import BuildError, first_line

T = TypeVar("T")
# the setting that names the folder of external data
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


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
