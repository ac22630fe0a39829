"""Products through cuBLASLt's own interface: several algorithms to time, and bias and residual in one go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.devices import Device
from ridgeline.base.spec import TF32, Config, Site
from ridgeline.errors import PlanError
from ridgeline.kernels.cublaslt import ALIGNMENT, Matmul, Sizes
from ridgeline.tactics.base import Call, once
from ridgeline.tactics.cuda.cublas import Cublas, Product, rows_of
from ridgeline.tactics.predict import ALGORITHM_STEP, cublas_us
from ridgeline.tactics.read.remainder import Taken, take_epilogue

TRIED = 4  # of the algorithms in the library's own order


class CublasLt(Cublas):
    """epilogue(x · W) by one algorithm of cuBLASLt's list."""

    name = "cublas.lt"

    def _configs(self) -> Sequence[Config]:
        return [{"algorithm": place} for place in range(TRIED)]

    def _predict_us(self, site: Site, depth: int, rest: Site | None, config: Config, device: Device) -> float:
        return cublas_us(site, depth, rest, device) * (1.0 + ALGORITHM_STEP * int(config["algorithm"]))

    def _take(self, site: Site, product: Product) -> Taken:
        return take_epilogue(site, product, activations=("relu", "gelu_tanh"), takes_residual=True)

    def _bind_fill(
        self, site: Site, product: Product, taken: Taken, weight: Tensor, bias: Tensor | None, config: Config
    ) -> Call:
        place, rounds = int(config["algorithm"]), product.anchor.math == TF32

        def make(sizes: Sizes) -> Matmul:
            sizes = replace(sizes, rounds=rounds)
            return Matmul(sizes, bias, taken.activation, place, adds=bool(taken.residual))

        return matmul_call(site, product, taken, weight, make)


def matmul_call(
    site: Site, product: Product, taken: Taken, weight: Tensor, make: Callable[[Sizes], Matmul]
) -> Call:
    """The product over whatever operands a launch has; algorithms are kept by their sizes."""
    slot, rows = product.slot, partial(rows_of, product)
    addend = site.body.inputs.index(taken.residual) if taken.residual else -1
    ready: dict[Sizes, Matmul] = {}

    def freeze(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], None]:
        x, y = rows(inputs[slot]), rows(outputs[0])
        r = rows(inputs[addend]) if addend >= 0 else y
        if any(t.stride(1) != 1 or t.data_ptr() % ALIGNMENT for t in (x, y, r)):
            raise RefusedError(f"rows that lie apart, or do not start at a multiple of {ALIGNMENT} bytes")
        depth, columns = weight.shape
        if x.shape[1] != depth or any(t.shape != (len(x), columns) for t in (y, r)):
            shapes = [list(t.shape) for t in (x, weight, y, r)]
            raise PlanError("a product's operands do not fit", got=f"x, weight, y, addend of {shapes}")
        sizes = Sizes(len(y), columns, depth, x.stride(0), y.stride(0), r.stride(0), x.dtype, y.dtype)
        if sizes not in ready:
            ready[sizes] = make(sizes)
        return ready[sizes].freeze(x.data_ptr(), weight.data_ptr(), r.data_ptr(), y.data_ptr())

    return once(freeze)
