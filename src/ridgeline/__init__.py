"""Ridgeline: an open inference engine that shows its work.

    import ridgeline
    engine = ridgeline.build("model.onnx")
    outputs = engine.run({"x": array})
    module = ridgeline.compile(module)  # a PyTorch module that runs engines

Importing this starts nothing: PyTorch and the rest are imported when a name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ridgeline import errors
from ridgeline.base.version import VERSION

if TYPE_CHECKING:
    from ridgeline import onnx_backend
    from ridgeline.analyze.report_files import write_report
    from ridgeline.builder import build
    from ridgeline.builder import load_engine as load
    from ridgeline.plugins.register import register_op
    from ridgeline.precision.quantize import quantize
    from ridgeline.precision.recheck import verify_engine
    from ridgeline.runtime.engine import Engine
    from ridgeline.torch_in.module import compile_module as compile

__version__ = VERSION
__all__ = [
    "Engine", "__version__", "build", "compile", "errors", "load", "onnx_backend", "quantize",
    "register_op", "verify_engine", "write_report",
]  # fmt: skip

_HOMES = {
    "build": ("ridgeline.builder", "build"),
    "compile": ("ridgeline.torch_in.module", "compile_module"),
    "quantize": ("ridgeline.precision.quantize", "quantize"),
    "register_op": ("ridgeline.plugins.register", "register_op"),
    "load": ("ridgeline.builder", "load_engine"),
    "verify_engine": ("ridgeline.precision.recheck", "verify_engine"),
    "Engine": ("ridgeline.runtime.engine", "Engine"),
    "write_report": ("ridgeline.analyze.report_files", "write_report"),
}


def __getattr__(name: str) -> Any:
    if name == "onnx_backend":
        return import_module("ridgeline.onnx_backend")
    if name not in _HOMES:
        raise AttributeError(f"module 'ridgeline' has no attribute {name!r}")
    home, attribute = _HOMES[name]
    value = getattr(import_module(home), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
