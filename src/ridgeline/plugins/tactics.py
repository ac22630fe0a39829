"""Tactics for one op, made from an author's code: what they share, and those that run on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from numbers import Integral, Real
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir
import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Config, Layout, Op, Site, TensorSpec
from ridgeline.errors import PluginError
from ridgeline.frontend.opsets import CANONICAL_OPSET
from ridgeline.ir.body import attr_value
from ridgeline.kernels.cpp.compiler import compile_cpp, find_compiler
from ridgeline.kernels.triton.source import Kernel
from ridgeline.plugins.catalog import CATALOG, blaming
from ridgeline.plugins.gate import make_workspace
from ridgeline.tactics.base import Footprint, Launch, Offer, Refused, Tactic
from ridgeline.tactics.staging import is_dense, launch_over

HEAD = "#include <cmath>\n#include <cstdint>\n#include <cstring>\n#include <algorithm>\n"
Scalar: TypeAlias = int | float
# from the region's inputs and outputs and what a call holds (workspace, state) to the call
Bound: TypeAlias = Callable[[Any, Any, Mapping[str, Any]], Callable[[], object]]


@dataclass(frozen=True)
class OpSite:
    """One op at settled shapes, as the author's functions read it."""

    site: Site
    op: Op
    attrs: Mapping[str, Any]  # with defaults
    layouts: Sequence[Layout] = ("contiguous",)  # that the tactic takes

    @property
    def inputs(self) -> tuple[TensorSpec | None, ...]:
        """As the tactic is given them; None for one that is left out."""
        return self._specs(self.op.inputs)

    @property
    def outputs(self) -> tuple[TensorSpec | None, ...]:
        return self._specs(self.op.outputs)

    def _specs(self, names: Sequence[str]) -> tuple[TensorSpec | None, ...]:
        return tuple(self.laid(self.site.specs[name]) if name else None for name in names)

    def laid(self, spec: TensorSpec) -> TensorSpec:
        """A tensor that lies in another order than the tactic takes is copied before and after a call."""
        return spec if spec.layout in self.layouts else replace(spec, layout=self.layouts[0])

    def pick(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The op's own among those of its region; None for one that is left out."""
        given = dict(zip(self.site.body.inputs, inputs, strict=True))
        made = dict(zip(self.site.body.outputs, outputs, strict=True))
        return [given.get(name) for name in self.op.inputs], [made.get(name) for name in self.op.outputs]

    @property
    def threads(self) -> int:
        return self.site.target.threads


@dataclass(frozen=True, kw_only=True)
class OpTactic(Tactic):
    """A way to run one op, alone in its region. What the fields mean: docs/writing-a-plugin.md."""

    name: str = field(kw_only=False)
    op: str  # as Op.key has it
    when: Callable[[OpSite], str | None] = lambda at: None
    configs: Callable[[OpSite], Sequence[Config]] = lambda at: ({},)
    workspace_bytes: Callable[[OpSite, Config], int] = lambda at, config: 0
    state: Callable[[OpSite], Any] | None = None
    layouts: Sequence[Layout] = ("contiguous",)
    alignment: int = 1
    in_place: bool = False

    compiles = False

    def offer(self, site: Site) -> Offer | Refused:
        at = self.read(site)
        reason = self.why_no_tools(at) or self.when(at)
        if reason is not None:
            return Refused(reason)
        return Offer(
            configs=tuple(self.configs(at)),
            bind=lambda config, weights: self.bind_op(at, config),
            footprint=lambda config: Footprint(
                True, self.in_place, scratch_bytes=self.workspace_bytes(at, config)
            ),
            kernels=lambda config: self.kernels(at, config),
            compiles=self.compiles,
        )

    def kernels(self, at: OpSite, config: Config) -> Sequence[Kernel]:
        """Those of Triton that a call launches."""
        return ()

    def read(self, site: Site) -> OpSite:
        """The op of the region, which has no other."""
        if [op.key for op in site.body.ops] != [self.op] or site.body.constants:
            raise RefusedError(
                f"the region is {' '.join(op.key for op in site.body.ops)}, want {self.op} alone"
            )
        return self.read_op(site, site.body.ops[0])

    def read_op(self, site: Site, op: Op) -> OpSite:
        attrs, *counts = _signature(op)
        # code of a tactic has one parameter for each port, also for those that a node leaves out at the end
        inputs, outputs = (
            (*names, *("",) * (count - len(names)))
            for names, count in zip((op.inputs, op.outputs), counts, strict=True)
        )
        return OpSite(site, replace(op, inputs=inputs, outputs=outputs), attrs, self.layouts)

    def why_no_tools(self, at: OpSite) -> str | None:
        """Why nothing can be compiled or run here."""
        return None

    def bind_op(self, at: OpSite, config: Config) -> Launch:
        """Every frozen call has a state and a workspace of its own, so that every context has."""
        run = self.runner(at, config)
        scratch = self.workspace_bytes(at, config)

        def freeze(given: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], object]:
            held = {"workspace": make_workspace(scratch, at.site.target.traits.device)} if scratch else {}
            if self.state is not None:
                with blaming(f"the state of {self.name}"):
                    held["state"] = self.state(at)
            return run(given, outputs, held)

        return launch_over(
            freeze,
            [spec and at.laid(spec) for spec in at.site.inputs],
            [at.laid(spec) for spec in at.site.outputs],
            partial(_placed, alignment=self.alignment),
            in_place=self.in_place,
            scratch_bytes=scratch,
            extents=_extents(at),
        )

    def runner(self, at: OpSite, config: Config) -> Bound:
        raise NotImplementedError


