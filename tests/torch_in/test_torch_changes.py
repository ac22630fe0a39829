"""`ridgeline.compile`: what changed since an engine was built is noticed, and types stay the module's."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_modules import seeded

import ridgeline
from ridgeline.errors import InputError, UnsupportedError

FAST: dict[str, Any] = {"level": 0, "verify": "off"}
X = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))


class Scaled(nn.Module):
    """With attributes that are no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale, self.shift = nn.Linear(8, 8), 1.0, torch.ones(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * self.scale + self.shift


def two_layers() -> Any:
    return seeded(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)))


def swap(module: Any) -> None:
    module[2] = nn.Linear(8, 4).eval()


def add(module: Any) -> None:
    module.append(nn.Sigmoid().eval())


def hook(module: Any) -> None:
    module[0].register_forward_hook(lambda part, given, made: made * 2)


def attribute(module: Any) -> None:
    module.scale = -0.0


def tensor_attribute(module: Any) -> None:
    module.shift.add_(2)


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (two_layers, swap),
        (two_layers, add),
        (two_layers, hook),
        (Scaled, attribute),
        (Scaled, tensor_attribute),
    ],
)
def test_a_change_makes_new_engines(make: Callable[[], Any], change: Callable[[Any], None]) -> None:
    module = make().requires_grad_(False).eval()
    compiled = ridgeline.compile(module, X, **FAST)
    first = compiled.engines[0]
    compiled(X)
    assert compiled.engines[0] is first, "nothing changed yet"
    change(module)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), module(X))


def test_a_number_set_to_what_it_was_is_no_change() -> None:
    module = Scaled().requires_grad_(False).eval()
    module.scale = 1000.5
    compiled = ridgeline.compile(module, X, **FAST)
    first = compiled.engines[0]
    module.scale = float("1000.5")
    compiled(X)
    assert compiled.engines[0] is first


def test_writes_that_leave_no_trace_need_a_refresh() -> None:
    module = two_layers()
    compiled = ridgeline.compile(module, X, **FAST)
    module[0].weight.data.add_(1)
    compiled.refresh()
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), module(X))


def test_a_part_put_into_training_mode_is_refused() -> None:
    module = seeded(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)))
    compiled = ridgeline.compile(module, X, **FAST)
    module[1].train()
    with pytest.raises(UnsupportedError, match="training mode"):
        compiled(X)


def test_autocast_is_another_engine() -> None:
    module = two_layers()
    compiled = ridgeline.compile(module, **FAST)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(X).dtype == module(X).dtype == torch.bfloat16
    assert compiled(X).dtype == torch.float32
    assert len(compiled.engines) == 2


def test_numbers_that_are_equal_and_not_the_same() -> None:
    class Divided(nn.Module):
        def forward(self, x: Tensor, by: float) -> Tensor:
            return x / by

    compiled = ridgeline.compile(Divided().eval(), **FAST)
    for by in (0.0, -0.0, 0, 0.0):
        torch.testing.assert_close(compiled(X, by), X / by)
    assert len(compiled.engines) == 3


def saved(module: nn.Module) -> Any:
    memory = io.BytesIO()
    torch.save(module, memory)
    memory.seek(0)
    return torch.load(memory, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, saved])
def test_a_copy_has_a_module_and_engines_of_its_own(copied: Callable[[Any], Any]) -> None:
    compiled = ridgeline.compile(two_layers(), X, **FAST)
    other = copied(compiled)
    assert other.engines == ()
    with torch.no_grad():
        other.module[0].weight.add_(1)
        torch.testing.assert_close(other(X), other.module(X))
        torch.testing.assert_close(compiled(X), compiled.module(X))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_narrow_floats_have_the_module_s_type(dtype: torch.dtype) -> None:
    class Sums(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum()

    x = torch.tensor([100, 50, 7, 0]).to(dtype)
    got = ridgeline.compile(Sums().eval(), level=0, verify="fast")(x)
    assert got.dtype == dtype
    assert torch.equal(got, x.sum())


def test_an_input_whose_sign_is_still_to_be_turned() -> None:
    module = two_layers()
    compiled = ridgeline.compile(module, **FAST)
    for x in (torch._neg_view(X), torch.randn(3, 8, dtype=torch.complex64).conj().imag):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), module(x))


def test_a_name_that_goes_in_and_comes_out() -> None:
    class Steps(nn.Module):
        def forward(self, x: Tensor, state: Tensor) -> dict[str, Tensor]:
            return {"x": x + state, "state": state + 1}

    compiled = ridgeline.compile(Steps().eval(), level=0, verify="fast")
    got = compiled(X, state=X)
    torch.testing.assert_close(got, Steps()(X, X))
    assert {port.name for port in compiled.engines[0].outputs} == {"x_out", "state_out"}


def test_types_that_do_not_fit_are_called_types() -> None:
    class Largest(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.max()

    with pytest.raises(InputError, match=r"(?s)does not run with these inputs.*float64.*same dtype"):
        ridgeline.compile(two_layers(), **FAST)(X.double())
    with pytest.raises(InputError, match=r"(?s)element types do not fit.*int16"):
        ridgeline.compile(Largest().eval(), **FAST)(torch.ones(4, dtype=torch.int16))


def test_methods_that_go_past_the_engines_say_so() -> None:
    class Model(nn.Linear):
        def generate(self, x: Tensor) -> Tensor:
            return self(x)

    compiled = ridgeline.compile(Model(8, 8).eval(), **FAST)
    with pytest.warns(RuntimeWarning, match="not its engines"):
        compiled.generate(X)
