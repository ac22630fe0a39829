"""Control flow on a GPU: bodies captured by shape and replayed for each trip, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from loop_models import TEXTS, control_model, first_runs
from moving_models import close, decoder, detector, expected, rand
from test_suppression import draw

import ridgeline
from ridgeline.kernels.floor.suppression import pick_at_once, pick_in_turn
from ridgeline.runtime.cuda_instance import CudaInstance


def build(model: Any, **options: Any) -> ridgeline.Engine:
    return ridgeline.build(model, target="cuda", level=1, verify="fast", **options)


def on_device(feeds: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array).cuda() for name, array in feeds.items()}


def bodies_of(engine: ridgeline.Engine) -> list[CudaInstance]:
    """The instances of all bodies that have run in this thread."""
    executables = [engine.variants[0].executable]
    found: list[CudaInstance] = []
    for executable in executables:
        inner = [body for _, body in executable.islands.found()]
        executables += inner  # type: ignore[arg-type]
        for body in inner:
            found += list(body._instances)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_control_flow(name: str) -> None:
    engine = build(control_model(name), profiles={"T": "1..3..8"})
    first = first_runs(engine, name)
    for _ in range(2):
        for feeds, before in first:
            again = engine.run(feeds)
            there = engine.run(on_device(feeds))
            for each, array in before.items():
                assert np.array_equal(again[each], array), each
                assert np.array_equal(there[each].cpu().numpy(), array), each
    assert not any("op by op" in note for note in engine.notes)


def test_a_body_is_one_graph() -> None:
    engine = build(control_model("a trip count"), profiles={"T": "3"})
    engine.run({"x": rand(3, 4), "n": np.array(4)})
    assert any(instance.graph is not None for instance in bodies_of(engine))
    (body,) = [part for part in engine.report.run_parts if part.graph]
    assert body.is_captured, body.why


def test_what_follows_a_loop_is_captured_again() -> None:
    engine = build(control_model("what follows a loop"), profiles={"T": "3"})
    engine.run({"x": rand(3, 4), "n": np.array(2)})
    own = [part for part in engine.report.run_parts if not part.graph]
    assert [part.is_captured for part in own] == [True, False, True]


@pytest.mark.parametrize("growing", [False, True])
def test_a_greedy_decoder(growing: bool) -> None:
    model = decoder(growing=growing)
    engine = build(model, profiles={"S": "1..6..20"})
    assert engine.report.verified
    for length, steps in ((6, 5), (6, 12), (3, 7), (6, 0), (11, 1), (6, 12), (6, 70)):
        feeds = {"memory": rand(length, 16, seed=9), "start": np.array(3), "steps": np.array(steps)}
        want = expected(model, feeds)
        close(engine.run(feeds), want)
        close(engine.run(feeds), want)


def test_a_detector() -> None:
    engine = build(detector(), profiles={"image": "1x3x32..64..96x32..64..96"})
    for sizes in ((64, 64), (32, 96), (64, 64)):
        for seed in range(3):
            feeds = {"image": rand(1, 3, *sizes, seed=seed)}
            want = expected(detector(), feeds)
            made = engine.run(feeds)
            assert made["classes_out"].shape == want["classes_out"].shape
            np.testing.assert_array_equal(made["classes_out"], want["classes_out"])
            np.testing.assert_allclose(made["boxes_out"], want["boxes_out"], rtol=1e-3, atol=1e-3)
    parts = engine.report.run_parts
    assert parts[0].is_captured
    assert any("NonMaxSuppression" not in part.why and not part.is_captured for part in parts)


def test_contexts_of_one_thread_take_turns_in_a_body() -> None:
    """Both run the same instance of the body, each on a stream of its own, and nobody waits between."""
    engine = build(control_model("a trip count"), profiles={"T": "3"})
    feeds = [on_device({"x": rand(3, 4, seed=i), "n": np.array(20 + i)}) for i in range(2)]
    contexts, streams = [engine.context() for _ in feeds], [torch.cuda.Stream() for _ in feeds]
    wants = [{n: t.clone() for n, t in c.run(f).items()} for c, f in zip(contexts, feeds, strict=True)]
    torch.cuda.synchronize()
    made: list[list[dict[str, torch.Tensor]]] = [[], []]
    for _ in range(20):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                made[i].append(contexts[i].run(feeds[i]))
    torch.cuda.synchronize()
    for results, want in zip(made, wants, strict=True):
        assert all(torch.equal(result[name], want[name]) for result in results for name in want)


def test_a_for_loop_waits_for_nothing() -> None:
    """Its count comes from the host and its condition is handed through: a run only queues work."""
    model = control_model("a trip count")
    engine = build(model, profiles={"T": "3"})
    feeds = on_device({"x": rand(3, 4), "n": np.array(50)})
    context = engine.context()
    context.run(feeds)
    steps = context.instance(feeds).steps
    loop = next(step for step in steps if step.launch is not None and step.launch.why_eager)
    assert loop.launch is not None
    known = {"x": feeds["x"], "n": torch.tensor(50)}
    given = [known.get(n, engine.fused.placed_weights.get(n)) for n in loop.site.body.inputs]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.inference_mode():
            loop.launch.call(given, ())
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_memory_does_not_grow_with_runs() -> None:
    model = decoder(growing=True)
    engine = build(model, profiles={"S": "6"})
    feeds = on_device({"memory": rand(6, 16, seed=9), "start": np.array(3), "steps": np.array(12)})
    for _ in range(4):
        engine.run(feeds)
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    for _ in range(30):
        engine.run(feeds)
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] == free
    assert engine.memory()["total"] > 0


def test_an_engine_comes_back_with_the_kernels_of_its_bodies(tmp_path: Any) -> None:
    model = control_model("what follows a loop")
    engine = build(model, profiles={"T": "3"})
    feeds = {"x": rand(3, 4), "n": np.array(3)}
    want = engine.run(feeds)
    again = ridgeline.load(engine.save(tmp_path / "loop.ridge"))
    made = again.run(feeds)
    assert all(np.array_equal(made[name], want[name]) for name in want)
    wanted = {
        kernel for body in engine.plan.bodies.values() for step in body.steps for kernel in step.kernels
    }
    assert wanted <= again.fused.kernels.compiled.keys()


@pytest.mark.parametrize(("images", "classes", "boxes"), [(1, 80, 1000), (2, 3, 60), (1, 1, 9000), (1, 3, 0)])
def test_suppression_picks_what_the_host_picks(images: int, classes: int, boxes: int) -> None:
    drawn, scores = draw(images, classes, boxes)
    scores = (scores * 64).round() / 64  # with ties
    for overlap, least in ((0.5, 0.9), (0.0, 0.2), (0.4, 2.0)):
        want = pick_in_turn(drawn, scores, most=50, overlap=overlap, least=least, is_centre=False)
        made = pick_at_once(
            drawn.cuda(), scores.cuda(), most=50, overlap=overlap, least=least, is_centre=False
        )
        assert torch.equal(made.cpu(), want)