def _extents(at: OpSite) -> dict[int, int]:
    """All of every tensor: what the author's code touches of it is the gate's to find."""
    site, own = at.site, set(at.op.inputs)
    inputs = [(i, spec) for i, spec in enumerate(site.inputs) if site.body.inputs[i] in own]
    outputs = [(len(site.inputs) + i, spec) for i, spec in enumerate(site.outputs)]
    return {place: spec.nbytes for place, spec in (*inputs, *outputs) if spec is not None}


def _placed(tensor: Any, spec: TensorSpec | None, *, alignment: int) -> Any:
    """The tensor itself where it lies as the spec says, else memory that does."""
    if not isinstance(tensor, Tensor) or spec is None:
        return tensor
    if is_dense(tensor, spec) and tensor.data_ptr() % alignment == 0:
        return tensor
    block = torch.empty(spec.nbytes + alignment, dtype=torch.uint8, device=tensor.device)
    start = -block.data_ptr() % alignment
    flat = block[start : start + spec.nbytes].view(tensor.dtype)
    return flat.as_strided(spec.shape, spec.strides, flat.storage_offset())


def _signature(op: Op) -> tuple[dict[str, Any], int, int]:
    """The attributes with defaults, and how many inputs and outputs stand for one tensor each."""
    if op.key in CATALOG.ops:
        schema = CATALOG.ops[op.key].schema
        return schema.given(op.attrs), len(schema.formal("inputs")), len(schema.formal("outputs"))
    defaults, inputs, outputs = _onnx_signature(op.op_type)
    return {**defaults, **op.attrs}, inputs, outputs


@cache
def _onnx_signature(op_type: str) -> tuple[dict[str, Any], int, int]:
    schema = onnx.defs.get_schema(op_type, CANONICAL_OPSET, "")
    protos = {n: a.default_value for n, a in schema.attributes.items() if a.default_value.name}
    defaults = {name: attr_value(ir.serde.deserialize_attribute(proto)) for name, proto in protos.items()}
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    inputs = sum(port.option != variadic for port in schema.inputs)
    return defaults, inputs, sum(port.option != variadic for port in schema.outputs)


@dataclass(frozen=True, kw_only=True)
class PythonTactic(OpTactic):
    """`run(*inputs, out=[...], **attrs)`, with the config's entries and the state as further keywords."""

    run: Callable[..., None]

    def runner(self, at: OpSite, config: Config) -> Bound:
        def bound(inputs: Any, outputs: Any, held: Mapping[str, Any]) -> Callable[[], object]:
            return partial(self._call, *at.pick(inputs, outputs), {**at.attrs, **config, **held})

        return bound

    def _call(self, inputs: Any, outputs: Any, more: Mapping[str, Any]) -> None:
        help = f"let its `when` refuse such a site, or leave it out: --without {self.name}"
        with blaming(self.name, help=help):
            self.run(*inputs, out=outputs, **more)


@dataclass(frozen=True, kw_only=True)
class CppTactic(OpTactic):
    """A C++ function over pointers; the entries of a config are macros."""

    source: str
    function: str
    scalars: Callable[[OpSite], Sequence[Scalar]] = lambda at: ()

    runs_on = "cpu"
    compiles = True

    def offer(self, site: Site) -> Offer | Refused:
        made = super().offer(site)
        return replace(made, cpp_source=self._text) if isinstance(made, Offer) else made

    def _text(self, config: Config) -> str:
        return HEAD + macros(config) + self.source

    def why_no_tools(self, at: OpSite) -> str | None:
        return None if find_compiler() else "no C++ compiler found"

    def runner(self, at: OpSite, config: Config) -> Bound:
        run = compile_cpp(self._text(config), cache_dir=self.cache_dir)[self.function]
        numbers = [
            ctypes.c_int64(value) if isinstance(value, int) else ctypes.c_double(value)
            for value in plain_numbers(self.scalars(at))
        ]

        def bound(inputs: Any, outputs: Any, held: Mapping[str, Any]) -> Callable[[], object]:
            tensors = [*chain(*at.pick(inputs, outputs)), *held.values()]
            call = partial(
                run, *(ctypes.c_void_p(t.data_ptr() if t is not None else None) for t in tensors), *numbers
            )
            call.held = tensors  # type: ignore[attr-defined]  # alive as long as the pointers
            return call

        return bound


def macros(config: Config) -> str:
    return "".join(f"#define {name} {value}\n" for name, value in config.items())


def plain_numbers(values: Sequence[Scalar]) -> list[Scalar]:
    """Numbers as compiled code is given them; numpy's own are taken too."""
    for value in values:
        if not isinstance(value, Real) or (isinstance(value, Integral) and not -(2**63) <= value < 2**63):
            raise PluginError(f"scalars hold {value!r}", want="numbers of 64 bits")
    return [int(value) if isinstance(value, Integral) else float(value) for value in values]
