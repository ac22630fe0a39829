"""A context: what one thread needs to run an engine. Holds instances, most recently used first.

On a GPU it can also be captured over the caller's own device tensors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ridgeline.base.spec import TensorSpec
from ridgeline.errors import InputError, ProcessError, RidgelineError, first_line
from ridgeline.kernels.elements import TORCH_DTYPES, numpy_dtype
from ridgeline.runtime.cuda_instance import BoundRun, CudaBinding, CudaInstance, check_bound
from ridgeline.runtime.device import current_device
from ridgeline.runtime.forking import process
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.io import AnyBinding, plain
from ridgeline.runtime.observation import Observer
from ridgeline.runtime.pending_shape import PendingShape
from ridgeline.runtime.real_shapes import UntunedBinding
from ridgeline.runtime.signature import Feeds, Signature, values_of

KEPT_INSTANCES = 8
# on a GPU, if all of them together hold no more than this share of its memory
KEPT_ON_GPU, KEPT_SHARE = 24, 1 / 16
LIBRARY_BYTES = 32 << 20  # what cuBLAS keeps for the stream of each on a Hopper, which has most
# more different values of shape tensors than this are no shapes any more: instances stop following them
KEPT_VALUES = 64
# what asking for the shapes of something else than arrays by name may raise
UNREADABLE = (KeyError, AttributeError, TypeError, IndexError, ValueError)
HAVE_SUCCESSORS = (PendingShape, UntunedBinding)
MakeBinding: TypeAlias = Callable[[dict[str, TensorSpec]], AnyBinding]
MakeInstance: TypeAlias = Callable[[Mapping[str, TensorSpec], Mapping[str, Tensor] | None], CudaInstance]


class Context:
    """Runs an engine for one thread at a time. Its memory is its own; the engine's weights are shared."""

    def __init__(
        self,
        signature: Signature,
        make_binding: MakeBinding,
        observer: Observer | None = None,
        *,
        may_pad: bool = False,
    ) -> None:
        self._signature = signature
        self._ports = signature.ports
        self._make_binding = make_binding
        self._observer = observer or Observer()
        self._may_pad = may_pad  # then whoever makes bindings refuses what fits nowhere
        self._bindings: OrderedDict[tuple[Any, ...], AnyBinding] = OrderedDict()
        self._names = tuple(self._ports)
        self._latest: AnyBinding | None = None
        self._forks = process.forks
        self._idle = [True]  # empty while a thread is inside: to take from a list is quicker than a lock
        self._valued = [self._names.index(name) for name in signature.valued]
        self._values_met = 0
        # elsewhere a value decides which binding is right, or is handed to the steps as it is
        self._goes_by_shapes = not (self._valued or signature.non_tensor)
        self._torch_dtypes = [TORCH_DTYPES.get(port.dtype) for port in self._ports.values()]
        self._numpy_dtypes = [numpy_dtype(port.dtype) for port in self._ports.values()]

    def run(self, feeds: Feeds) -> dict[str, Any]:
        """Outputs by name. numpy in, numpy out; torch in, torch out; results are the caller's own.

        Arrays are read where they lie, so nobody may write to them until `run` returns. `ProcessError` for a
        second thread while one is inside: both would compute in the same memory.
        """
        if self._forks != process.forks:
            self._after_fork()
        try:
            self._idle.pop()
        except IndexError:
            raise ProcessError(
                "this context is running in another thread",
                want="one thread at a time",
                help="give each thread its own engine.context(), or call engine.run, which does so",
            ) from None
        try:
            if self._goes_by_shapes and self._observer.observation is None:
                made = self._latest.run(feeds) if self._latest is not None else None
                if made is None and (binding := self._met(feeds)) is not None:
                    made, self._latest = binding.run(feeds), binding
                if made is not None:
                    return made
            return self._run(feeds)
        except RidgelineError:
            raise
        except Exception as error:  # a library refuses these values: the engine itself stays whole
            raise InputError(
                "the engine cannot run with these values",
                got=f"{type(error).__name__}: {first_line(error, 300)}",
                help="look for indices outside their table, or sizes the model does not take",
            ) from error
        finally:
            self._idle.append(True)

    def _after_fork(self) -> None:
        """Start anew: a plan that a thread of the parent is making, or a run in one, will never end here."""
        self._forks, self._latest, self._idle = process.forks, None, [True]
        self._bindings.clear()

    @contextmanager
    def without_steps(self, feeds: Feeds) -> Iterator[None]:
        """Inside, `run` with these inputs does all but the steps, so that this can be timed."""
        instance = self._find_ready(self._signature.apart(feeds)[0])[0].instance
        vars(instance)["execute"] = int  # before the method of the class, for this instance alone
        try:
            yield
        finally:
            del vars(instance)["execute"]

    @contextmanager
    def timed_steps(
        self, feeds: Feeds, times_ns: list[tuple[int, int]], clock: Callable[[], int]
    ) -> Iterator[None]:
        """Inside, each `run` with these inputs adds the times at which its steps began and ended."""
        instance = self._find_ready(self._signature.apart(feeds)[0])[0].instance
        execute = instance.execute

        def timed() -> None:
            began = clock()
            execute()
            times_ns.append((began, clock()))

        vars(instance)["execute"] = timed  # before the method of the class, for this instance alone
        try:
            yield
        finally:
            del vars(instance)["execute"]

    def instance(self, feeds: Feeds) -> Instance:
        """The instance for these inputs, loaded with them; waits for one that is still being made."""
        feeds, non_tensor = self._signature.apart(feeds)
        binding, arrays = self._find_ready(feeds)
        with torch.inference_mode():
            binding.load(arrays)
        binding.instance.dynamic_values.update(non_tensor)
        return binding.instance

    def memory(self) -> list[tuple[str, int]]:
        """The shapes that are kept, latest last, and the bytes each holds in arena and inputs."""
        ready = [(key, b.instance) for key, b in self._bindings.items() if not isinstance(b, PendingShape)]
        return [(_key_text(self._names, key), instance.nbytes) for key, instance in ready]

    def _met(self, feeds: Feeds) -> AnyBinding | None:
        """The binding for inputs of these shapes; None if there is none yet, or only for the time being."""
        try:
            key = tuple([feeds[name].shape for name in self._names])
            binding = self._bindings.get(key)
        except UNREADABLE:  # `_run` says what is wrong
            return None
        if binding is None or isinstance(binding, HAVE_SUCCESSORS):
            return None
        self._bindings.move_to_end(key)
        return binding

    def _run(self, feeds: Feeds) -> dict[str, Any]:
        feeds, non_tensor = self._signature.apart(feeds)
        if not non_tensor:
            return self._run_at(*self._find(feeds))
        # strings and sequences are handed to the steps as they are
        binding, arrays = self._find_ready(feeds)
        dynamic_values = binding.instance.dynamic_values
        dynamic_values.update(non_tensor)
        try:
            return self._run_at(binding, arrays)
        finally:
            dynamic_values.update(dict.fromkeys(non_tensor))

    def _run_at(self, binding: AnyBinding, arrays: list[Any]) -> dict[str, Any]:
        made = binding.run(dict(zip(self._names, map(plain, arrays), strict=True)))
        assert made is not None, "checked arrays fit the instance that was made for them"
        return made

    def _find_ready(self, feeds: Feeds) -> tuple[AnyBinding, list[Any]]:
        """As `_find`, but waits for an instance that is still being made."""
        found = self._find(feeds)
        if not isinstance(found[0], PendingShape):
            return found
        found[0].wait()
        return self._find(feeds)

    def _find(self, feeds: Feeds) -> tuple[AnyBinding, list[Any]]:
        """The binding for these inputs, and the inputs in order."""
        try:
            arrays = [feeds[name] for name in self._names]
            key = self._key(arrays)
        except UNREADABLE:
            arrays = self._signature.checked(feeds)
            key = self._key(arrays)
        if len(feeds) != len(arrays):
            arrays = self._signature.checked(feeds)
        binding = self._bindings.get(key)
        if binding is None:
            arrays = self._signature.checked(feeds)
            binding = self._new_binding(key, arrays)
        elif len(self._bindings) > 1:
            self._bindings.move_to_end(key)
        if isinstance(binding, HAVE_SUCCESSORS) and binding.is_ready:
            binding = self._bindings[key] = binding.successor()
        for i, array in enumerate(arrays):
            dtypes = self._torch_dtypes if isinstance(array, Tensor) else self._numpy_dtypes
            if getattr(array, "dtype", None) != dtypes[i]:  # a buffer has a shape, and no type of ours
                arrays = self._signature.checked(feeds)
        if self._observer.observation is not None:
            self._observer.observation.count(dict(zip(self._names, key, strict=False)))
        self._latest = None if isinstance(binding, HAVE_SUCCESSORS) else binding
        return binding, arrays

    def _key(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        shapes = tuple(tuple(array.shape) for array in arrays)
        if not self._valued or self._values_met > KEPT_VALUES:
            return shapes
        return (*shapes, *(values_of(arrays[i]) for i in self._valued))

    def _new_binding(self, key: tuple[Any, ...], arrays: Sequence[Any]) -> AnyBinding:
        specs = self._signature.specs(arrays)
        self._values_met += bool(self._valued)
        if len(key) == len(self._names) and self._valued:
            # the values change all the time: what depends on them runs as islands
            specs = {name: TensorSpec(spec.dtype, spec.shape) for name, spec in specs.items()}
        self._signature.require_guards(specs)
        if not self._may_pad:
            self._signature.require(specs)
        binding = self._bindings[key] = self._make_binding(specs)
        self._forget_old()
        return binding

    def _forget_old(self) -> None:
        while len(self._bindings) > KEPT_INSTANCES:
            self._bindings.popitem(last=False)


class CudaContext(Context):
    """Runs an engine on the GPU for one thread at a time, on whatever stream is current."""

    def __init__(self, signature: Signature, make_instance: MakeInstance) -> None:
        super().__init__(signature, lambda specs: CudaBinding(make_instance(specs, None)))
        self._make_instance = make_instance

    def _forget_old(self) -> None:
        """More than on a CPU where they are small: to bind and capture anew takes as long as many runs, and
        a server's batches have many sizes."""
        while len(self._bindings) > KEPT_INSTANCES:
            held = sum(binding.instance.nbytes + LIBRARY_BYTES for binding in self._bindings.values())
            if len(self._bindings) <= KEPT_ON_GPU and held <= current_device().memory_bytes * KEPT_SHARE:
                return
            _, old = self._bindings.popitem(last=False)
            assert isinstance(old, CudaBinding), "every binding of a GPU is one"
            old.wait()

    def bind(self, tensors: Mapping[str, Tensor]) -> BoundRun:
        """Capture the engine over these inputs: a run then is one graph launch that copies nothing."""
        arrays = dict(zip(self._names, self._signature.checked(tensors), strict=True))
        for port in self._ports.values():
            check_bound(port.name, arrays[port.name], port.dtype)
        specs = self._signature.specs(list(arrays.values()))
        self._signature.require(specs)
        return BoundRun(self._make_instance(specs, arrays))


def _key_text(names: Sequence[str], key: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(f"{n}[{'x'.join(map(str, shape))}]" for n, shape in zip(names, key, strict=False))
