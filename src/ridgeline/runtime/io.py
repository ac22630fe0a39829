"""The binding of an instance to its callers: steps read their arrays and make results in memory to give away.

Only what no step can be pointed at is copied. Between runs every step points at the instance's own memory:
no array of a caller is held or read then, and steps called one by one read what `load` put there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, c_byte
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.kernels.elements import PLAIN, SUB_BYTE, as_numpy, as_torch, cloned, fill
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.non_tensor import handed_out
from ridgeline.tactics.base import Move

# below this a copy is quicker than pointing steps elsewhere and back
REDIRECTED_BYTES = 1 << 16
# what every allocator gives; libraries may add in another order where vectors begin elsewhere
ALIGNMENT = 16
# of results: vectors that straddle cache lines are slow to write
RESULT_ALIGNMENT = 64
KEPT_RESULTS = 3
Put: TypeAlias = Callable[[np.ndarray], object]
Take: TypeAlias = Callable[[], Any]
# how to point a step at memory, and where in that memory its value begins, in bytes
Pointers = tuple[tuple[Move, int], ...]


class AnyBinding(Protocol):
    """Between a caller and an instance, wherever the instance lies."""

    @property
    def instance(self) -> Instance: ...

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        """numpy in, numpy out; torch in, torch out. None if the inputs are not just what is wanted here:
        a dict of them all, in numpy's or torch's own class, with the right types and shapes."""

    def load(self, arrays: Sequence[Any]) -> None:
        """Copy arrays or tensors into the instance's own memory."""


class Redirected:
    """A value whose steps can be pointed at other memory for the length of a run."""

    def __init__(self, own: np.ndarray, pointers: Pointers) -> None:
        self.own = own
        self._pointers = pointers
        self._own_places = [(move, own.ctypes.data + skipped) for move, skipped in pointers]
        self.array: np.ndarray | None = None  # held while steps point at it

    def redirect(self, array: np.ndarray, address: int) -> None:
        self.array = array
        for move, skipped in self._pointers:
            move(address + skipped)

    def restore(self) -> None:
        self.array = None
        for move, address in self._own_places:
            move(address)


class RedirectedInput(Redirected):
    """An input that is read where the caller keeps it."""

    def put(self, array: np.ndarray) -> None:
        if array.flags.c_contiguous and (address := address_of(array)) % ALIGNMENT == 0:
            self.redirect(array, address)
        else:
            np.copyto(self.own, array)


class Result:
    """Memory that callers get views of, and that is used again when none of them is left."""

    def __init__(self, like: np.ndarray) -> None:
        self.memory = np.empty(like.nbytes + RESULT_ALIGNMENT, np.uint8)
        begin = -self.memory.ctypes.data % RESULT_ALIGNMENT
        array = self.memory[begin : begin + like.nbytes].view(like.dtype).reshape(like.shape)
        self.address = array.ctypes.data
        # a new view each time: a caller may change the shape of the array it was given
        self.array = array.view
        self.own_holders = sys.getrefcount(self.memory)


class Results:
    """A few results of one output: fresh pages cost more than a copy, so those let go of are used again."""

    def __init__(self, own: np.ndarray) -> None:
        self._own = own
        self._kept: list[Result] = []

    def free(self) -> Result:
        for result in self._kept:
            if sys.getrefcount(result.memory) == result.own_holders:
                return result
        result = Result(self._own)
        if len(self._kept) < KEPT_RESULTS:
            self._kept.append(result)
        return result

    def copied(self) -> np.ndarray:
        array = self.free().array()
        np.copyto(array, self._own)
        return array


class RedirectedOutput(Redirected):
    """An output that is made in the memory of its result."""

    def __init__(self, own: np.ndarray, pointers: Pointers) -> None:
        super().__init__(own, pointers)
        self._results = Results(own)

    def begin(self) -> None:
        result = self._results.free()
        self.redirect(result.array(), result.address)

    def take(self) -> Any:
        return self.array


