"""The model run op by op with limits on trips and bytes, before ONNX Runtime runs it without limits.

ONNX Runtime ends the process on an LSTM or GRU without rows. Where data may lead there, this run goes first.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import onnxruntime as ort
import torch
from torch import Tensor

from ridgeline.base.spec import Body, Op, TensorSpec
from ridgeline.errors import BuildError, InputError, LimitError
from ridgeline.ir.infer import Inferred
from ridgeline.ir.op_row import Trait
from ridgeline.ir.ops import has
from ridgeline.kernels.elements import dtype_name
from ridgeline.kernels.values import taken_in
from ridgeline.options import Limits
from ridgeline.runtime.inference import Inference
from ridgeline.tactics.aten import compile_body
from ridgeline.tactics.fallback import Surroundings, Values, require_rows

# how long a run without limits may take: so many times the limited one, and at least so many seconds
TIMES_AS_LONG, LEAST_SECONDS = 50, 60


class LimitedRun:
    """The model op by op. It is read at once, so its graph may be rewritten afterwards."""

    def __init__(self, model: ir.Model, limits: Limits, *, has_loops: bool) -> None:
        self._inference = Inference.of(model, limits)
        self._program = self._inference.program
        self._has_loops = has_loops
        self._seconds = 0.0

    @staticmethod
    def of(model: ir.Model, limits: Limits) -> LimitedRun | None:
        """None for a model without loops and recurrent layers, which ends by itself."""
        nodes = [node for graph in model.graphs() for node in graph]
        has_loops = any(has(node, Trait.REPEATS) for node in nodes)
        is_limited = has_loops or any(has(node, Trait.NEVER_EMPTY) for node in nodes)
        return LimitedRun(model, limits, has_loops=has_loops) if is_limited else None

    def require_end(self, feeds: Mapping[str, Any]) -> None:
        """Raise LimitError if the model goes beyond a limit on these inputs, InputError if a recurrent layer
        has nothing to compute. What else is wrong with them, the reference says."""
        start = time.perf_counter()
        inferred = Inferred()
        try:
            given = [taken_in(feeds[name]) for name in self._program.inputs]
            specs = {
                name: TensorSpec(dtype_name(value), tuple(value.shape))
                for name, value in zip(self._program.inputs, given, strict=True)
                if isinstance(value, Tensor)
            }
            inferred = self._inference.at(specs, inferred)
        except LimitError:
            raise
        except Exception:
            if 0 in self._rows(inferred):
                raise
            return
        if not self._has_loops and None not in self._rows(inferred):
            return
        try:
            run_on_floor(self._inference, self._program.outputs, given, inferred.specs, before=require_rows)
        except (LimitError, InputError):
            raise
        except Exception:  # not the floor
            return
        finally:
            self._seconds = max(self._seconds, time.perf_counter() - start)

    def _rows(self, inferred: Inferred) -> list[int | None]:
        """How many elements recurrent layers are given; None where data decides."""
        ops = self._program.flat_ops(self._program.regions)[0]
        given = [inferred.specs.get(op.inputs[0]) for op in ops if has(op, Trait.NEVER_EMPTY)]
        inside = [None for op in ops if any(_holds_recurrent(attr) for attr in op.attrs.values())]
        return [*(None if spec is None else spec.numel for spec in given), *inside]

    def timed(self, run: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
        """A session's `run` that is ended when it takes far longer than the limited one did."""
        if not self._has_loops:
            return run

        def run_timed(names: Sequence[str], feeds: Mapping[str, Any]) -> Sequence[Any]:
            seconds = max(LEAST_SECONDS, TIMES_AS_LONG * self._seconds)
            options = ort.RunOptions()
            timer = threading.Timer(seconds, setattr, (options, "terminate", True))
            timer.daemon = True
            timer.start()
            try:
                return run(names, feeds, options)
            except Exception as error:
                if options.terminate:
                    raise BuildError(
                        f"a loop of the model did not end within {math.ceil(seconds)} s",
                        help="ridge build MODEL --verify off builds it without running the reference",
                    ) from error
                raise
            finally:
                timer.cancel()

        return run_timed


def run_on_floor(
    inference: Inference,
    names: Sequence[str],
    given: Sequence[Any],
    specs: Mapping[str, TensorSpec],
    before: Callable[[Op, Values], None] | None = None,
) -> list[Any]:
    """These values of a program, computed op by op through PyTorch; `before` is called before each op."""
    program = inference.program
    ops, constants = program.flat_ops(program.regions)
    body = Body((*program.inputs, *inference.weights), tuple(names), ops, constants)
    around = Surroundings(specs, program.opset_imports, limits=program.limits, before=before)
    run, _ = compile_body(body, around)
    with torch.inference_mode():
        return run([*given, *inference.weights.values()])


def _holds_recurrent(attr: object) -> bool:
    return isinstance(attr, Body) and any(
        has(op, Trait.NEVER_EMPTY) or any(map(_holds_recurrent, op.attrs.values())) for op in attr.ops
    )
