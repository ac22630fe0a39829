"""Versions of the libraries that compute, for reports."""

from __future__ import annotations

import platform

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch


def versions() -> dict[str, str]:
    libraries = {each.__name__: each.__version__ for each in (torch, ort, onnx, ir, np)}
    return {"python": platform.python_version(), **libraries}
