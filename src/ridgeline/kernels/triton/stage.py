"""Generated kernels as launches: which arguments each takes and how often it runs, without any tensor yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline.kernels.triton.source import Kernel
from ridgeline.kernels.triton.text import HEAD, Pointers, indented

SCRATCH = "w0"
MAX_PROGRAMS = 2**31 - 1


@dataclass(frozen=True)
class Stage:
    """One launch: pointers by name, then numbers."""

    kernel: Kernel
    programs: int
    pointers: tuple[str, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Stages:
    """Launches that run one after the other; none at all where no output has any elements."""

    launches: tuple[Stage, ...]
    pointers: Pointers
    scratch_items: int = 0  # float32 numbers that the launches hand to one another


def make_stage(
    name: str,
    lines: Sequence[str],
    pointers: Mapping[str, str],
    *,
    programs: int,
    number: int,
    warps: int,
    pdl: bool,
) -> Stage:
    """A kernel `name(pointers…, size)` around these lines, which use whatever pointers they need."""
    text = "\n".join(lines)
    used = {p: kind for p, kind in pointers.items() if _is_used(p, text)}
    head = f"def {name}({', '.join([*used, 'size', 'PDL: tl.constexpr'])}):"
    kernel = Kernel(
        function=name,
        module="",
        signature=(*used.items(), ("size", "i32"), ("PDL", "constexpr")),
        constants=(("PDL", pdl),),
        text=HEAD + "\n".join([head, *indented(lines), ""]),
        num_warps=warps,
        num_stages=1,
        pdl=pdl,
    )
    return Stage(kernel, programs, tuple(used), (number,))


def _is_used(pointer: str, text: str) -> bool:
    return f"({pointer} " in text or f"({pointer}," in text or f"({pointer})" in text


WAIT = ("if PDL:", "    gdc_wait()", "    gdc_launch_dependents()")
