"""Device memory that objects hold, found by following what they refer to: true for every tactic as it is.

A launch is a closure over packed weights, a frozen call one over its scratch; nobody has to add it up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from ridgeline.base.gpu_graph import segments
from ridgeline.kernels.triton.compiler import Compiled

# hold nothing that lies on a device, or hold everything
LEFT_OUT = (str, bytes, int, float, bool, type(None), type, ModuleType, BuiltinFunctionType, np.ndarray)


def reach(roots: Iterable[object]) -> Iterator[object]:
    """Everything that these objects refer to, each once; modules, classes and globals are left out."""
    seen: set[int] = set()
    todo: list[Any] = list(roots)
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, LEFT_OUT):
            continue
        seen.add(id(item))
        yield item
        todo += _parts(item)


def _parts(item: Any) -> Iterable[Any]:
    if isinstance(item, Tensor):
        return ()
    if isinstance(item, FunctionType):
        return (*_cells(item), *(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values())
    if isinstance(item, MethodType):
        return item.__self__, item.__func__
    if isinstance(item, partial):
        return item.func, *item.args, *item.keywords.values()
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, list | tuple | set | frozenset):
        return list(item)
    slots = [
        getattr(item, name, None) for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())
    ]
    return (*getattr(item, "__dict__", {}).values(), *slots)


def _cells(function: Callable[..., Any]) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that was never bound
            continue


def storages(objects: Iterable[object], device: str = "cuda") -> dict[int, int]:
    """Bytes of all device memory in reach, by address; tensors that share memory count once."""
    found: dict[int, int] = {}
    for item in reach(objects):
        if isinstance(item, Tensor) and item.device.type == device:
            memory = item.untyped_storage()
            found[memory.data_ptr()] = memory.nbytes()
    found.pop(0, None)  # empty tensors
    return found


def unused_around(places: Iterable[int]) -> int:
    """What PyTorch's allocator took from the driver to hold these addresses, and nobody uses."""
    wanted = sorted(places)
    total = 0
    for segment in segments():
        start, size = int(segment["address"]), int(segment["total_size"])
        first = bisect_left(wanted, start)
        is_graphs_own = any(segment["segment_pool_id"])  # counted whole
        if not is_graphs_own and first < len(wanted) and wanted[first] < start + size:
            total += size - int(segment["active_size"])
    return total


def code_bytes(objects: Iterable[object]) -> int:
    """Machine code of the kernels in reach; equal kernels are loaded once."""
    return sum(map(len, {item.cubin for item in reach(objects) if isinstance(item, Compiled)}))
