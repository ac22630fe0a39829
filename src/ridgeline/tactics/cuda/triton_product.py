"""What the Triton tactics around one product or convolution share: refusals, compiling ahead, binding.

How a region is read is each tactic's own; descriptions and the ranking of cuts come from `kernels/triton`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.devices import Device
from ridgeline.base.spec import Config, Op, Site
from ridgeline.kernels.elements import to_torch
from ridgeline.kernels.scalar.anchor import NO_CODES, Dequantized
from ridgeline.kernels.triton.compiler import KernelStore
from ridgeline.kernels.triton.depthwise_products import Block
from ridgeline.kernels.triton.epilogue import Epilogue, make_epilogue
from ridgeline.kernels.triton.products import EXACT, TYPES, Problem, Tile
from ridgeline.kernels.triton.ranking import rank_gemm
from ridgeline.kernels.triton.source import Kernel
from ridgeline.kernels.triton.text import MOST_ITEMS
from ridgeline.tactics.base import Footprint, Launch, Offer, Refused
from ridgeline.tactics.cuda.own_kernels import (
    KernelTactic,
    bytes_packed,
    launcher_of,
    shapes_only,
)
from ridgeline.tactics.predict import product_us
from ridgeline.tactics.read.epilogue import constant_tensors
from ridgeline.tactics.shared_copies import shared_copy
from ridgeline.tactics.staging import staged_launch

GRID_LIMIT = 65_535


@dataclass(frozen=True)
class Reading:
    """A region as a kernel sees it: the sum, where its operands come from, where its columns lie."""

    anchor: Op
    problem: Problem
    x: int  # slot among the region's inputs
    weight: str
    pack: Callable[[Tensor], Tensor] | None  # None: the second operand is an input too, read where it lies
    columns_axis: int  # of the anchor's output
    codes: Dequantized = NO_CODES  # operands that the kernel takes as codes
    # makes all operands after x on a device: tensors, or slots of inputs; then there is no `pack`
    prepare: Callable[[Mapping[str, Tensor], str], Sequence[Tensor | int]] | None = None
    prepared_bytes: int = 0  # of those tensors
    slots: tuple[int, ...] = ()  # inputs among them, of which one item is read


class TritonProduct(KernelTactic):
    """epilogue(Σ x · w) in one kernel."""

    cut_type: ClassVar[type[Tile]] = Tile

    def read(self, site: Site) -> Reading:
        """The sum of the region, or `RefusedError`."""
        raise NotImplementedError

    def cuts(self, site: Site, problem: Any) -> Sequence[Tile] | Sequence[Block]:
        """Best guess first."""
        return rank_gemm(problem, site.target.arch)

    def cut_of(self, problem: Any, config: Config) -> Any:
        """How this problem is cut; it may be of another batch than the config was chosen for."""
        sizes: dict[str, Any] = dict(config)
        return self.cut_type(**sizes)

    def predict_us(self, site: Site, problem: Any, config: Config, device: Device) -> float:
        return product_us(site, problem, self.cut_of(problem, config), device)

    def product(self, site: Site) -> ProductSite:
        """The sum of the region with what follows it, or `RefusedError`."""
        reading = self.read(site)
        tail = make_epilogue(site, reading.anchor.outputs[0], reading.columns_axis, reading.codes)
        return ProductSite(site, reading, tail)

    def offer(self, site: Site) -> Offer | Refused:
        self.require_kernels(site, of_tiles=True)
        found = self.product(site)
        problem = found.reading.problem
        if problem.counted > MOST_ITEMS:
            raise RefusedError(f"{problem.counted:,} items, a kernel counts {MOST_ITEMS:,}")
        cuts = self.cuts(site, problem)
        if not cuts:
            return Refused("no tile suits these sizes")
        cut_of = partial(self.cut_of, problem)
        return Offer(
            [_config(cut) for cut in cuts],
            bind=lambda config, weights: found.bind(cut_of(config), weights, self.store),
            kernels=lambda config: [found.kernel(cut_of(config))],
            footprint=lambda config: found.footprint(cut_of(config)),
            extents=lambda config: found.extents,
            predict_us=partial(self.predict_us, site, problem),
            compiles=True,
        )


@dataclass(frozen=True)
class ProductSite:
    """A site read as one product, with what follows it as a generated epilogue."""

    site: Site
    reading: Reading
    tail: Epilogue

    def kernel(self, cut: Any) -> Kernel:
        """The kernel of one cut, as a description."""
        return self.reading.problem.describe(cut, self.tail, pdl=self.site.target.has_dependent_launch)

    def footprint(self, cut: Any) -> Footprint:
        stored = constant_tensors(self.site, shapes_only(self.site)).get(self.reading.weight)
        pack = self.reading.pack
        packed = 0 if pack is None or stored is None else bytes_packed(stored, pack)
        return Footprint(
            writes_out=True,
            packed_bytes=packed + self.reading.prepared_bytes,
            scratch_bytes=self.reading.problem.scratch_bytes(cut),
        )

    @property
    def extents(self) -> dict[int, int]:
        """Bytes that the kernel and its epilogue touch, by argument."""
        found, reading = dict(self.tail.extents), self.reading
        x_bytes, w_bytes = reading.problem.touched_bytes
        found[reading.x] = max(found.get(reading.x, 0), x_bytes)
        if reading.pack is None and reading.prepare is None:
            slot = self.site.body.inputs.index(reading.weight)
            found[slot] = max(found.get(slot, 0), w_bytes)
        for slot in reading.slots:
            found[slot] = max(found.get(slot, 0), 1)
        return found

    def bind(self, cut: Any, weights: Mapping[str, Tensor], store: KernelStore) -> Launch:
        launcher = launcher_of(self.kernel(cut), self.site, store)
        operands = self.operands(cut, weights, device="cuda")

        def freeze(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], object]:
            return launcher.freeze(operands.grid, operands.arguments(inputs, outputs))

        return staged_launch(
            freeze,
            self.site,
            operands.reads,
            packed_bytes=operands.packed_bytes,
            reads=operands.reads,
            scratch_bytes=operands.problem.scratch_bytes(operands.cut),
        )

    def operands(self, cut: Any, weights: Mapping[str, Tensor], *, device: str) -> Operands:
        """Everything a launch passes, packed weights and constants already on the device."""
        reading = self.reading
        weight: Tensor | int
        more: Sequence[Tensor | int] = ()
        packed_bytes = 0
        if reading.prepare is not None:
            prepared = reading.prepare(weights, device)
            weight, *more = (
                shared_copy(t, *weights.values()) if isinstance(t, Tensor) else t for t in prepared
            )
            packed_bytes = sum(made.nbytes for made in (weight, *more) if isinstance(made, Tensor))
        elif reading.pack is None:
            weight = self.site.body.inputs.index(reading.weight)
        else:
            stored = constant_tensors(self.site, weights)[reading.weight].detach()
            weight = shared_copy(reading.pack(stored.to(device)), stored)
            packed_bytes = 0 if weight.data_ptr() == stored.data_ptr() else weight.nbytes
        if isinstance(weight, Tensor) and reading.problem.touched_bytes[1] > weight.nbytes:
            raise RefusedError(f"the packed weight has {weight.nbytes} bytes, the kernel reads others")
        extras = tuple(to_torch(array).to(device) for array in self.tail.extras)
        return Operands(
            reading.problem, cut, self.tail, reading.x, weight, tuple(more), extras, packed_bytes, device
        )


@dataclass(frozen=True)
class Operands:
    """What one bound launch hands to its kernel."""

    problem: Problem
    cut: Tile | Block
    tail: Epilogue
    x: int
    weight: Tensor | int  # a slot: an input of every call
    more: tuple[Tensor | int, ...]  # that the kernel takes after the weight
    extras: tuple[Tensor, ...]
    packed_bytes: int
    device: str

    @property
    def grid(self) -> tuple[int, ...]:
        return self.problem.grid(self.cut)

    @property
    def reads(self) -> frozenset[int]:
        slots = (given for given in (self.weight, *self.more) if isinstance(given, int))
        return frozenset((self.x, *slots, *self.tail.inputs))

    def arguments(self, inputs: Sequence[Any], outputs: Sequence[Tensor]) -> list[Tensor | int]:
        """In the order of the kernel's signature; scratch of its own for every frozen call."""
        given = [inputs[one] if isinstance(one, int) else one for one in (self.weight, *self.more)]
        scratch = self.problem.scratch(self.cut, self.device)
        pointers = self.tail.pointers(inputs, self.extras, outputs)
        return [inputs[self.x], *given, *scratch, *pointers, self.problem.extent]


def _config(cut: Tile | Block) -> Config:
    return {key: value for key, value in asdict(cut).items() if key != "group"}


def precision_of(anchor: Op) -> str:
    """How the kernel may round float32 operands, as `tl.dot` names it."""
    return anchor.math or EXACT


def require_dtype(dtype: str, other: str) -> None:
    if dtype not in TYPES or dtype != other:
        raise RefusedError(f"operands are {dtype} and {other}, want both {' or '.join(TYPES)}")
