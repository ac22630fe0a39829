"""Tactics for one op on a GPU, made from an author's kernel: in Triton, or in CUDA C++ through NVRTC."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from typing import Any

import torch

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Config, Site
from ridgeline.errors import PluginError, first_line
from ridgeline.kernels.triton.compiler import COMPILED_HERE, Compiled, KernelStore, compile_kernel
from ridgeline.kernels.triton.driver import Launcher
from ridgeline.kernels.triton.epilogue import Epilogue, make_epilogue
from ridgeline.kernels.triton.sass import resource_usage, static_shared
from ridgeline.kernels.triton.source import Kernel
from ridgeline.kernels.triton.text import pointer_type
from ridgeline.plugins.tactics import Bound, OpSite, OpTactic, Scalar, macros, plain_numbers
from ridgeline.tactics.base import Launch
from ridgeline.tactics.cuda.own_kernels import require_fit

LAUNCH_OPTIONS = ("num_warps", "num_stages")
BYTES = "*u8"
LARGEST_INT32 = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class GpuTactic(OpTactic):
    """What both share: where the kernel runs, and the numbers it is given."""

    grid: Callable[[OpSite, Config], Sequence[int]]
    scalars: Callable[[OpSite], Sequence[Scalar]] = lambda at: ()
    alignment: int = 16

    runs_on = "cuda"
    compiles = True

    def held_types(self, at: OpSite, config: Config) -> list[str]:
        return [BYTES] * (bool(self.workspace_bytes(at, config)) + (self.state is not None))


@dataclass(frozen=True, kw_only=True)
class TritonTactic(GpuTactic):
    """A `@triton.jit` kernel. With `epilogue_axis` it runs the whole region behind the op as well."""

    kernel: Any
    constants: Callable[[OpSite], Mapping[str, Any]] = lambda at: {}
    epilogue_axis: int | None = None
    store: KernelStore = COMPILED_HERE

    def read(self, site: Site) -> OpSite:
        if self.epilogue_axis is None:
            return super().read(site)
        found = [op for op in site.body.ops if op.key == self.op]
        if len(found) != 1 or any(name and name not in site.body.inputs for name in found[0].inputs):
            raise RefusedError(f"the region does not begin with one {self.op}")
        return self.read_op(site, found[0])

    def why_no_tools(self, at: OpSite) -> str | None:
        if self.kernel.fn.__module__ == "__main__":
            return f"{self.kernel.fn.__name__} stands in __main__, want a module that can be imported"
        self._epilogue(at)  # may refuse
        return self.store.why_none(at.site.target.arch)

    def kernels(self, at: OpSite, config: Config) -> Sequence[Kernel]:
        return [self.describe(at, config)]

    def _epilogue(self, at: OpSite) -> Epilogue | None:
        if self.epilogue_axis is None:
            return None
        return make_epilogue(at.site, at.op.outputs[0], self.epilogue_axis)

    def describe(self, at: OpSite, config: Config) -> Kernel:
        """The kernel of this op and config, as plain data that compiles anywhere."""
        tail = self._epilogue(at)
        function = self.kernel.fn
        ports = at.inputs if tail else (*at.inputs, *at.outputs)
        pointers = [BYTES if spec is None else pointer_type(spec.dtype) for spec in ports]
        numbers = map(_scalar_type, plain_numbers(self.scalars(at)))
        types: Iterator[str] = iter([*pointers, *self.held_types(at, config), *numbers])
        known = {**self.constants(at), **{k: v for k, v in config.items() if k not in LAUNCH_OPTIONS}}
        known |= {"EPILOGUE": tail.function} if tail else {}
        signature: list[tuple[str, Any]] = []
        for name, parameter in inspect.signature(function).parameters.items():
            if "constexpr" in str(parameter.annotation):
                signature.append((name, "constexpr"))
            elif tail is not None and name == "pointers":
                signature.append((name, tail.types))
            else:
                signature.append((name, next(types, "")))
        wanted = [name for name, kind in signature if kind == "constexpr"]
        missing = [
            name for name, kind in signature if not kind or (kind == "constexpr" and name not in known)
        ]
        if missing or list(types):
            raise PluginError(
                f"{self.name}: the kernel's parameters do not fit what it is given",
                got=", ".join(name for name, _ in signature),
                want=f"values for {', '.join(missing)}" if missing else "more parameters",
            )
        return Kernel(
            function.__name__, function.__module__, tuple(signature),
            tuple((name, known[name]) for name in wanted), pdl=False,
            num_warps=int(config.get("num_warps", 4)), num_stages=int(config.get("num_stages", 3)),
        )  # fmt: skip

    def runner(self, at: OpSite, config: Config) -> Bound:
        kernel = self.describe(at, config)
        compiled = compile_kernel(kernel, at.site.target.arch, store=self.store)
        launcher, grid = Launcher(require_fit(compiled)), self.grid(at, config)
        tail, numbers = self._epilogue(at), plain_numbers(self.scalars(at))
        extras = [torch.from_numpy(array).to(self.runs_on) for array in tail.extras] if tail else []
        order = [name for name, kind in kernel.signature if kind != "constexpr"]
        place = order.index("pointers") if tail is not None else 0

        def bound(inputs: Any, outputs: Any, held: Mapping[str, Any]) -> Callable[[], object]:
            own, made = at.pick(inputs, outputs)
            tensors = (*own, *([] if tail else made), *held.values())
            arguments: list[Any] = [*(0 if t is None else t for t in tensors), *numbers]
            if tail is not None:
                arguments[place:place] = tail.pointers(inputs, extras, outputs)
            return launcher.freeze(grid, arguments)

        return bound

    def bind_op(self, at: OpSite, config: Config) -> Launch:
        launch, tail = super().bind_op(at, config), self._epilogue(at)
        return replace(launch, extents={**(launch.extents or {}), **tail.extents}) if tail else launch


def _scalar_type(value: Scalar) -> str:
    return "fp32" if isinstance(value, float) else "i32" if abs(value) <= LARGEST_INT32 else "i64"


@dataclass(frozen=True, kw_only=True)
class NvrtcTactic(GpuTactic):
    """An `extern "C" __global__` function in CUDA C++; the entries of a config are macros."""

    source: str
    function: str
    threads: Callable[[OpSite, Config], int]  # of a block; whole warps

    def why_no_tools(self, at: OpSite) -> str | None:
        return None if has_nvrtc() else "NVRTC is not installed: pip install 'ridgeline[nvrtc]'"

    def compiled(self, at: OpSite, config: Config) -> Compiled:
        """What a launch needs to know; registers and memory are in the code itself."""
        threads, numbers = self.threads(at, config), plain_numbers(self.scalars(at))
        if threads % 32:
            raise PluginError(f"{self.name}: a block of {threads} threads", want="a multiple of 32")
        pointers = [BYTES] * (len(at.inputs) + len(at.outputs))
        types = [*pointers, *self.held_types(at, config)]
        types += ["fp64" if isinstance(value, float) else "i64" for value in numbers]
        arch = at.site.target.arch
        return Compiled(
            self.function, arch, nvrtc_cubin(macros(config) + self.source, arch),
            shared=0, num_warps=threads // 32, pdl=False, parameters=len(types), types=tuple(types),
            registers=0, spills=0, seconds=0.0, triton="",
        )  # fmt: skip

    def runner(self, at: OpSite, config: Config) -> Bound:
        launcher, numbers = Launcher(self.compiled(at, config)), plain_numbers(self.scalars(at))
        grid = self.grid(at, config)

        def bound(inputs: Any, outputs: Any, held: Mapping[str, Any]) -> Callable[[], object]:
            tensors = [*chain(*at.pick(inputs, outputs)), *held.values()]
            return launcher.freeze(grid, [*(0 if t is None else t for t in tensors), *numbers])

        return bound


def with_resources(made: Compiled) -> Compiled:
    """The kernel with the registers and the memory that its code states, for a report."""
    registers, spills = resource_usage(made.cubin, made.name)
    shared = made.shared + static_shared(made.cubin, made.arch, made.name)
    return replace(made, registers=registers, spills=spills, shared=shared)


@cache
def has_nvrtc() -> bool:
    """Whether cuda-core is there, which brings NVRTC."""
    return find_spec("cuda") is not None and find_spec("cuda.core") is not None


@cache
def nvrtc_cubin(source: str, arch: str) -> bytes:
    """Machine code for an architecture; needs no GPU."""
    core = import_module("cuda.core")
    if not hasattr(core, "Program"):  # before its first stable release
        core = import_module("cuda.core.experimental")
    options = core.ProgramOptions(std="c++17", arch=arch)
    try:
        return bytes(core.Program(source, "c++", options).compile("cubin").code)
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if ": error:" in line), first_line(error))
        raise PluginError("the CUDA source does not compile", got=reason) from error
