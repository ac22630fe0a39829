"""Sites for generated Triton, what the floor makes of them, and the check every case goes through.

The interpreter must be on before generated text is first loaded; compiling happens in other processes.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import subprocess
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from cpp_cases import close, dtype_name, empty
from torch import Tensor

from interpreted import interpret
from offers import offered, stages_of, why_not
from ridgeline.base.spec import Body, Config, Op, Site, Target, TensorSpec
from ridgeline.kernels.floor import call_floor
from ridgeline.kernels.triton.compiler import Compiled, compile_kernels
from ridgeline.kernels.triton.sass import tool
from ridgeline.kernels.triton.source import Kernel
from ridgeline.kernels.triton.stage import SCRATCH, WORDS, Stages
from ridgeline.tactics.cuda.triton_codegen import GeneratedTriton

os.environ["TRITON_INTERPRET"] = "1"

TOGETHER_S = 120.0
GPU = Target("cuda", "sm_90")
AMPERE = Target("cuda", "sm_80")


def evaluate(body: Body, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every value of the body by the floor, at the dtypes of the inputs."""
    values: dict[str, Any] = dict(inputs)
    is_double = any(t.dtype == torch.float64 for t in inputs.values())
    for name, array in body.constants.items():
        made = torch.from_numpy(np.array(array))
        values[name] = made.double() if is_double and made.is_floating_point() else made
    for op in body.ops:
        args = [values[n] if n else None for n in op.inputs]
        if is_double and op.op_type == "Cast" and op.attrs["to"] in (1, 10, 16):
            made = (args[0].double(),)
        else:
            made = call_floor(op, args)
        values.update((n, t) for n, t in zip(op.outputs, made, strict=True) if n)
    return values


def make_site(
    ops: Sequence[Op], inputs: Mapping[str, Tensor], outputs: Sequence[str], *,
    last: Iterable[str] = (), constants: Mapping[str, np.ndarray] | None = None,
    weights: Sequence[str] = (), target: Target = GPU,
) -> Site:  # fmt: skip
    """A site with specs read off the floor; `last` names the channels_last values."""
    body = Body(tuple(inputs), tuple(outputs), tuple(ops), dict(constants or {}))
    specs = {
        name: TensorSpec(
            dtype_name(t), tuple(t.shape), "channels_last" if name in set(last) else "contiguous"
        )
        for name, t in evaluate(body, inputs).items()
    }
    return Site(body, specs, frozenset(weights), {}, target)


def run_stages(site: Site, stages: Stages, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """What the launches write over NaN, in the interpreter."""
    outputs = [empty(spec) for spec in site.outputs]
    given = list(inputs.values())
    reads = [given[i] for i in stages.pointers.inputs]
    constants = [torch.from_numpy(array) for array in stages.pointers.extras]
    tensors = dict(zip(stages.pointers.names, [*reads, *constants, *outputs], strict=True))
    tensors[SCRATCH] = torch.full((stages.scratch_items,), torch.nan)
    tensors[WORDS] = torch.zeros(stages.word_items, dtype=torch.int32)
    for stage in stages.launches:
        args = [*(tensors[name] for name in stage.pointers), *stage.numbers]
        # lanes outside of a mask divide by zero, as they do on a GPU
        with np.errstate(all="ignore"):
            if stages.together == 1:
                interpret(without_pdl(stage.kernel), (stage.programs,), args)
            else:
                interpret_together(without_pdl(stage.kernel), stage.programs, stages.together, args)
    return outputs


def interpret_together(kernel: Kernel, programs: int, together: int, args: Sequence[Any]) -> None:
    """Programs that wait for one another, in as many processes at once, over memory that all of them share.

    Each process runs as many of them; which ones is up to the kernel.
    """
    for tensor in args:
        if isinstance(tensor, Tensor):
            tensor.share_memory_()
    context = multiprocessing.get_context("fork")
    share = programs // together
    assert share * together == programs
    workers = [context.Process(target=_interpret_share, args=(kernel, share, args)) for _ in range(together)]
    # a session of ONNX Runtime that the collector finds in a child waits for threads that were not forked
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads; these are idle
            for worker in workers:
                worker.start()
    finally:
        gc.enable()
    for worker in workers:
        worker.join(TOGETHER_S)
    late = [worker for worker in workers if worker.is_alive()]
    for worker in late:
        worker.kill()
    assert not late, f"{len(late)} of {together} programs wait for ever"
    assert not any(worker.exitcode for worker in workers), "a program failed"


def _interpret_share(kernel: Kernel, programs: int, args: Sequence[Any]) -> None:
    # what was written is in shared memory already; copied back once more it could undo another's writes
    executor = importlib.import_module("triton.runtime.interpreter").GridExecutor
    executor._restore_args_dev = lambda *_: None
    with np.errstate(all="ignore"):
        interpret(kernel, (programs,), args)


def without_pdl(kernel: Kernel) -> Kernel:
    """The interpreter knows nothing of dependent launch, nor of PTX."""
    constants = tuple((n, False if n in ("PDL", "PACKED") else value) for n, value in kernel.constants)
    return replace(kernel, constants=constants)


def check(
    tactic: GeneratedTriton, site: Site, inputs: Mapping[str, Tensor], configs: Sequence[Config] = ()
) -> None:
    """Some configs against float64, within twice the error of the floor at the dtype."""
    assert why_not(tactic, site) is None
    plain = evaluate(site.body, inputs)
    exact = evaluate(site.body, {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()})
    for config in configs or offered(tactic, site).configs:
        outputs = run_stages(site, stages_of(tactic, site, config), inputs)
        for name, got in zip(site.body.outputs, outputs, strict=True):
            close(got, plain[name], exact[name])


def machine_code(stages: Stages, arch: str = "sm_90") -> list[tuple[Compiled, str]]:
    """Each kernel compiled ahead of time, with its disassembly."""
    made = compile_kernels([stage.kernel for stage in stages.launches], arch)
    for compiled in made:
        assert isinstance(compiled, Compiled), compiled
    return [(compiled, disassembled(compiled)) for compiled in made if isinstance(compiled, Compiled)]


def disassembled(compiled: Compiled) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.cubin)
        file.flush()
        done = subprocess.run([tool("nvdisasm"), "-c", file.name], capture_output=True, text=True, check=True)
    return done.stdout
