"""Float32 products of PyTorch's libraries: no setting of the process makes TF32 of them.

The calls run on the processor here; what counts is the setting that each of them meets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Any

import pytest
import torch
from library_cases import make_site, node
from torch import Tensor
from torch.overrides import TorchFunctionMode

from offers import offered
from ridgeline.base.library_math import library_math
from ridgeline.base.spec import TF32, Op, Site, Target
from ridgeline.frontend.from_torch import Sample
from ridgeline.tactics.aten import Aten, compile_body
from ridgeline.tactics.cuda.cublas import Cublas, read_product
from ridgeline.tactics.cuda.cudnn_conv import _bind_run
from ridgeline.tactics.cuda.sdpa import _bind_backend
from ridgeline.tactics.fallback import Surroundings
from ridgeline.tactics.read.attention import read_attention
from ridgeline.tactics.read.conv import read_conv
from ridgeline.tactics.read.remainder import Taken

GPU = Target("cuda", "sm_90")
HOLDERS = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
State = tuple[str, ...]


def state() -> State:
    return tuple(holder.fp32_precision for holder in HOLDERS)


def set_all(kind: str) -> None:
    for holder in HOLDERS:
        holder.fp32_precision = kind


def by_older_names() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


SETTINGS: dict[str, Callable[[], Any]] = {
    "as PyTorch starts": lambda: None,
    "allow_tf32": by_older_names,
    "fp32_precision": lambda: set_all("tf32"),
    "matmul precision": lambda: torch.set_float32_matmul_precision("high"),
    "all of it exact": lambda: set_all("ieee"),
}


@pytest.fixture(params=SETTINGS)
def process_setting(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a process may have set before it builds or runs an engine."""
    before, older = state(), torch.get_float32_matmul_precision()
    SETTINGS[request.param]()
    yield
    torch.backends.cuda.matmul.fp32_precision = "none"  # or the older settings cannot be changed
    torch.set_float32_matmul_precision(older)
    for holder, kind in zip(HOLDERS, before, strict=True):
        holder.fp32_precision = kind


class Seen(TorchFunctionMode):
    """The settings that products met."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, State] = {}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in ("mm", "addmm", "matmul", "conv2d", "scaled_dot_product_attention"):
            self.states[name] = state()
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("rounds", [False, True])
def test_settings_hold_within_and_are_put_back(process_setting: None, rounds: bool) -> None:
    before = state(), torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark
    with library_math(rounds=rounds, benchmark=True):
        matmul, conv, rnn = (kind == "tf32" for kind in state())
        assert (matmul, conv, rnn) == (rounds, rounds, False)
        assert torch.backends.cudnn.benchmark
    assert (state(), torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark) == before


def test_threads_do_not_compute_with_each_others_settings() -> None:
    before, wrong = state(), []

    def use(rounds: bool) -> None:
        for _ in range(200):
            with library_math(rounds=rounds):
                wrong.extend(kind for kind in state()[:2] if (kind == TF32) != rounds)

    threads = [Thread(target=use, args=(rounds,)) for rounds in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert state() == before


def test_settings_are_put_back_after_an_error() -> None:
    before = state()
    with pytest.raises(ZeroDivisionError), library_math(rounds=True):
        _ = 1 / 0
    assert state() == before


def product(op_type: str, inputs: str, math: str) -> list[Op]:
    return [replace(node(op_type, inputs, "y"), math=math)]


def linear(math: str) -> tuple[Site, dict[str, Tensor]]:
    return make_site({"x": (4, 8), "w": (8, 6)}, product("MatMul", "x w", math), weights="w", target=GPU)


def image(math: str) -> tuple[Site, dict[str, Tensor]]:
    return make_site(
        {"x": (1, 4, 5, 5), "w": (6, 4, 3, 3)}, product("Conv", "x w", math), weights="w",
        channels_last="x y", target=GPU,
    )  # fmt: skip


def heads(math: str) -> tuple[Site, dict[str, Tensor]]:
    shapes = dict.fromkeys("qkv", (1, 2, 8, 16))
    return make_site(shapes, product("Attention", "q k v", math), target=GPU)


Call = Callable[[], object]


def cublas(math: str) -> Call:
    site, tensors = linear(math)
    product = read_product(site)
    fill = Cublas()._bind_fill(site, product, Taken(product.anchor.outputs[0]), tensors["w"], None, {})
    return partial(fill, [tensors["x"], tensors["w"]], [torch.empty(4, 6)])


def cudnn(math: str) -> Call:
    site, tensors = image(math)
    conv = read_conv(site)
    run = _bind_run(site, conv, Taken(conv.anchor.outputs[0]), "plain", tensors["w"], None)
    return partial(run, [tensors["x"], tensors["w"]])


def sdpa(math: str) -> Call:
    site, tensors = heads(math)
    attend = _bind_backend(read_attention(site), "math", is_causal=False)
    return partial(attend, tensors["q"], tensors["k"], tensors["v"], None)


def floor(math: str) -> Call:
    site, tensors = image(math)
    run, _ = compile_body(site.body, Surroundings.of(site, {"": 23}))
    return partial(run, list(tensors.values()))


def floor_in_place(math: str) -> Call:
    site, tensors = linear(math)
    launch = offered(Aten({"": 23}), site).bind({}, tensors)
    return partial(launch.run, list(tensors.values()), [torch.empty(4, 6)])


def met_by(call: Call) -> set[State]:
    """The settings that its products meet."""
    seen = Seen()
    with seen:
        call()
    assert seen.states
    return set(seen.states.values())


@pytest.mark.parametrize("bound", [cublas, cudnn, sdpa, floor, floor_in_place])
def test_no_library_call_of_a_float32_region_rounds_to_tf32(
    process_setting: None, bound: Callable[[str], Call]
) -> None:
    assert all("tf32" not in kinds for kinds in met_by(bound("")))


@pytest.mark.parametrize("bound", [cublas, cudnn, sdpa])
def test_a_library_rounds_where_the_op_may(process_setting: None, bound: Callable[[str], Call]) -> None:
    assert all(kinds[:2] == (TF32, TF32) for kinds in met_by(bound(TF32)))


@pytest.mark.parametrize("bound", [floor, floor_in_place])
def test_the_floor_is_exact_in_any_case(process_setting: None, bound: Callable[[str], Call]) -> None:
    assert all("tf32" not in kinds for kinds in met_by(bound(TF32)))


def test_a_module_is_run_without_tf32_when_an_engine_is_compared_with_it(process_setting: None) -> None:
    met = []

    def run(feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        met.append(state())
        return dict(feeds)

    Sample({"x": torch.zeros(2)}, run, 0.0).eager()
    assert met
    assert "tf32" not in met[0]
