"""Products of float8 codes through cuBLASLt's own interface: scales, bias and residual in one launch.

Of scales the library takes one number for the whole product. What else follows is one generated kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.devices import Device
from ridgeline.base.spec import Config, Site
from ridgeline.kernels.cublaslt import Factor, Matmul, Sizes
from ridgeline.tactics.base import Footprint, Launch, Offer, Refused
from ridgeline.tactics.cuda.cublas import Product, Rest, after_library, read_product, read_rest
from ridgeline.tactics.cuda.cublas_lt import matmul_call
from ridgeline.tactics.cuda.own_kernels import KernelTactic
from ridgeline.tactics.cuda.read_codes import is_settled, require_codes, settled_value
from ridgeline.tactics.cuda.triton_quant import FAST_DEPTH, of_codes
from ridgeline.tactics.predict import ALGORITHM_STEP, cublas_us
from ridgeline.tactics.read.epilogue import constant_tensors, find_anchor
from ridgeline.tactics.read.linear import order_weight
from ridgeline.tactics.read.remainder import Taken, rest_of, take_epilogue
from ridgeline.tactics.shared_copies import shared_copy

FLOAT8 = "float8_e4m3fn"
MADE = ("float16", "bfloat16")
TRIED = 3  # of the algorithms in the library's own order
MULTIPLE = 16  # of columns and depth


@dataclass(frozen=True)
class _Product:
    """epilogue(scales · x · w) as the library reads it: `site` has the codes in place of the numbers."""

    site: Site
    product: Product
    scales: tuple[str, str]
    taken: Taken
    rest: Rest


class CublasFloat8(KernelTactic):
    """epilogue(scale · Σ codes · codes) by one algorithm of cuBLASLt's list."""

    name = "cublas.float8"
    reads_levels = True

    def offer(self, site: Site) -> Offer | Refused:
        found = self._read(site)
        depth, columns = found.product.depth, found.product.y.shape[found.product.channel_axis]
        if depth % MULTIPLE or columns % MULTIPLE:
            return Refused(f"{columns} columns and sums of {depth}, want multiples of {MULTIPLE}")
        footprint = Footprint(True, packed_bytes=depth * columns, scratch_bytes=found.rest.scratch_bytes)
        fast = (True, False) if depth <= FAST_DEPTH else (False,)
        return Offer(
            [{"algorithm": place, "is_fast": is_fast} for place in range(TRIED) for is_fast in fast],
            bind=partial(_bind, found),
            kernels=found.rest.kernels,
            footprint=lambda config: footprint,
            predict_us=partial(_predict_us, site, depth, found.rest.site),
            compiles=found.rest.site is not None,
        )

    def _read(self, site: Site) -> _Product:
        anchor = find_anchor(site.body, ("MatMul", "Gemm", "Conv"))
        x, w = require_codes(site, anchor, 0), require_codes(site, anchor, 1)
        if (x.dtype, w.dtype) != (FLOAT8, FLOAT8):
            raise RefusedError(f"codes are {x.dtype} and {w.dtype}, want {FLOAT8}")
        if not site.target.has_float8:
            raise RefusedError(f"{site.target.arch} has no tensor cores for {x.dtype}")
        are_settled = all(is_settled(site, scale) for scale in (x.scale, w.scale))
        if x.axis is not None or w.axis is not None or not are_settled:
            raise RefusedError("want one constant scale for each operand")
        if x.is_transposed or w.is_transposed:
            raise RefusedError("an operand is transposed behind its scale")
        bare = of_codes(site, anchor, x, w)
        product = read_product(bare, (FLOAT8,))
        if float(anchor.attrs.get("alpha", 1.0)) != 1.0:
            raise RefusedError("the product has a factor")
        if product.y.dtype not in MADE:
            raise RefusedError(f"the result is {product.y.dtype}, want {', '.join(MADE)}")
        taken = take_epilogue(bare, product, activations=("relu",), takes_residual=True)
        rest = read_rest(rest_of(bare, taken.value), self.store)
        if rest.site is None and product.channel_axis == 1 and site.outputs[0].layout != "channels_last":
            raise RefusedError("the result is not channels last")
        return _Product(bare, product, (x.scale, w.scale), taken, rest)


def _predict_us(site: Site, depth: int, rest: Site | None, config: Config, device: Device) -> float:
    return cublas_us(site, depth, rest, device) * (1.0 + ALGORITHM_STEP * int(config["algorithm"]))


def _bind(found: _Product, config: Config, weights: Mapping[str, Tensor]) -> Launch:
    site, product, taken = found.site, found.product, found.taken
    wanted = (product.weight, *taken.biases)
    constants = {n: t.to("cuda") for n, t in constant_tensors(site, weights).items() if n in wanted}
    weight_kn = product.weight_kn(constants[product.weight])
    weight = shared_copy(order_weight(weight_kn, "nk"), weight_kn)
    bias = product.bias(constants, taken.biases)
    scales = [float(settled_value(site, weights, name).reshape(())) for name in found.scales]
    factor = Factor(scales[0] * scales[1], bool(config["is_fast"]))
    place = int(config["algorithm"])

    def make(sizes: Sizes) -> Matmul:
        return Matmul(sizes, bias, taken.activation, place, adds=bool(taken.residual), factor=factor)

    fill = matmul_call(site, product, taken, weight, make)
    packed = weight.nbytes + (bias.nbytes if bias is not None else 0)
    if found.rest.site is None:
        return Launch(fill, writes_out=True, packed_bytes=packed)
    return after_library(site, found.rest.site, fill, found.rest.bind(weights), packed_bytes=packed)