class IoBinding:
    """All that a run does besides its steps. It is on the way of every call, so it calls little itself."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._calls_torch = instance.calls_torch
        self._redirected: list[Redirected] = []
        self._redirected_outputs: list[RedirectedOutput] = []
        self._own_inputs = [as_numpy(tensor) for tensor in instance.inputs.values()]
        self._puts = []
        for (name, tensor), own in zip(instance.inputs.items(), self._own_inputs, strict=True):
            seen = Tensor.numpy if tensor.dtype in PLAIN else as_numpy
            self._puts.append((name, own.shape, own.dtype, tensor.dtype, seen, self._put(name, own)))
        takes = {name: self._take(name) for name in instance.program.outputs}
        self._array_takes = [(name, as_array) for name, (as_array, _) in takes.items()]
        self._tensor_takes = [(name, as_tensor) for name, (_, as_tensor) in takes.items()]

    def _put(self, name: str, own: np.ndarray) -> Put:
        pointers = input_pointers(self.instance, name)
        if not pointers:
            return partial(own.__setitem__, ...)
        redirected = RedirectedInput(own, pointers)
        self._redirected.append(redirected)
        return redirected.put

    def _take(self, name: str) -> tuple[Take, Take]:
        """How a result is handed out: as an array, and as a tensor."""
        if name not in self.instance.tensors:
            values = self.instance.dynamic_values
            as_array = _own_value if len(shared_outputs(self.instance, name)) > 1 else _dynamic_value
            return partial(as_array, values, name), partial(_dynamic_tensor, values, name)
        tensor = self.instance.tensors[name]
        own, pointers = as_numpy(tensor), output_pointers(self.instance, name)
        if pointers:
            redirected = RedirectedOutput(own, pointers)
            self._redirected.append(redirected)
            self._redirected_outputs.append(redirected)
            return redirected.take, lambda: as_torch(redirected.take())
        if own.nbytes >= REDIRECTED_BYTES:
            results = Results(own)
            return results.copied, lambda: as_torch(results.copied())
        return own.copy, partial(cloned, tensor) if tensor.dtype in SUB_BYTE else tensor.clone

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        """Outputs by name, in memory of their own; None if the inputs are not just what is wanted here."""
        if feeds.__class__ is not dict or len(feeds) != len(self._puts):
            return None
        takes = self._array_takes
        try:
            for name, shape, dtype, torch_dtype, seen, put in self._puts:
                array = feeds.get(name)
                if array.__class__ is np.ndarray:
                    if array.shape != shape or array.dtype != dtype:
                        return None
                    put(array)
                elif array.__class__ is Tensor:
                    if array.shape != shape or array.dtype is not torch_dtype:
                        return None
                    try:
                        array = seen(array if array.is_cpu else array.cpu())
                    except (RuntimeError, TypeError):  # has gradients, is sparse, or is to be negated
                        return None
                    put(array)
                    takes = self._tensor_takes
                else:
                    return None
            for output in self._redirected_outputs:
                output.begin()
            if self._calls_torch:
                with torch.inference_mode():
                    self.instance.execute()
            else:
                self.instance.execute()
            # tensors are made outside: nobody may write to inference tensors
            return {name: take() for name, take in takes}
        finally:
            for redirected in self._redirected:
                redirected.restore()

    def load(self, arrays: Sequence[Any]) -> None:
        """Copy arrays or tensors into the instance's own memory."""
        for array, own, tensor in zip(arrays, self._own_inputs, self.instance.inputs.values(), strict=True):
            if isinstance(array, Tensor):
                fill(tensor, array)
            else:
                np.copyto(own, array)


def plain(array: Any) -> Any:
    """The same values in numpy's or torch's own class, without gradients, lying there as they are read."""
    if not isinstance(array, Tensor):
        return np.asarray(array)
    if array.is_meta or array.layout is not torch.strided:
        raise InputError(
            "an input is a tensor whose values do not lie in memory one beside the other",
            got="a meta tensor, which has no values" if array.is_meta else str(array.layout),
            want="a dense tensor",
            help="" if array.is_meta else "x.to_dense() makes one",
        )
    array = array.detach()
    is_as_read = not (array.is_neg() or array.is_conj() or array._is_zerotensor())
    if array.__class__ is Tensor and is_as_read:
        return array
    made = torch.empty(array.shape, dtype=array.dtype, device=array.device)
    made.copy_(array)
    return made


def address_of(array: np.ndarray) -> int:
    """Where a contiguous array begins."""
    if array.size and array.flags.writeable and array.dtype.isbuiltin == 1:
        return addressof(c_byte.from_buffer(array))  # type: ignore[arg-type]
    return array.ctypes.data  # takes five times as long


def _dynamic_value(dynamic_values: Mapping[str, Any], name: str) -> Any:
    """An output that a library allocated in this run; or one that is no tensor at all."""
    value = dynamic_values[name]
    return as_numpy(value.contiguous()) if isinstance(value, Tensor) else handed_out(value)


def _own_value(dynamic_values: Mapping[str, Any], name: str) -> Any:
    """As `_dynamic_value`, where another output looks at the same memory."""
    return handed_out(dynamic_values[name])


def _dynamic_tensor(dynamic_values: Mapping[str, Any], name: str) -> Any:
    return handed_out(dynamic_values[name], as_torch=True)


def input_pointers(instance: Instance, name: str) -> Pointers:
    """How to lend an input's steps other memory; no way where an output is a view of its own."""
    looked_at = {instance.layout.root(output)[0] for output in instance.program.outputs}
    return () if name in looked_at else _pointers(instance, name)


def shared_outputs(instance: Instance, name: str) -> list[str]:
    """The outputs that lie in the memory of this one, itself among them."""
    root, _ = instance.layout.root(name)
    return [other for other in set(instance.program.outputs) if instance.layout.root(other)[0] == root]


def output_pointers(instance: Instance, name: str) -> Pointers:
    """How to let the steps write an output elsewhere: all of its memory, and that of no other output."""
    layout, specs = instance.layout, instance.inferred.specs
    root, _ = layout.root(name)
    is_shared = len(shared_outputs(instance, name)) > 1
    if root not in layout.offsets or is_shared or specs[root].numel != specs[name].numel:
        return ()
    return _pointers(instance, root) if specs[name].layout == "contiguous" else ()


def _pointers(instance: Instance, root: str) -> Pointers:
    """Every use of a value and of what looks at it, or none: they must all see the same memory."""
    spec = instance.inferred.specs[root]
    found = []
    for name, move in instance.uses:
        owner, first = instance.layout.root(name)
        if owner == root:
            begin = first * spec.nbytes // max(spec.numel, 1)
            # a use that reaches past the value would reach past the caller's array too
            if begin + instance.inferred.specs[name].nbytes > spec.nbytes:
                return ()
            found.append((move, begin))
    if spec.nbytes < REDIRECTED_BYTES or spec.layout != "contiguous":
        return ()
    pointers = tuple((move, skipped) for move, skipped in found if move is not None)
    return pointers if len(pointers) == len(found) else ()
