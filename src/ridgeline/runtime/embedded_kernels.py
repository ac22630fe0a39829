"""The kernels of a plan: which ones its steps launch, their machine code, what to say when it is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline.base.spec import Site
from ridgeline.errors import PlanError
from ridgeline.kernels.triton.compiler import COMPILED_HERE, Compiled, KernelStore, compile_kernels
from ridgeline.kernels.triton.source import Kernel, triton_version
from ridgeline.plan.plan import Step
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.offer import kernels_of

# of every step: for a choice that the machine itself settles, or where the first cannot run
RUNNERS_UP = 2

Tactics = Mapping[str, Tactic]
OTHER_VERSION = "the compiled kernels in the file are of another version of ridgeline"
LEFT_OUT = "the compiled kernels in the file were left alone: it was not made on this machine"
TRUST = "or, if you trust whoever made the file, load it with --trust (ridgeline.load(path, trust=True))"


@dataclass(frozen=True)
class EmbeddedKernels:
    """The compiled kernels of an engine file, and those of them that the engine may use."""

    compiled: Mapping[str, Compiled] = field(default_factory=dict)  # by digest
    store: KernelStore = COMPILED_HERE
    left_out: str = ""  # why the engine does not use them

    @staticmethod
    def of(compiled: Mapping[str, Compiled], *, is_signed_here: bool, is_trusted: bool) -> EmbeddedKernels:
        """Those of a file: used if this user made it on this machine, or trusts it explicitly."""
        if is_signed_here or is_trusted:
            return EmbeddedKernels(compiled, KernelStore(compiled, are_foreign=not is_signed_here))
        return EmbeddedKernels(compiled, left_out=LEFT_OUT if compiled else "")

    def require(self, planned: Callable[[], Sequence[tuple[Step, Site]]], tactics: Tactics) -> None:
        """Raise if kernels of the plan are neither here nor can be compiled: without them it would crawl."""
        if triton_version() is not None:
            return
        missing = []
        for step, site in planned():
            kernels = kernels_of(tactics, site, step.tactic, step.config)
            found = [self.store.find(kernel, site.target.arch) for kernel in kernels]
            # without Triton and without a kernel in the file, the tactic itself refuses: nothing is found
            if step.kernels and (not found or None in found):
                missing.append(step.name)
        if missing:
            unused = self.left_out or (OTHER_VERSION if self.compiled else "")
            raise PlanError(
                f"{len(missing)} steps of this engine need kernels that cannot be compiled here",
                rows=missing,
                got="Triton is not installed" + (f", and {unused}" if unused else ""),
                help="pip install 'ridgeline[gpu]'" + (f"; {TRUST}" if unused == LEFT_OUT else ""),
            )


def collect(steps: Sequence[tuple[Step, Site]], tactics: Tactics, store: KernelStore) -> dict[str, Compiled]:
    """Machine code of every step's choice and of its runners-up, by digest; compiled now if need be."""
    first = {site.key: (step, site) for step, site in reversed(steps)}  # equal sites have equal choices
    kernels = {k.digest: k for step, site in reversed(first.values()) for k in _kernels(step, site, tactics)}
    arch = steps[0][1].target.arch if steps else ""
    made = compile_kernels(list(kernels.values()), arch, store=store)
    return {digest: each for digest, each in zip(kernels, made, strict=True) if isinstance(each, Compiled)}


def _kernels(step: Step, site: Site, tactics: Tactics) -> Iterator[Kernel]:
    """The choice's, and those of the next few candidates that have any."""
    yield from kernels_of(tactics, site, step.tactic, step.config)
    left = RUNNERS_UP
    for rival in step.losers:
        if rival.refused is None and left and (some := kernels_of(tactics, site, rival.tactic, rival.config)):
            left -= 1
            yield from some
