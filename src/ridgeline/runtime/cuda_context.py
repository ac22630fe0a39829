"""A context on a GPU: as on the CPU, and it can be captured over the caller's own device tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from ridgeline.base.spec import TensorSpec
from ridgeline.runtime.context import Context, MakeBinding
from ridgeline.runtime.cuda_instance import BoundRun, CudaInstance, check_bound
from ridgeline.runtime.signature import Signature


class CudaContext(Context):
    """Runs an engine on the GPU for one thread at a time, on whatever stream is current."""

    def __init__(
        self,
        signature: Signature,
        make_binding: MakeBinding,
        make_instance: Callable[[Mapping[str, TensorSpec], Mapping[str, Tensor]], CudaInstance],
    ) -> None:
        super().__init__(signature, make_binding)
        self._make_instance = make_instance

    def bind(self, tensors: Mapping[str, Tensor]) -> BoundRun:
        """Capture the engine over these inputs: a run then is one graph launch that copies nothing."""
        arrays = dict(zip(self._names, self._signature.checked(tensors), strict=True))
        for port in self._ports.values():
            check_bound(port.name, arrays[port.name], port.dtype)
        specs = self._signature.specs(list(arrays.values()))
        self._signature.require(specs)
        return BoundRun(self._make_instance(specs, arrays))
