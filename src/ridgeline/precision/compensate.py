"""Weights rounded one input channel after the other, each error made up for by the channels still to come.

Rounding to nearest makes every weight as near as can be; what counts is the product. With H = Σ x xᵀ over
real rows, rounding weight k by e changes the product least if the later weights move by -e · U[k, k:] /
U[k, k], where U is the upper Cholesky factor of H⁻¹ (as in GPTQ). Scales stay as they are, and so does the
type: only the codes differ. A weight whose product is not nearer with them keeps those of nearest rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.formats import Format, every_code, from_codes, to_codes
from ridgeline.base.scales import Encoded
from ridgeline.precision.calibrate import compared_rows
from ridgeline.precision.emulate import Emulator
from ridgeline.precision.place import Edge, Placement, WeightEdge
from ridgeline.precision.samples import Feeds, Samples
from ridgeline.precision.schemes import weight_axes

# samples that products are compared on: always the same of a data set, in whatever order it comes
ROWS = 32
# sums over more than this are left as they are: the factor of their H takes too long
MOST_DEPTH = 6144
# of the mean of H's diagonal, added to it: so that channels that always go together leave it invertible
DAMPING = 0.01
COLUMNS = 128  # rounded one by one before all later ones are moved at once
MOST_BYTES = 2**31  # of matrices H held at a time; the samples run again for the next


@dataclass(frozen=True)
class _Product:
    """A constant matrix [N, K] that is summed over K with rows of one tensor."""

    weight: WeightEdge
    x: str  # the tensor whose last axis is K

    @property
    def depth(self) -> int:
        return int(self.weight.array.shape[weight_axes(self.weight.edge.node)[1]])

    def rows(self, array: np.ndarray) -> np.ndarray:
        """As [N, K]; and back, since a transposition undoes itself."""
        return array if weight_axes(self.weight.edge.node)[1] % 2 == 1 else array.T


def compensated(
    placement: Placement, stored: Mapping[Edge, Encoded], emulator: Emulator, samples: Samples
) -> dict[Edge, Encoded]:
    """The stored weights, with other codes where these bring the products nearer."""
    made = dict(stored)
    rows = compared_rows(samples, ROWS)
    for some in _held_at_once(_products(placement)):
        moments = _second_moments(emulator, rows, {each.x: each.depth for each in some})
        for each in some:
            if each.x in moments:
                edge = each.weight.edge
                made[edge] = _nearer(each, stored[edge], moments[each.x])
    return made


def _products(placement: Placement) -> list[_Product]:
    found = []
    for weight in placement.weights:
        node, shape = weight.edge.node, weight.array.shape
        is_plain = node.op_type in ("MatMul", "Gemm") and not node.attributes.get_int("transA", 0)
        if is_plain and len(shape) == 2 and node.inputs[0] is not None:
            found.append(_Product(weight, str(node.inputs[0].name)))
    return [each for each in found if 1 < each.depth <= MOST_DEPTH]


def _held_at_once(products: Sequence[_Product]) -> Iterator[list[_Product]]:
    some: list[_Product] = []
    sizes: dict[str, int] = {}
    for each in products:
        size = 8 * each.depth**2
        if some and each.x not in sizes and sum(sizes.values()) + size > MOST_BYTES:
            yield some
            some, sizes = [], {}
        some.append(each)
        sizes[each.x] = size
    if some:
        yield some


def _second_moments(
    emulator: Emulator, rows: Sequence[Feeds], depths: Mapping[str, int]
) -> dict[str, Tensor]:
    """Σ x xᵀ of each tensor."""
    made: dict[str, Tensor] = {}

    def observe(name: str, tensor: Tensor) -> None:
        if depths.get(name) == tensor.shape[-1:].numel() and tensor.ndim and tensor.numel():
            x = tensor.reshape(-1, tensor.shape[-1]).double()
            made[name] = made[name] + x.T @ x if name in made else x.T @ x

    for row in rows:
        emulator.run(row, observe=observe)
    return {name: moment for name, moment in made.items() if bool(moment.isfinite().all())}


def _nearer(product: _Product, encoded: Encoded, moment: Tensor) -> Encoded:
    array, fmt = product.weight.array, encoded.fmt
    step = np.broadcast_to(encoded.granularity.spread(encoded.step(), array.shape), array.shape)
    weight, steps, plain = (
        torch.from_numpy(np.require(product.rows(a), requirements=["C", "W"])).to(moment.device).float()
        for a in (array, step, encoded.decoded())
    )
    factor = _factor(moment)
    if factor is None:
        return encoded
    found, power = _rounded(weight, steps, _grid(fmt).to(weight), factor), moment.float()
    if _energy(found * steps - weight, power) >= _energy(plain - weight, power):
        return encoded
    codes = to_codes(product.rows(found.cpu().numpy()), fmt)
    return replace(encoded, codes=np.ascontiguousarray(codes).reshape(array.shape))


def _energy(error: Tensor, moment: Tensor) -> float:
    """Of the products, when the weights are off by so much."""
    return float(((error @ moment) * error).double().sum())


def _grid(fmt: Format) -> Tensor:
    """The numbers of a format in order."""
    numbers = from_codes(every_code(fmt), fmt).astype(np.float64)
    inside = np.isfinite(numbers) & (numbers >= fmt.lowest) & (numbers <= fmt.largest)
    return torch.from_numpy(np.unique(numbers[inside] + 0.0))


def _factor(moment: Tensor) -> tuple[Tensor, Tensor] | None:
    """The order of channels, the largest first, and U of the damped H in that order; None if it has none."""
    diagonal = moment.diagonal()
    if not bool((diagonal > 0).any()):
        return None
    order = torch.argsort(diagonal, descending=True, stable=True)
    damped = moment[order][:, order] + torch.eye(len(moment)).to(moment) * (DAMPING * diagonal.mean())
    lower, info = torch.linalg.cholesky_ex(damped)
    if int(info):
        return None
    inverse = torch.cholesky_inverse(lower)
    upper, info = torch.linalg.cholesky_ex(inverse, upper=True)
    return None if int(info) else (order, upper.float())


def _rounded(weight: Tensor, steps: Tensor, grid: Tensor, factor: tuple[Tensor, Tensor]) -> Tensor:
    """Numbers of the grid for [N, K] weights, each to be multiplied by its step."""
    order, upper = factor
    left, steps = weight[:, order].contiguous(), steps[:, order].contiguous()
    ends = (grid[1:] + grid[:-1]) / 2
    chosen = torch.empty_like(left)
    depth = left.shape[1]
    for start in range(0, depth, COLUMNS):
        stop = min(start + COLUMNS, depth)
        block, errors = left[:, start:stop].clone(), torch.empty_like(left[:, start:stop])
        inside = upper[start:stop, start:stop]
        for i in range(stop - start):
            step = steps[:, start + i]
            number = grid[torch.bucketize(block[:, i] / step, ends)]
            chosen[:, start + i] = number
            errors[:, i] = (block[:, i] - number * step) / inside[i, i]
            block[:, i:] -= errors[:, i : i + 1] * inside[i : i + 1, i:]
        left[:, stop:] -= errors @ upper[start:stop, stop:]
    made = torch.empty_like(chosen)
    made[:, order] = chosen
    return made
