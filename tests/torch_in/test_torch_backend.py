"""`torch.compile(backend="ridgeline")`: pieces become engines; what cannot, runs in PyTorch and is said."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_modules import QUICK, Decoder, Encoder, Vision, assert_agrees, ids, seeded

import ridgeline.torch_in.register
from ridgeline.torch_in.backend import ridgeline_backend


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def compiled(module: nn.Module, **more: Any) -> tuple[Any, list[ridgeline.Engine]]:
    engines: list[ridgeline.Engine] = []
    options = {**QUICK, "on_engine": engines.append}
    return torch.compile(module, backend="ridgeline", options=options, **more), engines


def test_torch_finds_it_by_name() -> None:
    assert "ridgeline" in torch._dynamo.list_backends()
    (entry,) = entry_points(group="torch_dynamo_backends", name="ridgeline")
    assert entry.load() is ridgeline_backend


def test_a_whole_module_is_one_engine() -> None:
    module = seeded(Encoder())
    run, engines = compiled(module, fullgraph=True)
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[0, 4:] = 0
    assert_agrees(run(ids(2, 7), mask=mask), module, (ids(2, 7), mask))
    assert len(engines) == 1
    assert [port.name for port in engines[0].inputs] == ["ids", "mask"], "weights are inside"


def test_a_graph_break_makes_two_engines() -> None:
    module = seeded(Vision(is_broken=True))
    run, engines = compiled(module)
    image = torch.randn(2, 3, 16, 16)
    assert_agrees(run(image), module, (image,))
    assert len(engines) == 2
    assert all(engine.report.verified for engine in engines)


def test_a_branch_on_data_makes_pieces() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.up(x)
            return self.down(y) if y.sum() > 0 else y - self.down(x)

    module = seeded(Branch())
    run, engines = compiled(module)
    x = torch.randn(2, 4)
    for given in (x, -x):
        assert_agrees(run(given), module, (given,))
    assert len(engines) == 3


def test_sizes_and_numbers_that_change() -> None:
    module = seeded(Decoder(depth=1))
    run, engines = compiled(module, dynamic=True)
    for words in (ids(2, 6), ids(3, 9)):
        assert_agrees(run(words), module, (words,))
    assert len(engines) == 1, "sizes are free"
    assert engines[0].inputs[0].dims == ("ids.0", "ids.1")
    assert_agrees(run(ids(2, 6), scale=0.5), module, (ids(2, 6), 0.5))


def test_floats_of_modules_are_kept_where_dynamo_takes_them_to_change() -> None:
    module = seeded(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    run, engines = compiled(module, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        assert_agrees(run(x), module, (x,))
    assert len(engines) == 1


def test_two_modules_of_one_class_have_engines_of_their_own() -> None:
    first, second = seeded(nn.Linear(4, 4)), seeded(nn.Linear(4, 4))
    second.weight.mul_(3)
    x = torch.randn(2, 4)
    for module in (first, second):
        run, _ = compiled(module)
        assert_agrees(run(x), module, (x,))
    first.weight.add_(1)
    assert_agrees(run(x), second, (x,))
    run, _ = compiled(first)
    assert_agrees(run(x), first, (x,))
    first.weight.add_(1)
    assert_agrees(run(x), first, (x,))


def test_gradients_and_changes_in_place_stay_in_pytorch() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return x * self.calls

    x = torch.ones(2)
    run, engines = compiled(Counts().eval())
    with pytest.warns(RuntimeWarning, match=r"(?s)runs in PyTorch.*in place"):
        assert torch.equal(run(x), x)
    assert torch.equal(run(x), x * 2)
    module = seeded(nn.Linear(2, 2)).requires_grad_()
    run, more = compiled(module)
    with torch.enable_grad(), pytest.warns(RuntimeWarning, match=r"torch\.no_grad"):
        assert run(x).requires_grad
    assert not run(x).requires_grad
    assert engines == []
    assert len(more) == 1


def test_code_after_a_break_finds_the_strides_it_expects() -> None:
    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            parts = (x.t() * 2, (x * 3)[:, 1:], x.sum(0).expand(3, -1))
            torch._dynamo.graph_break()
            return torch.cat([p.reshape(-1) + sum(p.stride()) + p.is_contiguous() for p in parts])

    for dynamic in (False, True):
        torch._dynamo.reset()
        run, engines = compiled(Asks().eval(), dynamic=dynamic)
        for rows in (3, 5):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(run(x), Asks()(x))
        assert engines


def test_views_of_arguments_are_views() -> None:
    class Views(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return x.view(-1), x.t(), x[1:, ::2], x * 1

    run, engines = compiled(Views().eval())
    a = torch.randn(3, 4)
    b = a.clone()
    got, want = run(a), Views()(b)
    a.add_(1)
    b.add_(1)
    assert len(engines) == 1
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


def test_memory_read_by_strides_stays_in_pytorch() -> None:
    class Reads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.t() * 2
            torch._dynamo.graph_break()
            return torch.as_strided(y, (4,), (1,)) * 1

    run, _ = compiled(Reads().eval())
    x = torch.randn(3, 8)
    with pytest.warns(RuntimeWarning, match="as_strided"):
        assert torch.equal(run(x), Reads()(x))


def test_a_mistyped_option_or_a_mode_is_an_error() -> None:
    module = seeded(nn.Linear(2, 2))
    for wrong in ({"options": {"levle": 0}}, {"mode": "max-autotune"}):
        with pytest.raises(Exception, match=r"(?s)levle|no mode"):
            torch.compile(module, backend="ridgeline", **wrong)(torch.ones(2))
        torch._dynamo.reset()
