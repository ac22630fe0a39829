"""What is told of a configuration reads as that configuration."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format, text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.serve.config.config import configure
from ridgeline.serve.config.json import config_json, config_of
from ridgeline.serve.config.text import parse_config, parse_json
from ridgeline.serve.datatypes import DATATYPES
from ridgeline.serve.protocol.messages import ModelConfig
from ridgeline.serve.spec import (
    BACKENDS,
    ENGINE,
    ENSEMBLE,
    PYTHON,
    BatchPolicy,
    Ensemble,
    EnsembleStep,
    InstanceGroup,
    ModelSpec,
    QueuePolicy,
    TensorSpec,
    VersionPolicy,
    WarmUp,
    WarmUpInput,
    is_model_name,
)

MICROSECONDS = st.integers(0, 2**50).map(lambda number: number / 1e6)
WORDS = st.text("abcxyz_", min_size=1, max_size=6)
# names of tensors are anything that an ONNX file can hold
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
DIMS = st.lists(st.integers(1, 2**31) | st.just(-1), max_size=4).map(tuple)
QUEUES = st.builds(
    QueuePolicy, st.integers(0, 2**32 - 1), MICROSECONDS, st.sampled_from(["REJECT", "DELAY"]), st.booleans()
)
VERSIONS = st.one_of(
    st.just(VersionPolicy("all")),
    st.integers(1, 2**32 - 1).map(lambda count: VersionPolicy("latest", count)),
    st.sets(st.integers(1, 2**63 - 1), min_size=1).map(
        lambda numbers: VersionPolicy("specific", versions=tuple(sorted(numbers)))
    ),
)
BUILD = st.fixed_dictionaries(
    {},
    optional={
        "threads": st.integers(0, 64),
        "precision": st.sampled_from(["fp16", "typed"]),
        "level": st.integers(0, 5),
        "profiles": st.dictionaries(WORDS, st.sampled_from(["1..8x3", "4", "[1,2..8]"]), min_size=1),
    },
)


@st.composite
def tensors(draw: Any, **more: Any) -> tuple[TensorSpec, ...]:
    made = []
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        dims = draw(DIMS)
        reshape = draw(st.none() | st.just((1, *dims)))
        optional = {key: draw(value) for key, value in more.items()}
        made.append(
            TensorSpec(name, draw(st.sampled_from(list(DATATYPES))), dims, reshape=reshape, **optional)
        )
    return tuple(made)


@st.composite
def batchings(draw: Any, max_batch: int) -> BatchPolicy:
    levels = draw(st.integers(0, 5))
    return BatchPolicy(
        max_batch,
        tuple(sorted(draw(st.sets(st.integers(1, max_batch), max_size=3)))),
        draw(MICROSECONDS),
        draw(st.booleans()),
        levels,
        draw(st.integers(1, levels)) if levels else 0,
        draw(QUEUES),
        draw(st.dictionaries(st.integers(1, levels), QUEUES)) if levels else {},
    )


@st.composite
def instance_groups(draw: Any) -> tuple[InstanceGroup, ...]:
    groups = []
    for name in draw(st.lists(WORDS, min_size=1, max_size=3, unique=True)):
        kind = draw(st.sampled_from(["KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"]))
        gpus = draw(st.lists(st.integers(0, 7), unique=True)) if kind == "KIND_GPU" else []
        groups.append(InstanceGroup(draw(st.integers(1, 64)), kind, tuple(gpus), name))
    return tuple(groups)


@st.composite
def warm_ups(draw: Any) -> tuple[WarmUp, ...]:
    made = []
    for name in draw(st.lists(WORDS, max_size=2, unique=True)):
        inputs = tuple(
            WarmUpInput(
                each,
                draw(st.sampled_from(list(DATATYPES))),
                tuple(draw(st.lists(st.integers(0, 9), max_size=3))),
                draw(st.sampled_from(["zero", "random"])),
            )
            for each in sorted(draw(st.lists(WORDS, max_size=2, unique=True)))
        )
        made.append(WarmUp(name, draw(st.integers(1, 64)), draw(st.integers(1, 1000)), inputs))
    return tuple(made)


@st.composite
def engines(draw: Any) -> ModelSpec:
    max_batch_size = draw(st.integers(0, 64))
    keys = WORDS.map(lambda word: f"{word}-mine")
    return ModelSpec(
        draw(st.text("aZ0._-", min_size=3, max_size=8).filter(is_model_name)),
        max_batch_size=max_batch_size,
        inputs=draw(tensors(is_optional=st.booleans())),
        outputs=draw(tensors()),
        batching=draw(batchings(max(1, max_batch_size))),
        instances=draw(instance_groups()),
        versions=draw(VERSIONS),
        warmups=draw(warm_ups()),
        idempotent=draw(st.booleans()),
        pad_dims=tuple(draw(st.lists(WORDS, max_size=2, unique=True))),
        pad_values=draw(st.dictionaries(WORDS, st.floats(allow_nan=False, allow_infinity=False))),
        build=draw(BUILD),
        parameters=draw(st.dictionaries(keys, st.text(st.characters(exclude_categories=["Cs"])))),
        metric_tags=draw(st.dictionaries(WORDS.map(lambda word: f"t_{word}"), NAMES)),
        default_model_filename=draw(st.sampled_from(["", "net.onnx"])),
    )


@given(engines())
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
def test_engines_go_round(spec: ModelSpec) -> None:
    check_round(spec)


@given(tensors(), tensors(), st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_python_models_go_round(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], batch: int
) -> None:
    check_round(
        ModelSpec(
            "p", PYTHON, BACKENDS[PYTHON], batch, inputs, outputs, BatchPolicy(max_batch=max(1, batch)),
        )
    )  # fmt: skip


@given(st.integers(1, 4), tensors(), st.integers(0, 9), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_ensembles_go_round(count: int, ports: tuple[TensorSpec, ...], batch: int, inflight: int) -> None:
    names = [f"tensor{at}" for at in range(count + 1)]
    steps = tuple(
        EnsembleStep(f"m{at}", str(at) if at else "", {"i": names[at]}, {"o": names[at + 1]})
        for at in range(count)
    )
    ends = [TensorSpec(name, ports[0].datatype, ports[0].dims) for name in (names[0], names[-1])]
    check_round(
        ModelSpec(
            "e", ENSEMBLE, BACKENDS[ENSEMBLE], batch, (ends[0],), (ends[1],),
            BatchPolicy(max_batch=max(1, batch)), instances=(), ensemble=Ensemble(steps, inflight),
        )
    )  # fmt: skip


def check_round(spec: ModelSpec) -> None:
    told = json.loads(json.dumps(config_json(spec)))
    read = configure(parse_json(json.dumps(told)), name=spec.name, python_steps=True)
    assert read.spec == spec
    assert not read.is_batch_open or spec.platform != ENGINE
    assert read.notes == ()
    assert config_json(read.spec) == told
    # as text, and by protobuf's own reading of JSON, which is how gRPC's front end takes it
    message = config_of(spec)
    assert (
        configure(parse_config(text_format.MessageToString(message)), name=spec.name, python_steps=True).spec
        == spec
    )
    assert json_format.ParseDict(told, ModelConfig()) == message
    assert_numbers_are_numbers(told)


def assert_numbers_are_numbers(told: dict[str, Any]) -> None:
    """protobuf writes 64-bit integers as strings; clients read these with the types of their JSON."""
    for each in (*told["input"], *told["output"]):
        assert all(isinstance(dim, int) for dim in each["dims"])
    specific = told["version_policy"].get("specific", {"versions": []})
    assert all(isinstance(version, int) for version in specific["versions"])
    if "dynamic_batching" in told:
        assert isinstance(told["dynamic_batching"]["max_queue_delay_microseconds"], int)
    for step in told.get("ensemble_scheduling", {"step": []})["step"]:
        assert isinstance(step["model_version"], int)
