"""Long rows on the GPU: programs that wait for one another, again and again, in graphs and side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import on_gpu
import pytest
import torch
from torch import Tensor
from triton_cases import evaluate

from offers import offered, stages_of
from ridgeline.base.gpu_timing import capture
from ridgeline.base.spec import Body, Config, Op, Site, Target, TensorSpec
from ridgeline.kernels.triton.compiler import compile_kernels
from ridgeline.kernels.triton.driver import Launcher
from ridgeline.kernels.triton.held_rows import FIRST_WORD
from ridgeline.runtime.device_memory import reach
from ridgeline.tactics.cuda.triton_codegen import TritonRows, bind_stages
from ridgeline.tactics.offer import precompile

HALF = torch.float16
TACTIC = TritonRows()
OPS = {
    "Softmax": Op("Softmax", ("x",), ("y",), {"axis": -1}),
    "LayerNormalization": Op("LayerNormalization", ("x", "g", "b"), ("y",), {"axis": -1}),
    "RMSNormalization": Op("RMSNormalization", ("x", "g"), ("y",), {"axis": -1}),
}
COLUMNS = (32768, 65536, 65537, 131072, 262144)
ROWS = (1, 7, 300)
RUNS = 50
Call = Callable[[], object]


def make_site(name: str, rows: int, columns: int, dtype: str = "float16") -> Site:
    op = OPS[name]
    specs = {n: TensorSpec(dtype, (columns,)) for n in op.inputs[1:]}
    specs |= {n: TensorSpec(dtype, (rows, columns)) for n in ("x", "y")}
    target = Target("cuda", on_gpu.arch())
    return Site(Body(op.inputs, ("y",), (op,)), specs, frozenset(op.inputs[1:]), {}, target)


def held_configs(site: Site) -> list[Config]:
    """All that are offered, and a row in two pieces where rows are whole."""
    return [config for config in offered(TACTIC, site).configs if config["held"]]


def make_inputs(site: Site, seed: int = 0) -> dict[str, Tensor]:
    """Every row at a level and a spread of its own, so that no two rows look alike."""
    made = {}
    dtype = getattr(torch, site.specs["x"].dtype)
    generator = torch.Generator("cuda").manual_seed(seed)
    for name in site.body.inputs:
        drawn = torch.randn(site.specs[name].shape, device="cuda", generator=generator)
        if name == "x":
            rows = torch.arange(len(drawn), device="cuda")[:, None]
            drawn = drawn * (1 + rows % 3) + rows % 5
        made[name] = drawn.to(dtype)
    return made


def reference(site: Site, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """What torch makes of it at the type, and in double."""
    plain = evaluate(site.body, inputs)["y"]
    exact = evaluate(site.body, {name: tensor.double() for name, tensor in inputs.items()})["y"]
    return plain, exact


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """All kernels of the module at once: one by one takes minutes."""
    sites = [make_site(name, rows, columns) for name in OPS for rows in ROWS for columns in COLUMNS]
    sites += [make_site("Softmax", 64, 65536, "float32")]
    precompile([(TACTIC, s, offered(TACTIC, s), config) for s in sites for config in held_configs(s)])


def words_of(call: Call) -> Tensor:
    (words,) = (item for item in reach([call]) if isinstance(item, Tensor) and item.dtype == torch.int32)
    return words


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", OPS)
def test_again_and_again(name: str, rows: int, columns: int) -> None:
    """Over NaN each time, the same bits from every run, called and replayed; guards stay whole."""
    site = make_site(name, rows, columns)
    inputs = make_inputs(site)
    plain, exact = reference(site, inputs)
    configs = held_configs(site)
    assert configs
    for config in configs:
        launch = on_gpu.bind_generated(TACTIC, site, config)
        out = on_gpu.Guarded(site.outputs[0])
        call = launch.frozen(list(inputs.values()), [out.tensor])
        call()
        on_gpu.near(out.tensor, plain, exact)
        want = out.bits()
        graph = capture(call)
        for run in range(RUNS):
            out.poison()
            graph.replay() if run % 2 else call()
            assert torch.equal(out.bits(), want), f"run {run} of {dict(config)} differs"
        out.require_whole()


def test_float32() -> None:
    site = make_site("Softmax", 64, 65536, "float32")
    inputs = make_inputs(site)
    for config in held_configs(site)[:2]:
        out = on_gpu.Guarded(site.outputs[0])
        on_gpu.bind_generated(TACTIC, site, config).frozen(list(inputs.values()), [out.tensor])()
        on_gpu.near(out.tensor, *reference(site, inputs))


@pytest.mark.parametrize("name", OPS)
def test_two_contexts_side_by_side(name: str) -> None:
    """One launch, frozen twice: each call has words of its own, and both run at once on their streams."""
    site = make_site(name, 300, 65536)
    for config in held_configs(site):
        launch = on_gpu.bind_generated(TACTIC, site, config)
        given = [make_inputs(site, seed) for seed in range(2)]
        outputs = [on_gpu.Guarded(site.outputs[0]) for _ in given]
        calls = [
            launch.frozen(list(inputs.values()), [out.tensor])
            for inputs, out in zip(given, outputs, strict=True)
        ]
        want = []
        for call, out in zip(calls, outputs, strict=True):
            call()
            want.append(out.bits())
        graphs = [capture(call, 5) for call in calls]
        streams = [torch.cuda.Stream() for _ in calls]
        for is_replayed in (False, True):
            torch.cuda.synchronize()
            for out in outputs:
                out.poison()
            torch.cuda.synchronize()
            for _ in range(RUNS):
                for stream, call, graph in zip(streams, calls, graphs, strict=True):
                    with torch.cuda.stream(stream):
                        graph.replay() if is_replayed else call()
            torch.cuda.synchronize()
            for out, bits in zip(outputs, want, strict=True):
                assert torch.equal(out.bits(), bits)
                out.require_whole()


def test_words_are_of_the_call() -> None:
    """As many as stated, cleared in turns, and no two calls share them."""
    site = make_site("Softmax", 300, 65536)
    config = held_configs(site)[0]
    launch = offered(TACTIC, site).bind(config, {})
    inputs = list(make_inputs(site).values())
    out = torch.empty_like(inputs[0])
    first, second = (launch.frozen(inputs, [out]) for _ in range(2))
    words = words_of(first)
    assert words.nbytes == launch.scratch_bytes == offered(TACTIC, site).footprint(config).scratch_bytes
    assert words.data_ptr() != words_of(second).data_ptr()
    programs = 300 * int(config["splits"])
    for run in range(4):
        first()
        told, cleared = words[FIRST_WORD:].view(2, -1)[[0, 1] if run % 2 == 0 else [1, 0]]
        assert told.all()
        assert not cleared.any()
        assert int(words[0]) == (programs if run % 2 == 0 else 0)
    assert not words_of(second).any()


@pytest.mark.parametrize("name", ["Softmax", "RMSNormalization"])
def test_a_chain_that_starts_early(name: str) -> None:
    """Back and forth between two tensors in one graph: early starts give the bits of one after the other."""
    if int(on_gpu.arch().removeprefix("sm_")) < 90:
        pytest.skip("dependent launch begins with sm_90")
    site = make_site(name, 300, 65536)
    config = next(config for config in held_configs(site) if int(config["splits"]) > 1)
    inputs = make_inputs(site)

    def run(*, is_early: bool) -> list[Tensor]:
        stages = stages_of(TACTIC, site, config)
        (made,) = compile_kernels([stage.kernel for stage in stages.launches], on_gpu.arch())
        compiled = replace(on_gpu.required(made), pdl=is_early)
        freeze = bind_stages(stages, [Launcher(compiled)])
        x, y = inputs["x"].clone(), torch.full_like(inputs["x"], torch.nan)
        rest = [inputs[n] for n in site.body.inputs[1:]]
        there, back = freeze([x, *rest], [y]), freeze([y, *rest], [x])

        def both() -> None:
            there()
            back()

        graph = capture(both, 5)
        x.copy_(inputs["x"])
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        return [x, y]

    for early, late in zip(run(is_early=True), run(is_early=False), strict=True):
        assert early.isfinite().all()
        assert torch.equal(early, late)
