"""`ridge predict` and the cost model: what they say of machines and changes, and what they refuse."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.analyze.calibrate import measure_rates, points_of
from ridgeline.analyze.calibration_graph import HALF, SINGLE, Graph
from ridgeline.analyze.calibration_networks import Rows, Transformer
from ridgeline.analyze.predict import Prediction, predict
from ridgeline.analyze.predict_llm import Decoder, predict_llm, read_decoder
from ridgeline.base.ceilings import Point
from ridgeline.base.spec import Target
from ridgeline.base.target_files import known_ceilings, read_target, write_target
from ridgeline.builder import build
from ridgeline.errors import OptionError, TargetError
from ridgeline.options import make_options
from ridgeline.select import prediction
from ridgeline.tactics.cost_features import features_of
from ridgeline.tactics.cost_model import CostModel

Ridge = Callable[..., tuple[int, str, str]]


def model_of(*networks: Rows | Transformer, dtype: str = HALF) -> bytes:
    graph = Graph("g", dtype)
    for network in networks:
        network.add_to(graph)
    return graph.model().SerializeToString()


SMALL = model_of(Transformer(128, 256, 2, 1, 16, layers=1))


def predicted(model: bytes, target: str = "h200", **what_if: float) -> Prediction:
    return predict(model, known_ceilings(target), make_options({}), what_if=what_if)


def test_a_slower_machine_takes_longer() -> None:
    large = model_of(Transformer(1024, 4096, 16, 8, 256, layers=1))
    times = {name: predicted(large, name).total_us for name in ("b200", "h200", "a100", "l4", "t4")}
    assert list(times.values()) == sorted(times.values())
    assert times["t4"] > 5 * times["h200"]


def test_every_step_has_a_time_a_bound_and_a_limiter() -> None:
    found = predicted(SMALL)
    assert found.total_us == pytest.approx(math.fsum(step.us for step in found.steps))
    assert all(step.us > step.bound_us > 0 for step in found.steps)
    assert {step.limiter for step in found.steps} == {"launch"}, "a layer this small does nothing else"
    assert {step.family.split()[0] for step in found.steps} >= {"product", "attention", "rows"}
    assert found.fits


def test_what_if_moves_what_it_should() -> None:
    bound_by_memory = model_of(Rows(((16384, 4096),)))
    base, fast = predicted(bound_by_memory), predicted(bound_by_memory, bandwidth=2.0)
    assert fast.total_us < 0.6 * base.total_us
    assert predicted(bound_by_memory, peak=2.0).total_us == pytest.approx(base.total_us, rel=0.05)
    assert {step.limiter for step in base.steps} == {"memory"}


@pytest.mark.parametrize("knob", ["bandwidth", "peak", "sms", "clock", "l2"])
def test_every_knob_moves_something(knob: str) -> None:
    model = model_of(Transformer(1024, 4096, 16, 8, 256, layers=1), Rows(((16384, 4096),)))
    assert predicted(model, **{knob: 2.0}).total_us < 0.999 * predicted(model).total_us


def test_half_precision_is_predicted_faster() -> None:
    model = model_of(Transformer(1024, 4096, 16, 8, 256, layers=1), dtype=SINGLE)
    times = {
        name: predict(model, known_ceilings("h200"), make_options({"precision": name})).total_us
        for name in ("typed", "fp16")
    }
    assert times["fp16"] < times["typed"] / 3
    with pytest.raises(OptionError, match="ridge quantize"):
        predict(model, known_ceilings("h200"), make_options({"precision": "int8"}))


def test_points_correct_regions_like_them_and_no_others() -> None:
    engine = build(SMALL, target="null:sm_90", verify="off")
    sites = [site for _, site in engine.planned_sites()]
    tactics = tuple(engine.fused.tactics.values())
    plain = CostModel(known_ceilings("h200"))
    product = next(site for site in sites if features_of(site).family.startswith("product"))
    other = next(site for site in sites if features_of(site).family.startswith("rows"))
    found, modelled = features_of(product), plain.modelled_us(product, tactics)
    assert modelled is not None
    slow = Point(found.family, found.values, 3 * modelled, modelled)
    taught = CostModel(replace(known_ceilings("h200"), points=(slow,)))
    assert taught.site_us(product, tactics) == pytest.approx(3 * modelled)
    assert taught.site_us(other, tactics) == plain.site_us(other, tactics)


def test_a_processor_is_measured_and_its_own_networks_are_predicted(tmp_path: Path) -> None:
    target = Target("cpu", "x86_64", 1)
    rates = measure_rates(target)
    assert rates.flops["float32"] > 0
    assert rates.copy
    model = model_of(Rows(((64, 256),)), dtype=SINGLE)
    engine = build(model, verify="off", level=0, threads=1, without=("ort",))
    trace = engine.profile(engine.example_inputs(), rounds=3)
    points = tuple(points_of(engine, trace, CostModel(rates)))
    assert {point.family.split()[0] for point in points} >= {"rows", "pointwise"}
    measured = replace(rates, points=points)
    read = read_target(write_target(measured, tmp_path / "cpu.toml"))
    again = predict(model, read, make_options({"threads": 1}))
    assert again.total_us == pytest.approx(sum(point.measured_us for point in points), rel=0.05)


def test_the_command_prints_what_it_found(ridge: Ridge, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(SMALL)
    status, out, _ = ridge(
        "predict", path, "--target", "l4", "--top", "3", "--what-if", "clock=0.5", "--json"
    )
    assert status == 0
    told = json.loads(out)
    assert told["schema"] == "ridgeline/prediction/1"
    assert told["what_if"] == {"clock": 0.5}
    assert told["target"] == "l4"
    status, out, _ = ridge("predict", path, "--target", "l4", "--top", "3")
    assert "NVIDIA L4" in out
    assert "as the maker states" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--target", "l44"), "did you mean"),
        (("--target", "l4", "--what-if", "ram=2"), "bandwidth"),
        (("--target", "l4", "--what-if", "clock=-1"), "KNOB=FACTOR"),
        (("--target", "l4", "--what-if", "clock=1e-200"), "from 0.001 to 1000"),
        (("--target", "l4", "--what-if", "sms=2", "--what-if", "sms=0.5"), "twice"),
        (("--target", "l4", "--batch", "4"), "fixed"),
        (("--target", "l4", "--precision", "fp8"), "ridge quantize"),
        (("--target", "cpu"), "ridge calibrate"),
    ],
)
def test_bad_input_is_refused_with_a_way_out(
    ridge: Ridge, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(SMALL)
    status, _, err = ridge("predict", path, *arguments)
    assert status == 1
    assert says in err


def test_a_rate_that_no_maker_states_bounds_nothing(ridge: Ridge, tmp_path: Path) -> None:
    """Nobody states what this machine does in float32: memory alone would be called the bound."""
    path = tmp_path / "model.onnx"
    path.write_bytes(model_of(Transformer(128, 256, 2, 1, 16, layers=1), dtype=SINGLE))
    found = predict(path, known_ceilings("thor"), make_options({}))
    assert {step.limiter for step in found.steps} == {"unknown"}
    assert math.isfinite(found.total_us)
    status, out, _ = ridge("predict", path, "--target", "thor")
    assert status == 0
    assert "nan" not in out
    assert "unknown" in out


def test_points_of_another_version_are_refused() -> None:
    """They would correct nothing, and the prediction would still be called a measured one."""
    family = predicted(SMALL).steps[0].family
    old = replace(known_ceilings("h200"), measured="long ago", points=(Point(family, (1.0,), 2.0, 1.0),))
    with pytest.raises(TargetError, match="another version") as refused:
        predict(SMALL, old, make_options({}))
    assert "1 sizes" in refused.value.got


def test_only_this_machine_is_calibrated(ridge: Ridge) -> None:
    status, _, err = ridge("calibrate", "--target", "h200")
    assert status == 1
    assert "cpu or cuda" in err


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "hidden_act": "silu",
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def test_a_decoder_is_counted_as_its_makers_count_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    decoder = read_decoder(path)
    assert decoder.parameters == 8_030_261_248, "as published for this configuration"
    assert decoder.cache_bytes_per_token == 131_072
    h200 = known_ceilings("h200")
    one = predict_llm(decoder, h200, batch=1, prompt=2048)
    # a step of decoding reads every weight but the embedding table once
    read = decoder.weight_bytes - decoder.vocabulary * decoder.width * 2
    assert one.decode_us == pytest.approx(read / h200.memory_bytes_per_us, rel=0.05)
    assert {op.bound for op in one.operators if op.phase == "decode"} == {"memory"}
    assert {op.bound for op in one.operators if op.phase == "prefill" and op.flops > 1e12} == {"compute"}
    assert predict_llm(decoder, h200, batch=64).decode_tokens_per_s > 30 * one.decode_tokens_per_s
    narrow = predict_llm(read_decoder(path, "int4"), h200)
    assert narrow.decode_us < one.decode_us / 3
    assert one.largest_batch == int((h200.memory_bytes - decoder.weight_bytes) / (2048 * 131_072))


def test_what_a_configuration_leaves_out_or_cannot_say(tmp_path: Path) -> None:
    path = tmp_path / "config.json"

    def read(**changed: object) -> Decoder:
        path.write_text(json.dumps({name: v for name, v in {**LLAMA, **changed}.items() if v is not None}))
        return read_decoder(path)

    assert read(hidden_act=None).parameters == 8_030_261_248, "a gate is the default beside intermediate_size"
    assert read(hidden_act=None, hidden_activation="gelu_pytorch_tanh").is_gated
    assert not read(hidden_act="gelu_new").is_gated
    assert not read(hidden_act="gelu_pytorch_tanh", model_type="starcoder2").is_gated
    with pytest.raises(OptionError, match="mixture of experts"):
        read(num_local_experts=8)
    with pytest.raises(OptionError, match="the cache holds the prompt"):
        predict_llm(read(), known_ceilings("l4"), prompt=512, context=100)


def test_what_if_and_the_source_of_the_figures_are_told(ridge: Ridge, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    _, out, _ = ridge("predict", path, "--target", "l4", "--what-if", "bandwidth=2")
    assert "bandwidth ×2" in out
    assert "88% of its bandwidth" in " ".join(out.split())
    assert "e+0" not in out
    told = json.loads(ridge("predict", path, "--target", "l4", "--what-if", "bandwidth=2", "--json")[1])
    assert told["source"] == "as the maker states"
    assert told["file"] == str(path)
    assert told["what_if"] == {"bandwidth": 2.0}


def test_the_command_takes_a_configuration(ridge: Ridge, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    status, out, _ = ridge("predict", path, "--target", "l4", "--batch", "8", "--prompt", "64")
    assert status == 0
    assert "q, k, v" in out
    assert "tokens/s" in out
    for changed, says in (({"hidden_size": None}, "hidden_size"), ({"vocab_size": -1}, "vocab_size")):
        path.write_text(json.dumps({**LLAMA, **changed}))
        status, _, err = ridge("predict", path, "--target", "l4")
        assert status == 1
        assert says in err


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"text_config": 5}, "text_config"),
        ({"num_attention_heads": 8192, "head_dim": None}, "more heads than columns"),
        ({"torch_dtype": "float32"}, "nothing is known of products in float32"),
    ],
)
def test_a_decoder_that_cannot_be_counted_is_refused(
    ridge: Ridge, tmp_path: Path, changed: dict[str, object], says: str
) -> None:
    path = tmp_path / "config.json"
    kept = {name: value for name, value in {**LLAMA, **changed}.items() if value is not None}
    path.write_text(json.dumps(kept))
    status, _, err = ridge("predict", path, "--target", "thor")
    assert status == 1
    assert says in err


def test_memory_is_that_of_the_plan_that_takes_every_region_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "compile_kernels", lambda kernels, arch, on_done: [None] * len(kernels))
    monkeypatch.setattr(prediction, "_why_unfit", lambda made: None)
    model = model_of(Rows(((64, 256),)), Transformer(128, 256, 2, 1, 16, layers=2))
    # regions are counted apart, whatever pairs of them a build may take as one step
    apart = build(model, target="cuda:sm_90", level=0, verify="off", without=["triton.normed_gemm"])
    plan, found = apart.plan.memory, predicted(model)
    told = (plan.weight_bytes, plan.packed_bytes, plan.arena_bytes, plan.io_bytes, plan.library_bytes)
    needs = found.memory
    assert (needs.weights, needs.packed, needs.arena, needs.inputs, needs.libraries) == told
    assert needs.total == sum(told)
    assert needs.arena > 0


def test_a_machine_may_have_too_little_memory_for_what_a_run_makes(ridge: Ridge, tmp_path: Path) -> None:
    """The weights alone would fit."""
    path = tmp_path / "model.onnx"
    path.write_bytes(model_of(Rows(((16384, 4096),))))
    small = replace(known_ceilings("l4"), memory_bytes=64 << 20)
    found = predict(path, small, make_options({}))
    assert found.weight_bytes < small.memory_bytes < found.memory.total
    assert found.fits is False
    assert found.memory.arena >= 16384 * 4096 * 2
    status, out, _ = ridge("predict", path, "--target", write_target(small, tmp_path / "small.toml"))
    assert status == 0
    assert "it does not fit" in " ".join(out.split())
