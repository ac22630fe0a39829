"""The floor on the GPU: ONNX's own node tests, each op through the tactic that every region falls back to."""

from __future__ import annotations

import pytest
import test_floor as cases
import torch
from test_floor import EXCEPTIONS, Case

from offers import offered
from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.ir.ops import row_of
from ridgeline.kernels.elements import SUB_BYTE, to_torch
from ridgeline.kernels.floor.dtypes import to_tensor
from ridgeline.runtime.device import current_device
from ridgeline.select.graph_replay import bound_call
from ridgeline.tactics.aten import Aten


@pytest.fixture(scope="module")
def node_tests() -> list[Case]:
    return [case for case in cases._cases() if case.name not in EXCEPTIONS and lies_on_a_gpu(case)]


def lies_on_a_gpu(case: Case) -> bool:
    """PyTorch's devices know no types below a byte and no optionals, and draw other random numbers."""
    arrays = [array for array in (*case.inputs, *case.wanted) if array is not None]
    is_narrow = any(to_tensor(array).dtype in SUB_BYTE for array in arrays)
    is_drawn = case.name.removesuffix("_mask").removesuffix("_default") == "test_training_dropout"
    return not (is_narrow or is_drawn or case.op.op_type.startswith("Optional"))


def test_node_tests_on_the_gpu(node_tests: list[Case]) -> None:
    failed = {case.name: why for case in node_tests if (why := mismatch(case)) is not None}
    listed = "\n".join(f"{name}: {why}" for name, why in failed.items())
    assert not failed, f"{len(failed)} of {len(node_tests)}\n{listed}"


def mismatch(case: Case) -> str | None:
    """As the CPU's test compares, with the tensors on the GPU and what an op reads as numbers on the host."""
    try:
        outputs = run(case)
    except Exception as error:  # every failing op belongs in the one list
        return f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"
    for got, want in zip(outputs, case.wanted, strict=True):
        if want is None:
            continue
        if got.device.type != "cuda":
            return f"an output lies on {got.device}"
        why = compare(got.cpu(), to_tensor(want), case)
        if why is not None:
            return why
    return None


def run(case: Case) -> list[torch.Tensor]:
    """The op as a region of its own, every input but numbers on the device."""
    host = row_of(case.op).host_inputs
    names = {i: f"x{i}" for i, array in enumerate(case.inputs) if array is not None}
    outputs = tuple(f"y{i}" for i, name in enumerate(case.op.outputs) if name)
    op = Op(
        case.op.op_type,
        tuple(names.get(i, "") for i in range(len(case.inputs))),
        tuple(f"y{i}" if name else "" for i, name in enumerate(case.op.outputs)),
        case.op.attrs,
    )
    tensors = {name: to_tensor(case.inputs[i]) for i, name in names.items()}
    specs = {
        name: TensorSpec(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in tensors.items()
    }
    values = {names[i]: case.inputs[i] for i in host if i in names}
    body = Body(tuple(tensors), outputs, (op,))
    site = Site(body, specs, frozenset(), values, Target("cuda", current_device().arch))
    launch = offered(Aten({"": case.opset}), site).bind({}, {})
    given = [to_torch(values[n]) if n in values else t.cuda() for n, t in tensors.items()]
    with torch.inference_mode():
        _, call = bound_call(launch, site, given)
        made = iter(call())
    return [next(made) if name else None for name in case.op.outputs]  # type: ignore[misc]


def compare(got: torch.Tensor, want: torch.Tensor, case: Case) -> str | None:
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"got {got.dtype}{list(got.shape)}, want {want.dtype}{list(want.shape)}"
    a, b = (cases._comparable(t) for t in (got, want))
    eps = torch.finfo(want.dtype).eps if want.dtype.is_floating_point else 0.0
    scale = abs(b[cases.np.isfinite(b)]).max(initial=0) if b.dtype.kind in "fc" else 0.0
    noise = 4 * eps * scale if eps < 1e-3 else 0.0
    if not cases.np.allclose(a, b, rtol=max(case.rtol, 4 * eps), atol=max(case.atol, noise), equal_nan=True):
        return "values differ"
    return None
