"""`ridgeline.compile`: a module that runs engines takes and returns what the module does."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_modules import QUICK, Cache, Decoder, Encoder, Vision, assert_agrees, ids, seeded

import ridgeline
from ridgeline.errors import InputError, OptionError, UnsupportedError
from ridgeline.frontend.from_torch import export_module


@pytest.fixture(scope="module")
def encoder() -> Any:
    module = seeded(Encoder())
    dims = {0: "batch", 1: "length"}
    return module, ridgeline.compile(module, dynamic_shapes={"ids": dims}, **QUICK)


def test_positional_named_and_default_arguments_are_one_call(encoder: Any) -> None:
    module, compiled = encoder
    assert compiled.engines == ()
    words = ids(2, 7)
    for args, kwargs in (((words,), {}), ((), {"ids": words}), ((words, None), {"pooled": True})):
        assert_agrees(compiled(*args, **kwargs), module, args, kwargs)
    assert len(compiled.engines) == 1
    assert_agrees(compiled(ids(1, 12)), module, (ids(1, 12),))
    assert len(compiled.engines) == 1, "named dims may take any size"


def test_another_value_of_a_flag_is_another_engine(encoder: Any) -> None:
    module, compiled = encoder
    before = len(compiled.engines)
    assert_agrees(compiled(ids(2, 7), pooled=False), module, (ids(2, 7),), {"pooled": False})
    assert len(compiled.engines) == before + 1


def test_it_looks_like_the_module(encoder: Any) -> None:
    module, compiled = encoder
    assert inspect.signature(compiled.forward) == inspect.signature(module.forward)
    assert compiled.state_dict().keys() == module.state_dict().keys()
    assert compiled.pool is module.pool
    assert isinstance(compiled, nn.Module)
    with pytest.raises(AttributeError, match="nothing"):
        compiled.nothing  # noqa: B018 - the lookup is the test


def test_nested_results_objects_and_inputs_come_back() -> None:
    module = seeded(Decoder())
    words = ids(2, 6)
    compiled = ridgeline.compile(
        module, {"ids": words}, dynamic_shapes={"ids": {0: "batch", 1: "n"}}, **QUICK
    )
    assert len(compiled.engines) == 1, "example inputs build at once"
    got = compiled(words)
    assert got["ids"] is words
    assert isinstance(got["cache"], Cache)
    assert_agrees(got, module, (words,))
    assert compiled(ids(3, 4))["n"] == 4
    assert len(compiled.engines) == 1


def test_one_tensor_in_one_tensor_out() -> None:
    module = seeded(Vision())
    compiled = ridgeline.compile(module, dynamic_shapes=({0: "batch"},), **QUICK)
    for batch in (1, 3):
        image = torch.randn(batch, 3, 16, 16)
        assert_agrees(compiled(image), module, (image,))
    assert compiled.engines[0].inputs[0].dims == ("batch", 3, 16, 16)


def test_a_dim_that_changed_is_taken_to_change() -> None:
    module = seeded(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    compiled = ridgeline.compile(module, **QUICK)
    for rows in (2, 3, 1, 5):
        x = torch.randn(rows, 4)
        assert_agrees(compiled(x), module, (x,))
    assert len(compiled.engines) == 2


def test_new_weights_make_new_engines() -> None:
    module = seeded(nn.Linear(4, 3))
    x = torch.randn(2, 4)
    compiled = ridgeline.compile(module, x, **QUICK)
    first = compiled.engines[0]
    with torch.no_grad():
        module.weight.mul_(2)
    assert_agrees(compiled(x), module, (x,))
    assert compiled.engines[0] is not first
    module.bias = nn.Parameter(torch.ones(3))
    assert_agrees(compiled(x), module, (x,))


def test_results_are_the_caller_s_own() -> None:
    module = seeded(nn.Linear(256, 256))
    x = torch.randn(128, 256)
    compiled = ridgeline.compile(module, x, **QUICK)
    one = compiled(x)
    kept = one.clone()
    two = compiled(x * 2)
    assert torch.equal(one, kept)
    assert one.data_ptr() != two.data_ptr()
    one.add_(1)
    assert_agrees(compiled(x.T.contiguous().T), module, (x,))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.int32])
def test_types_numpy_lacks_and_integers(dtype: torch.dtype) -> None:
    class Doubles(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ~x if x.dtype == torch.bool else x * 2

    x = torch.tensor([[1, 0, 1], [0, 1, 2]]).to(dtype)
    got = ridgeline.compile(Doubles().eval(), **QUICK)(x)
    assert got.dtype == dtype
    assert torch.equal(got, Doubles()(x))


def test_what_is_refused() -> None:
    module = seeded(nn.Linear(4, 3))
    compiled = ridgeline.compile(module, **QUICK)
    x = torch.randn(2, 4)
    with pytest.raises(InputError, match="no gradients"):
        compiled(x.clone().requires_grad_())
    with pytest.raises(InputError, match="does not take these arguments"):
        compiled(x, x)
    with pytest.raises(InputError, match="not a module"):
        ridgeline.compile(len)
    with pytest.raises(OptionError, match="levle"):
        ridgeline.compile(module, levle=0)
    compiled.train()
    with pytest.raises(UnsupportedError, match="training mode"):
        compiled(x)
    assert compiled.engines == ()


def test_weights_that_want_gradients_are_worth_one_warning() -> None:
    module = seeded(nn.Linear(4, 3)).requires_grad_()
    x = torch.randn(2, 4)
    compiled = ridgeline.compile(module, x, **QUICK)
    with torch.no_grad():
        compiled(x)
    with pytest.warns(RuntimeWarning, match=r"(?s)no gradients.*torch\.no_grad"):
        assert not compiled(x).requires_grad
    compiled(x)


def test_a_newer_pytorch_is_worth_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    module = seeded(nn.Linear(4, 3))
    monkeypatch.setattr(torch, "__version__", "2.14.1+cpu")
    with pytest.warns(RuntimeWarning, match=r"PyTorch 2\.14\.1.*2\.11 to 2\.13"):
        export_module(module, (torch.randn(2, 4),), {})
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    export_module(module, (torch.randn(2, 4),), {})


def test_complex_tensors_are_refused_by_name() -> None:
    class Imaginary(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.imag

    with pytest.raises(UnsupportedError, match="complex64"):
        ridgeline.compile(Imaginary().eval(), **QUICK)(torch.randn(3, dtype=torch.complex64))
