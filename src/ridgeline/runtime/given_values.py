"""Values that steps read and no step makes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from ridgeline.kernels.elements import on_device, to_torch


class GivenValues:
    """What no step makes: weights, and values known on the host, on either side where a GPU is used."""

    def __init__(self, weights: Mapping[str, Tensor], values: Mapping[str, np.ndarray], device: str) -> None:
        self._weights, self._values, self._device = weights, values, device
        self._made: dict[tuple[str, bool], Tensor] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._weights or (name in self._values and self._values[name].dtype.kind not in "OUS")

    def get(self, name: str, *, on_host: bool = False) -> Tensor:
        if name in self._weights and not (on_host and name in self._values):
            return self._weights[name]
        if (name, on_host) not in self._made:
            self._made[name, on_host] = on_device(
                to_torch(self._values[name]), "cpu" if on_host else self._device
            )
        return self._made[name, on_host]
