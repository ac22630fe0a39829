"""Tactics for one op, made from an author's code: what they share, and those that run on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir
import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Config, Layout, Op, Site, TensorSpec
from ridgeline.errors import PluginError, failure
from ridgeline.frontend.opsets import CANONICAL_OPSET
from ridgeline.ir.body import attr_value
from ridgeline.kernels.cpp.compiler import compile_cpp, find_compiler
from ridgeline.plugins.catalog import CATALOG
from ridgeline.plugins.gate import make_workspace
from ridgeline.tactics.base import Footprint, Launch, Offer, Refused, Tactic
from ridgeline.tactics.staging import is_dense, launch_over

HEAD = "#include <cmath>\n#include <cstdint>\n#include <cstring>\n#include <algorithm>\n"
Scalar: TypeAlias = int | float
# from the region's inputs and outputs and what a call holds (workspace, state) to the call
Bound: TypeAlias = Callable[[Any, Any, Sequence[Any]], Callable[[], object]]


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
        return tuple(self.laid(self.site.specs[name]) if name else None for name in self.op.inputs)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return tuple(self.laid(self.site.specs[name]) for name in self.op.outputs if name)

    def laid(self, spec: TensorSpec) -> TensorSpec:
        """A tensor that lies in another order than the tactic takes is copied before and after a call."""
        return spec if spec.layout in self.layouts else replace(spec, layout=self.layouts[0])

    def pick(self, given: Sequence[Any]) -> list[Any]:
        """The op's own inputs among those of its region."""
        names = self.site.body.inputs
        return [given[names.index(name)] if name else None for name in self.op.inputs]

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
            compiles=self.compiles,
        )

    def read(self, site: Site) -> OpSite:
        """The op of the region, which has no other."""
        if [op.key for op in site.body.ops] != [self.op] or site.body.constants:
            raise RefusedError(
                f"the region is {' '.join(op.key for op in site.body.ops)}, want {self.op} alone"
            )
        return self.read_op(site, site.body.ops[0])

    def read_op(self, site: Site, op: Op) -> OpSite:
        known = CATALOG.ops.get(op.key)
        given = known.schema.given(op.attrs) if known else {**_onnx_defaults(op.op_type), **op.attrs}
        return OpSite(site, op, given, self.layouts)

    def why_no_tools(self, at: OpSite) -> str | None:
        """Why nothing can be compiled or run here."""
        return None

    def bind_op(self, at: OpSite, config: Config) -> Launch:
        """Every frozen call has a state and a workspace of its own, so that every context has."""
        run = self.runner(at, config)
        scratch = self.workspace_bytes(at, config)

        def freeze(given: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], object]:
            held = [make_workspace(scratch, at.site.target.traits.device)] if scratch else []
            held += [self.state(at)] if self.state is not None else []
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


@cache
def _onnx_defaults(op_type: str) -> dict[str, Any]:
    attributes = onnx.defs.get_schema(op_type, CANONICAL_OPSET, "").attributes
    protos = {n: a.default_value for n, a in attributes.items() if a.default_value.name}
    return {name: attr_value(ir.serde.deserialize_attribute(proto)) for name, proto in protos.items()}


@dataclass(frozen=True, kw_only=True)
class PythonTactic(OpTactic):
    """`run(*inputs, out=[...], **attrs)`, with the config's entries and the state as further keywords."""

    run: Callable[..., None]

    def runner(self, at: OpSite, config: Config) -> Bound:
        def bound(inputs: Any, outputs: Any, held: Sequence[Any]) -> Callable[[], object]:
            asked = {"workspace": self.workspace_bytes(at, config), "state": self.state}
            names = [name for name, wish in asked.items() if wish]
            more = {**at.attrs, **config, **dict(zip(names, held, strict=True))}
            return partial(self._call, at.pick(inputs), outputs, more)

        return bound

    def _call(self, inputs: Any, outputs: Any, more: Mapping[str, Any]) -> None:
        try:
            self.run(*inputs, out=outputs, **more)
        except Exception as error:
            raise PluginError(f"{self.name} {failure(error)}") from error


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
        numbers = [number_of(value) for value in self.scalars(at)]

        def bound(inputs: Any, outputs: Any, held: Sequence[Any]) -> Callable[[], object]:
            tensors = [*at.pick(inputs), *outputs, *held]
            call = partial(
                run, *(ctypes.c_void_p(t.data_ptr() if t is not None else None) for t in tensors), *numbers
            )
            call.held = tensors  # type: ignore[attr-defined]  # alive as long as the pointers
            return call

        return bound


def macros(config: Config) -> str:
    return "".join(f"#define {name} {value}\n" for name, value in config.items())


def number_of(value: Scalar) -> Any:
    return ctypes.c_int64(value) if isinstance(value, int) else ctypes.c_double(value)
