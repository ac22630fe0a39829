"""Generated kernels as launches: the arguments of each and its number of programs, without any tensor yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline.kernels.triton.source import Kernel
from ridgeline.kernels.triton.text import HEAD, Pointers, indented

SCRATCH = "w0"
WORDS = "w1"
MAX_PROGRAMS = 2**31 - 1
LARGEST_NUMBER = 2**31 - 1  # that an argument of 32 bits holds


@dataclass(frozen=True)
class Stage:
    """One launch. Its arguments are pointers, given by name, then numbers."""

    kernel: Kernel
    programs: int
    pointers: tuple[str, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Stages:
    """Launches that run one after the other; none if no output has any elements."""

    launches: tuple[Stage, ...]
    pointers: Pointers
    scratch_items: int = 0  # float32 numbers that one launch leaves for the next
    # 32-bit words that programs of one launch exchange. They are zero before the first run, and nothing else
    # may write to them
    word_items: int = 0
    together: int = 1  # programs that wait for one another, so all of them must run at once
    # outputs may overwrite inputs: no program reads what another program of the same launch may have written
    are_programs_apart: bool = True

    @property
    def scratch_bytes(self) -> int:
        return 4 * (self.scratch_items + self.word_items)


def waits_inside(kernel: Kernel) -> bool:
    """Whether programs of the kernel wait for one another, so that all of a row must be under way at once."""
    return not kernel.module and any(name == WORDS for name, _ in kernel.signature)


def make_stage(
    name: str,
    lines: Sequence[str],
    pointers: Mapping[str, str],
    *,
    programs: int,
    number: int,
    warps: int,
    pdl: bool,
    constants: Mapping[str, bool] | None = None,
    registers: int = 0,
) -> Stage:
    """A kernel `name(pointers…, size)` with these lines as its body; it takes only the pointers they use."""
    constants = {"PDL": pdl, **(constants or {})}
    text = "\n".join(lines)
    used = {p: kind for p, kind in pointers.items() if _is_used(p, text)}
    head = f"def {name}({', '.join([*used, 'size', *(f'{name}: tl.constexpr' for name in constants)])}):"
    kernel = Kernel(
        function=name,
        module="",
        signature=(*used.items(), ("size", "i32"), *((name, "constexpr") for name in constants)),
        constants=tuple(constants.items()),
        text=HEAD + "\n".join([head, *indented(lines), ""]),
        num_warps=warps,
        num_stages=1,
        pdl=pdl,
        registers=registers,
    )
    return Stage(kernel, programs, tuple(used), (number,))


def _is_used(pointer: str, text: str) -> bool:
    return f"({pointer} " in text or f"({pointer}," in text or f"({pointer})" in text


WAIT = ("if PDL:", "    gdc_wait()", "    gdc_launch_dependents()")
