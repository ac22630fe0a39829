"""Tensors in and out on the CPU: every kind is read right, and results are the caller's own."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from models import model_of, quick
from torch import Tensor, nn

import ridgeline
from ridgeline.errors import InputError

COLUMNS = 4096
SMALL, LARGE = 2, 8  # rows: arrays of the second kind are lent to the steps
GRAPH = """g (float[N,4096] x, float[N,4096] z) => (float[N,4096] y, float[N,4096] w) {
    y = Add(x, z) w = Tanh(y) }"""


class Wrapped(Tensor):
    """A subclass that adds nothing."""


def negated(tensor: Tensor) -> Tensor:
    """The same values behind PyTorch's mark that says to negate them."""
    made = torch.complex(tensor, -tensor).conj().imag
    assert made.is_neg()
    return made


def late(tensor: Tensor) -> Tensor:
    memory = torch.empty(tensor.numel() + 1)
    memory[1:] = tensor.flatten()
    return memory[1:].view(tensor.shape)


def inference(tensor: Tensor) -> Tensor:
    with torch.inference_mode():
        return tensor.clone()


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": Tensor.clone,
    "every second row": lambda t: t.repeat_interleave(2, 0)[::2],
    "transposed": lambda t: t.t().contiguous().t(),
    "one row for all": lambda t: t[:1].expand_as(t),
    "one element late": late,
    "with gradients": lambda t: t.clone().requires_grad_(),
    "of a computation with gradients": lambda t: t.clone().requires_grad_() * 1,
    "parameter": nn.Parameter,
    "frozen parameter": lambda t: nn.Parameter(t.clone(), requires_grad=False),
    "subclass": lambda t: t.clone().as_subclass(Wrapped),
    "to be negated": negated,
    "known to be zero": lambda t: torch._efficientzerotensor(t.shape),
    "inference": inference,
}


@pytest.fixture(scope="module", params=["cpp", "ort"])
def engine(request: pytest.FixtureRequest) -> ridgeline.Engine:
    return quick(model_of(GRAPH), without=("ort",) if request.param == "cpp" else ("cpp",))


def draw(rows: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(rows, COLUMNS, generator=generator) for name in "xz"}


def require_right(made: dict[str, Tensor], x: Tensor, z: Tensor) -> None:
    assert list(made) == ["y", "w"]
    torch.testing.assert_close(made["y"], x + z, rtol=0, atol=0)
    torch.testing.assert_close(made["w"], torch.tanh(x + z))


@pytest.mark.parametrize("rows", [SMALL, LARGE])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tensor(engine: ridgeline.Engine, kind: str, rows: int) -> None:
    context = engine.context()
    for seed in (1, 2):  # the second call finds what the first prepared
        plain = draw(rows, seed)
        given = {"x": KINDS[kind](plain["x"]), "z": plain["z"]}
        want = given["x"].detach().clone().as_subclass(Tensor).resolve_neg()
        made = context.run(given)
        require_right(made, want, plain["z"])
        torch.testing.assert_close(given["x"].detach().as_subclass(Tensor), want)
        for tensor in made.values():
            assert type(tensor) is Tensor
            assert not tensor.requires_grad
            assert not tensor.is_inference()
            tensor.fill_(7)


@pytest.mark.parametrize("rows", [SMALL, LARGE])
def test_held_results_never_change_and_share_nothing(engine: ridgeline.Engine, rows: int) -> None:
    context, all_feeds = engine.context(), [draw(rows, seed) for seed in range(6)]
    results = [context.run(feeds) for feeds in all_feeds]
    for made, feeds in zip(results, all_feeds, strict=True):
        require_right(made, feeds["x"], feeds["z"])
    tensors = [tensor for mapping in (*results, *all_feeds) for tensor in mapping.values()]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)


def test_a_view_of_a_result_keeps_its_memory(engine: ridgeline.Engine) -> None:
    context, all_feeds = engine.context(), [draw(LARGE, seed) for seed in range(6)]
    rows = [context.run(feeds)["y"][3] for feeds in all_feeds]
    for row, feeds in zip(rows, all_feeds, strict=True):
        torch.testing.assert_close(row, (feeds["x"] + feeds["z"])[3], rtol=0, atol=0)


def test_large_tensors_are_read_and_made_where_they_lie(engine: ridgeline.Engine) -> None:
    context, feeds = engine.context(), draw(LARGE)
    instance = context.instance(feeds)
    own = [*instance.inputs.values(), *(instance.tensors[name] for name in "yw")]
    with torch.inference_mode():
        for tensor in own:
            tensor.fill_(torch.nan)
    require_right(context.run(feeds), feeds["x"], feeds["z"])
    assert all(tensor.isnan().all() for tensor in own)
    assert len({context.run(feeds)["y"].data_ptr() for _ in range(10)}) == 1


def test_inputs_are_let_go(engine: ridgeline.Engine) -> None:
    context, feeds = engine.context(), draw(LARGE)
    context.run(feeds)
    tensor = weakref.ref(feeds["x"])
    del feeds
    gc.collect()
    assert tensor() is None


def test_results_of_a_call_inside_inference_mode(engine: ridgeline.Engine) -> None:
    feeds = draw(SMALL)
    with torch.inference_mode():
        require_right(engine.run(feeds), feeds["x"], feeds["z"])
    require_right(engine.run(feeds), feeds["x"], feeds["z"])


def test_mistakes_are_said_as_in_a_first_call(engine: ridgeline.Engine) -> None:
    context, feeds = engine.context(), draw(SMALL)
    context.run(feeds)
    with pytest.raises(InputError, match="does not fit this plan"):
        context.run({**feeds, "x": feeds["x"].double()})
    with pytest.raises(InputError, match="there is no input 'k'"):
        context.run({"k": feeds["x"], "z": feeds["z"]})
    with pytest.raises(InputError, match="is missing"):
        context.run({"x": feeds["x"]})
    with pytest.raises(InputError, match="does not fit this plan"):
        context.run({**feeds, "x": feeds["x"][:, 1:]})
    with pytest.raises(InputError, match="to_dense"):
        context.run({**feeds, "x": feeds["x"].to_sparse()})
    with pytest.raises(InputError, match="a meta tensor, which has no values"):
        context.run({**feeds, "x": feeds["x"].to("meta")})
    require_right(context.run(feeds), feeds["x"], feeds["z"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8])
def test_other_types(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    model = model_of(f"g ({name}[N,40000] x) => ({name}[N,40000] y) {{ y = Identity(x) }}")
    context = quick(model).context()
    for rows in (0, 1, 4):
        x = torch.randn(rows, 40000).mul(9).to(dtype)
        for _ in range(2):
            assert torch.equal(context.run({"x": x})["y"], x)
