"""Every module of `size_modules` through every door at every size: right, or refused with a reason.

    python tests/torch_in/guards_walk.py [RESULT.json] [PART OF A NAME]

A row for each module and door. Nothing may be wrong, and no exception may come from elsewhere.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from size_modules import CASES, Case, made
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import ridgeline
from ridgeline.errors import RidgelineError
from ridgeline.frontend.torch_tree import flatten

OPTIONS: dict[str, Any] = {"level": 0, "verify": "fast", "new_shapes": "wait", "threads": 1}
DOORS = ("compile", "build", "program")
Run = Callable[[Sequence[Tensor]], list[Tensor]]


def leaves(result: Any) -> list[Tensor]:
    return [leaf if isinstance(leaf, Tensor) else torch.tensor(leaf) for leaf in flatten(result)[0]]


def opened(door: str, module: nn.Module, case: Case) -> Run:
    """The module behind a door, as a function of tensors."""
    example = case.call(case.example)
    if door == "compile":
        compiled = ridgeline.compile(module, **OPTIONS)
        return lambda tensors: leaves(compiled(*tensors))
    if door == "build":
        engine = ridgeline.build(module, example, dynamic_shapes=case.axes, **OPTIONS)
    else:
        hints = tuple(dict.fromkeys(axes, Dim.AUTO) for axes in case.axes)
        shapes = dict(zip(("x", "y"), hints, strict=False))
        engine = ridgeline.build(exported(module, example, shapes), **OPTIONS)
    names = [port.name for port in engine.inputs]
    return lambda tensors: list(engine.run(dict(zip(names, tensors, strict=True))).values())


class NoProgram(Exception):
    """torch.export itself does not take the module, or its program computes something else."""


def exported(module: nn.Module, example: Sequence[Tensor], shapes: Any) -> ExportedProgram:
    try:
        program = torch.export.export(module, tuple(example), dynamic_shapes=shapes)
    except Exception as error:
        raise NoProgram(str(error)) from error
    if not are_same(leaves(program.module()(*example)), leaves(module(*example))):
        raise NoProgram("another result")
    return program


def verdict(run: Run, module: nn.Module, tensors: Sequence[Tensor]) -> str:
    """right, refused, wrong (not what the module says), unasked (the module raises), or a foreign error."""
    try:
        want = leaves(module(*tensors))
    except Exception:
        want = None
    try:
        got = run(tensors)
    except RidgelineError:
        return "refused"
    except Exception as error:
        return f"foreign {type(error).__name__}: {str(error)[:200]}"
    if want is None:
        return "unasked"
    return "right" if are_same(got, want) else "wrong"


def are_same(got: Sequence[Tensor], want: Sequence[Tensor]) -> bool:
    return len(got) == len(want) and all(
        one.shape == other.shape and torch.allclose(one.double(), other.double(), 1e-4, 1e-4, equal_nan=True)
        for one, other in zip(got, want, strict=True)
    )


def walk(case: Case, door: str) -> Iterator[tuple[tuple[int, int], str]]:
    """The verdict at each size."""
    module = made(case)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run = opened(door, module, case)
        except (RidgelineError, NoProgram) as error:
            yield from (
                (size, "unbuilt" if isinstance(error, RidgelineError) else "unexported")
                for size in case.sizes
            )
            return
        except Exception as error:
            yield from ((size, f"foreign {type(error).__name__}: {error}"[:200]) for size in case.sizes)
            return
        for size in case.sizes:
            yield size, verdict(run, module, case.call(size))


def main(path: str = "", part: str = "") -> int:
    rows, total = [], Counter[str]()
    for case in CASES:
        for door in DOORS if part in case.name else ():
            start = time.perf_counter()
            found = list(walk(case, door))
            counts = Counter(said for _, said in found)
            total += Counter({f"{door}: {said.split()[0]}": n for said, n in counts.items()})
            bad = {
                str(size): said for size, said in found if said.startswith(("wrong", "foreign", "unasked"))
            }
            rows.append({"module": case.name, "door": door, "sizes": len(found), **counts, "bad": bad})
            line = f"{case.name:26} {door:8} {dict(counts)} {bad or ''} {time.perf_counter() - start:.1f} s"
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    record = {
        "modules": len({row["module"] for row in rows}),
        "calls": sum(total.values()),
        "counts": dict(sorted(total.items())),
        "torch": torch.__version__,
        "rows": rows,
    }
    if path:
        Path(path).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(record["counts"]) + "\n")
    return int(any("wrong" in said or "foreign" in said for said in total))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
