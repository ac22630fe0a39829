"""Ridgeline as an ONNX backend, so that ONNX's own tests and tools can drive it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from ridgeline.builder import build
from ridgeline.runtime.engine import Engine


class RidgelineRep(BackendRep):  # type: ignore[misc]
    """A prepared model."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        names = [port.name for port in self.engine.plan.inputs]
        if isinstance(inputs, dict):
            feeds = inputs
        else:
            given = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            if len(given) < len(names):  # inputs with a default may be left out, all together
                names = [name for name in names if name not in self.engine.signature.defaults]
            feeds = {name: _as_given(value) for name, value in zip(names, given, strict=True)}
        made = self.engine.run(feeds)
        return tuple(made[port.name] for port in self.engine.plan.outputs)


def _as_given(value: Any) -> Any:
    """Numbers as arrays; sequences, strings in arrays and absent optionals as they are."""
    return value if value is None or isinstance(value, (list, tuple, dict)) else np.asarray(value)


class RidgelineBackend(Backend):  # type: ignore[misc]
    """`prepare` builds without timing or verification: the caller compares."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> RidgelineRep:
        options = {"level": 0, "verify": "off", "without": ("ort",), **kwargs}
        return RidgelineRep(build(model, **options))

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.split(":")[0] == "CPU"


prepare = RidgelineBackend.prepare
run_model = RidgelineBackend.run_model
supports_device = RidgelineBackend.supports_device


__all__: Sequence[str] = ("RidgelineBackend", "prepare", "run_model", "supports_device")
