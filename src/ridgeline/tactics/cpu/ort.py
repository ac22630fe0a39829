"""ONNX Runtime as a tactic, for a region or for a span of neighbouring regions up to the whole graph.

It is the fastest CPU library for many nets, so it competes; it runs our canonical graph in planned memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import Tensor

from ridgeline.base.spec import Body, Config, Op, Site, TensorSpec
from ridgeline.frontend.other_runtimes import open_session, session_options
from ridgeline.frontend.types import ONNX_TYPES, outside
from ridgeline.ir.body import model_proto
from ridgeline.ir.infer import type_proto
from ridgeline.ir.op_row import Trait
from ridgeline.ir.ops import has
from ridgeline.ir.quant import dequantizes, quantizes
from ridgeline.kernels.elements import as_torch, crosses, dtype_name, to_numpy
from ridgeline.options import DEFAULT_LIMITS, Limits
from ridgeline.tactics.base import InsideTime, Launch, Move, Offer, Refused, Tactic, once
from ridgeline.tactics.cpu.ort_loops import limit_trips, raise_trip_error, why_unbounded
from ridgeline.tactics.cpu.ort_profile import time_nodes
from ridgeline.tactics.cpu.ort_refusals import why_refused

# weights from this size on are lent to the session instead of being copied into its model
LENT_BYTES = 4096
KEPT_ADDRESSES = 8


class Ort(Tactic):
    """One session for the region, its inputs and outputs bound to planned memory."""

    name = "ort"
    takes_open_shapes = True
    reads_levels = True
    takes_spans = True
    spins_threads = True
    has_profiler = True

    def __init__(
        self,
        opset_imports: Mapping[str, int],
        limits: Limits = DEFAULT_LIMITS,
        *,
        fixed_shapes: bool = False,
        deterministic: bool = False,
    ) -> None:
        self.limits = limits
        self.may_loop = True  # not in the body of a loop, whose trips are counted together with its own
        self.opset_imports = {d: v for d, v in opset_imports.items() if d != "ridgeline"}
        self.fixed_shapes = fixed_shapes
        self.deterministic = deterministic

    def offer(self, site: Site) -> Offer | Refused:
        reason = self._why_not(site)
        if reason is not None:
            return Refused(reason)
        every: list[Config] = [
            {"shapes": shapes, "spin": spin, **more}
            for shapes, spin in product(("free", "fixed"), (False, True))
            for more in ({}, {"deterministic": True})
        ]
        return Offer((self._config(site),), partial(self._bind, site), other_configs=every)

    def _why_not(self, site: Site) -> str | None:
        version = self.opset_imports.get("", 1)
        if version > 26:
            return f"opset {version} is newer than ONNX Runtime takes"
        for name in (*site.body.inputs, *site.body.outputs):
            if name in site.non_tensor:
                return f"{name!r} is {site.non_tensor[name]}, for which there is no memory to share"
            spec = site.specs.get(name)
            if spec is not None and not crosses(spec.dtype) and name not in site.weights:
                return f"{name!r} is {spec.dtype}, which does not cross into ONNX Runtime"
        known = {*site.weights, *site.values, *site.body.constants}
        empty = [name for name, spec in site.specs.items() if 0 in spec.shape and name not in known]
        if empty:
            return f"{empty[0]!r} has no elements: some ops of ONNX Runtime refuse that, or give other shapes"
        if any(_may_trap(op, site) for op in site.body.ops):
            return "a divisor may be 0 or -1: ONNX Runtime stops, or stops the process"
        if not self.may_loop and any(has(op, Trait.REPEATS) for op in site.body.ops):
            return "its trips are not counted with those of the loop around it"
        rules = product((why_refused, why_unbounded), site.body.ops)
        reasons = (why(op, site, self.opset_imports, self.limits) for why, op in rules)
        return next((reason for reason in reasons if reason is not None), None)

    def _config(self, site: Site) -> Config:
        # with fixed shapes ONNX Runtime refuses a branch that they do not fit, though it is never taken
        branches = any(isinstance(attr, Body) for op in site.body.ops for attr in op.attrs.values())
        shapes = "fixed" if self.fixed_shapes and site.is_inferred and not branches else "free"
        more = {"deterministic": True} if self.deterministic else {}
        return {"shapes": shapes, "spin": False, **more}

    def _bind(self, site: Site, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        fixed, live = config["shapes"] == "fixed", _live_inputs(site, config, weights)
        session, lent_bytes = self._open(site, config, [name for _, name in live], weights)
        names, loop_trips = list(site.body.outputs), self.limits.loop_trips

        def run(inputs: Sequence[Any], _: Sequence[Tensor]) -> Sequence[Tensor]:
            try:
                made = session.run(names, {name: to_numpy(inputs[place]) for place, name in live})
            except Exception as error:
                raise_trip_error(error, loop_trips)
                raise
            # the session gives its results away, each in memory of its own
            return [as_torch(np.asarray(array)) for array in made]

        if any(name not in site.specs for name in names):
            return Launch(run, packed_bytes=lent_bytes, shape_free=not fixed, calls_torch=False)

        def freeze(inputs: Sequence[Any], outs: Sequence[Tensor]) -> Callable[[], object]:
            bound = _BoundSession(session, loop_trips)
            for argument, name in live:
                bound.read(argument, name, inputs[argument])
            for argument, (name, out) in enumerate(zip(names, outs, strict=True), len(inputs)):
                bound.write(argument, name, out)
            return bound

        is_plain = all(spec is None or spec.layout == "contiguous" for spec in (*site.inputs, *site.outputs))
        return Launch(
            once(freeze),
            writes_out=True,
            freeze=freeze,
            packed_bytes=lent_bytes,
            shape_free=not fixed,
            calls_torch=not is_plain,
        )

    def time_inside(
        self, site: Site, config: Config, weights: Mapping[str, Tensor], inputs: Sequence[Any], rounds: int
    ) -> Sequence[InsideTime]:
        """Opens the session once more, since only a new one can be profiled."""
        live = _live_inputs(site, config, weights)
        feeds = {name: np.ascontiguousarray(to_numpy(inputs[place])) for place, name in live}
        with TemporaryDirectory(prefix="ridge-profile-") as folder:
            session, _ = self._open(site, config, [name for _, name in live], weights, profile_into=folder)
            return time_nodes(session, list(site.body.outputs), feeds, rounds)

    def _open(
        self,
        site: Site,
        config: Config,
        live: Sequence[str],
        weights: Mapping[str, Tensor],
        profile_into: str = "",
    ) -> tuple[ort.InferenceSession, int]:
        fixed = config["shapes"] == "fixed"
        constants = dict(site.body.constants)
        if fixed:
            constants |= {n: a for n, a in site.values.items() if n in site.body.inputs and n not in weights}
        # what cannot be handed over as an array travels inside the model
        lent = {n: t for n, t in weights.items() if t.nbytes >= LENT_BYTES and crosses(dtype_name(t))}
        constants |= {n: to_numpy(t) for n, t in weights.items() if n not in lent}
        used = {n for op in site.body.ops for n in op.inputs} | {*site.body.inputs, *site.body.outputs}
        ops, zeros = _with_zero_points(site)
        model = model_proto(
            ops,
            inputs={n: _port(site.specs.get(n), fixed=fixed) for n in live},
            outputs={n: _port(site.specs.get(n), fixed=fixed) for n in site.body.outputs},
            constants={n: a for n, a in constants.items() if n in used} | zeros,
            opset_imports=self.opset_imports,
        )
        limit_trips(model.graph, self.limits.loop_trips)
        settings = {
            # threads that spin after a call are faster at the next one, and in the way of any other library's
            "session.intra_op.allow_spinning": "1" if config.get("spin", False) else "0",
            # products with 4-bit weights would round their other operand to 8 bits
            "session.qdq_matmulnbits_accuracy_level": "1",
            # without VNNI its products of 8-bit levels would saturate at 16 bits
            "session.x64quantprecision": "1",
        }
        settings |= QUANTISED if any(quantizes(op) or dequantizes(op) for op in ops) else {}
        # its optimisers take a DequantizeLinear and the same QuantizeLinear for nothing: infinities saturate
        has_infinity = any(spec.dtype == "float8_e5m2" for spec in site.specs.values())
        options = session_options(
            threads=site.target.threads, is_optimised=not has_infinity, settings=settings
        )
        options.use_deterministic_compute = bool(config.get("deterministic", False))
        if profile_into:
            options.enable_profiling, options.profile_file_prefix = True, f"{profile_into}/session"
        if lent:
            model.graph.initializer.extend(_outside(name, tensor) for name, tensor in lent.items())
            values = [ort.OrtValue.ortvalue_from_numpy(to_numpy(t)) for t in lent.values()]
            options.add_external_initializers(list(lent), values)
        return open_session(model, options), sum(t.nbytes for t in lent.values())


def _live_inputs(site: Site, config: Config, weights: Mapping[str, Tensor]) -> list[tuple[int, str]]:
    """Places and names of the inputs that a session is handed at each run."""
    fixed = config["shapes"] == "fixed"
    return [
        (i, name)
        for i, name in enumerate(site.body.inputs)
        if name and name not in weights and not (fixed and name in site.values)
    ]


# its integer products need the bias behind them, and levels with a sign are off on x86 unless asked for;
# a float bias would be rounded to the steps of the integer sum, which the model does not say; of two
# roundings to levels with other steps, the first would be left out
_UNWANTED = ("MatMulAddFusion", "WeightBiasQuantization", "DoubleQDQPairsRemover")
QUANTISED = {
    "optimization.disable_specified_optimizers": ";".join(_UNWANTED),
    "session.qdqisint8allowed": "1",
}


def _with_zero_points(site: Site) -> tuple[list[Op], dict[str, np.ndarray]]:
    """The ops, with a zero written wherever 8-bit levels have none: the integer kernels look for it."""
    ops: list[Op] = []
    zeros: dict[str, np.ndarray] = {}
    for op in site.body.ops:
        is_quantized = quantizes(op) or dequantizes(op)
        levels = site.specs.get(op.outputs[0] if quantizes(op) else op.inputs[0]) if is_quantized else None
        scale = site.specs.get(op.inputs[1]) if is_quantized else None
        if levels is None or scale is None or levels.dtype not in ("int8", "uint8"):
            ops.append(op)
            continue
        zero = op.inputs[2] if len(op.inputs) > 2 else ""
        if not zero:
            zero = f"{levels.dtype}{list(scale.shape)}.zero"
            zeros[zero] = np.zeros(scale.shape, levels.dtype)
        attrs = {name: value for name, value in op.attrs.items() if name != "output_dtype"}
        ops.append(replace(op, inputs=(*op.inputs[:2], zero), attrs=attrs))
    return ops, zeros


def inside_bodies(tactics: Sequence[Tactic]) -> tuple[Tactic, ...]:
    """The same tactics for the subgraphs of control flow."""
    found = tuple(copy(tactic) if isinstance(tactic, Ort) else tactic for tactic in tactics)
    for tactic in found:
        if isinstance(tactic, Ort):
            tactic.may_loop = False
    return found


def _may_trap(op: Op, site: Site) -> bool:
    """A quotient of signed integers, unless its divisors are known: the least value over -1 is a signal."""
    spec = site.specs.get(op.inputs[1]) if op.op_type in ("Div", "Mod") and not op.domain else None
    if spec is None or not spec.dtype.startswith("int"):
        return False
    held = site.body.constants.get(op.inputs[1], site.values.get(op.inputs[1]))
    return held is None or bool(np.isin(held, (0, -1)).any())


def _outside(name: str, tensor: Tensor) -> onnx.TensorProto:
    proto = onnx.TensorProto(name=name, data_type=ONNX_TYPES[dtype_name(tensor)], dims=tensor.shape)
    return outside(proto, "weights", offset=0, length=tensor.nbytes)


def _port(spec: TensorSpec | None, *, fixed: bool) -> onnx.TypeProto:
    if spec is None:
        return onnx.TypeProto()
    if fixed:
        return type_proto(spec)
    kind = onnx.TypeProto()
    kind.tensor_type.elem_type = ONNX_TYPES[spec.dtype]
    kind.tensor_type.shape.SetInParent()
    for _ in spec.shape:
        kind.tensor_type.shape.dim.add()
    return kind


class _BoundSession:
    """The session bound to tensors that stay where they are; those in another layout go through a copy."""

    def __init__(self, session: ort.InferenceSession, loop_trips: int) -> None:
        self._session, self._binding, self._loop_trips = session, session.io_binding(), loop_trips
        self._before: list[tuple[Tensor, Tensor]] = []  # to, from
        self._after: list[tuple[Tensor, Tensor]] = []
        self._moves: dict[int, Move] = {}

    def read(self, argument: int, name: str, tensor: Tensor) -> None:
        plain = self._bind(argument, tensor, partial(self._binding.bind_ortvalue_input, name))
        if plain is not tensor:
            self._before.append((plain, tensor))

    def write(self, argument: int, name: str, tensor: Tensor) -> None:
        plain = self._bind(argument, tensor, partial(self._binding.bind_ortvalue_output, name))
        if plain is not tensor:
            self._after.append((tensor, plain))

    def _bind(self, argument: int, tensor: Tensor, bind: Callable[[ort.OrtValue], object]) -> Tensor:
        """Bind a tensor or, where ONNX Runtime cannot take it as it lies, a plain one that is returned."""
        if not tensor.is_contiguous():
            plain = torch.empty_like(tensor, memory_format=torch.contiguous_format)
            bind(ort.OrtValue.ortvalue_from_numpy(plain.numpy()))
            return plain
        value_at = _values_like(tensor.numpy())
        bind(value_at(tensor.data_ptr()))
        self._moves[argument] = lambda address: bind(value_at(address))
        return tensor

    def mover(self, argument: int) -> Move | None:
        return self._moves.get(argument)

    def __call__(self) -> None:
        for plain, tensor in self._before:
            plain.copy_(tensor)
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            raise_trip_error(error, self._loop_trips)
            raise
        for tensor, plain in self._after:
            tensor.copy_(plain)


def _values_like(home: np.ndarray) -> Callable[[int], ort.OrtValue]:
    """Makes values at other addresses than an array's. Callers' arrays lie at few addresses, and to make a
    value takes longer than to bind it: the latest are kept. They hold an address, and no memory."""
    home_address, home_value = home.ctypes.data, ort.OrtValue.ortvalue_from_numpy(home)
    kind, shape = ctypes.c_uint8 * home.nbytes, home.shape

    @lru_cache(maxsize=KEPT_ADDRESSES)
    def value_at(address: int) -> ort.OrtValue:
        if address == home_address:
            return home_value
        array = np.frombuffer(memoryview(kind.from_address(address)), home.dtype).reshape(shape)
        return ort.OrtValue.ortvalue_from_numpy(array)

    return value_at
