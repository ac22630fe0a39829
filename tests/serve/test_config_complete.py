"""Configurations beside the ports of an engine: what is filled in, and what contradicts it."""

from __future__ import annotations

import json

import pytest

from ridgeline.serve.config.complete import DEFAULT_BATCH, complete
from ridgeline.serve.config.config import Configured, configure
from ridgeline.serve.config.json import config_json, metadata_json
from ridgeline.serve.config.text import ConfigError, parse_config, parse_json
from ridgeline.serve.hosts.hosting import PortInfo
from ridgeline.serve.spec import BatchPolicy, ModelSpec, TensorSpec

INPUTS = [PortInfo("ids", "INT64", ("batch", "seq")), PortInfo("mask", "INT64", ("batch", "seq"))]
OUTPUTS = [PortInfo("logits", "FP32", ("batch", "seq", 3)), PortInfo("pooled", "FP16", ("batch", 8))]


def read(
    text: str = "",
    inputs: list[PortInfo] | None = None,
    outputs: list[PortInfo] | None = None,
    largest: int | None = None,
    **steps: str,
) -> Configured:
    configured = configure(parse_config(text), name="m", **steps)
    return complete(
        configured,
        INPUTS if inputs is None else inputs,
        OUTPUTS if outputs is None else outputs,
        largest_batch=largest,
    )


def test_without_a_configuration_all_comes_from_the_engine() -> None:
    made = read()
    assert made.spec == ModelSpec(
        "m",
        max_batch_size=DEFAULT_BATCH,
        inputs=(TensorSpec("ids", "INT64", (-1,), ("seq",)), TensorSpec("mask", "INT64", (-1,), ("seq",))),
        outputs=(
            TensorSpec("logits", "FP32", (-1, 3), ("seq", "")),
            TensorSpec("pooled", "FP16", (8,), ("",)),
        ),
        batching=BatchPolicy(max_batch=DEFAULT_BATCH),
    )
    assert not made.notes
    assert not made.is_batch_open
    assert read(largest=32).spec.batching.max_batch == 32
    assert read(largest=1).spec.max_batch_size == 1
    assert read("max_batch_size: 7", largest=7).spec.max_batch_size == 7


def port(*dims: int | str, name: str = "x") -> PortInfo:
    return PortInfo(name, "FP32", dims)


@pytest.mark.parametrize(
    ("inputs", "outputs", "batch", "note"),
    [
        ([port("n", 4)], [port("n", 2, name="y")], DEFAULT_BATCH, ""),
        ([port("n")], [port("n", name="y")], DEFAULT_BATCH, ""),
        ([port(1, 4)], [port(1, 2, name="y")], 0, ""),
        ([port("n", 4)], [port(2, name="y")], 0, ""),
        ([port("n", 4)], [port(name="y")], 0, ""),
        ([port("n", 4)], [port("m", 2, name="y")], 0, "the first dims are n, m"),
        ([port("n", "n")], [port("n", name="y")], 0, "the first dim is 'n'"),
        (
            [port("sequence_length", 4)],
            [port("sequence_length", name="y")],
            0,
            "the first dim is 'sequence_len",
        ),
        ([], [port("n", name="y")], 0, ""),
        ([port("n")], [], 0, ""),
        ([port(-1, 4)], [port(-1, name="y")], DEFAULT_BATCH, ""),
    ],
)
def test_a_batch_is_one_name_in_front_of_all(
    inputs: list[PortInfo], outputs: list[PortInfo], batch: int, note: str
) -> None:
    made = read("", inputs, outputs)
    assert made.spec.max_batch_size == batch
    assert (note in made.notes[0]) if note else not made.notes
    for given, each in zip(inputs, made.spec.inputs, strict=True):
        sizes = tuple(-1 if isinstance(dim, str) else dim for dim in given.dims)
        assert made.spec.whole_dims(each) == sizes
        names = tuple(dim if isinstance(dim, str) else "" for dim in given.dims)
        assert each.names == (names[1:] if batch else names)


def test_dims_that_are_told_say_whether_there_is_a_batch() -> None:
    inputs, outputs = [port("a", 4)], [port("b", 2, name="y")]
    told = 'input { name: "x" dims: [4] } output { name: "y" dims: [2] }'
    assert read(told, inputs, outputs).spec.max_batch_size == DEFAULT_BATCH
    whole = 'input { name: "x" dims: [-1, 4] } output { name: "y" dims: [-1, 2] }'
    assert read(whole, inputs, outputs).spec.max_batch_size == 0
    assert read(whole, inputs, [port("a", 2, name="y")]).spec.max_batch_size == 0
    shaped = 'input { name: "x" dims: [2, 2] reshape { shape: [4] } }'
    assert read(shaped, inputs, outputs).spec.max_batch_size == DEFAULT_BATCH
    with pytest.raises(
        ConfigError, match=r"1 problem\n  input 'x'.dims: got \[4\], want \[1, 4\], the engine's$"
    ):
        read('input { name: "x" dims: [4] }', [port(1, 4)], [port(1, 2, name="y")])
    assert read("max_batch_size: 0").spec.max_batch_size == 0
    assert read("max_batch_size: 0").spec.inputs[0].dims == (-1, -1)


def test_what_is_left_open_is_filled_in() -> None:
    spec = read(
        'max_batch_size: 4 input { name: "mask" dims: [128] } output { name: "pooled" label_filename: "" }'
    ).spec
    assert [(each.name, each.dims, each.names) for each in spec.inputs] == [
        ("mask", (128,), ("",)), ("ids", (-1,), ("seq",)),
    ]  # fmt: skip
    assert [(each.name, each.datatype) for each in spec.outputs] == [("pooled", "FP16")]


def test_a_reshape_is_compared_with_the_engine() -> None:
    text = 'max_batch_size: 2 input { name: "x" dims: [2, 2] reshape { shape: [4] } }'
    spec = read(text, [port("n", 4)], [port("n", name="y")]).spec
    assert spec.inputs == (TensorSpec("x", "FP32", (2, 2), (), (4,)),)
    wider = 'max_batch_size: 2 input { name: "x" reshape { shape: [1] } }'
    assert read(wider, [port("n", 1)], [port("n", name="y")]).spec.inputs[0].dims == ()
    scalar = 'max_batch_size: 2 input { name: "x" dims: [1] reshape { shape: [] } }'
    assert read(scalar, [port("n")], [port("n", name="y")]).spec.inputs[0].reshape == ()
    with pytest.raises(
        ConfigError, match=r"reshape: got \[2, 2\], want \[4\], the engine's without the batch"
    ):
        read(
            text.replace("[2, 2]", "[4]").replace("shape: [4]", "shape: [2, 2]"), [port("n", 4)], [port("n")]
        )


def warm(name: str, text: str) -> str:
    return f'model_warmup {{ batch_size: 1 inputs {{ key: "{name}" value {{ {text} }} }} }}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('input { name: "id" }', "does not have, want an input of the engine; did you mean 'ids'?"),
        ('output { name: "logit" }', "output 'logit': got a name that the engine does"),
        (
            'input { name: "ids" data_type: TYPE_INT32 }',
            "data_type: got INT32, want INT64, as the engine has it",
        ),
        (
            'max_batch_size: 2 input { name: "ids" dims: [2, 2] }',
            "got [2, 2], want [seq], the engine's without",
        ),
        ('max_batch_size: 0 input { name: "ids" dims: [-1] }', "got [-1], want [batch, seq], the engine's"),
        ('output { name: "pooled" dims: [9] }', "output 'pooled'.dims: got [9], want [8]"),
        ('output { name: "pooled" dims: [-1] }', "output 'pooled'.dims: got [-1], want [8]"),
        ("max_batch_size: 9", "max_batch_size: got 9, want at most 8, the engine's own"),
        (
            "max_batch_size: 4 dynamic_batching { preferred_batch_size: 5 }",
            "got [5], want at most max_batch_size",
        ),
        ("dynamic_batching { preferred_batch_size: 9 }", "got [9], want at most max_batch_size, 8"),
        (
            "parameters { key: 'pad_dims' value { string_value: 'sek' } }",
            "got 'sek', want a dim of the inputs: seq",
        ),
        (
            "parameters { key: 'pad_dims' value { string_value: 'batch' } }",
            "got 'batch', want a dim of the inputs",
        ),
        (
            "parameters { key: 'pad_values' value { string_value: 'ids=1' } }",
            "got 'ids', want an input with a dim",
        ),
        ('model_warmup { name: "w" batch_size: 9 }', "model_warmup 'w'.batch_size: got 9, want at most 8"),
        ('model_warmup { name: "w" batch_size: 1 }', "model_warmup 'w'.inputs: got none for 'ids'"),
        (
            warm("x", "data_type: TYPE_INT8 zero_data: true"),
            "inputs: got 'x', want an input of the model: ids, mask",
        ),
        (
            warm("ids", "data_type: TYPE_INT8 dims: 3 zero_data: 1"),
            "input 'ids': got INT8 [3], want INT64 [-1]",
        ),
        (
            warm("ids", "data_type: TYPE_INT64 zero_data: true"),
            "input 'ids': got INT64 [], want INT64 [-1]",
        ),
    ],
)
def test_contradictions_are_told(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text, largest=8)
    assert said in str(caught.value)


def test_all_contradictions_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read('max_batch_size: 2 input { name: "a" } input { name: "ids" dims: [1, 1] }', outputs=[port(1, 4)])
    assert [each.where for each in caught.value.problems] == [
        "max_batch_size",
        "input 'a'",
        "input 'ids'.dims",
    ]


@pytest.mark.parametrize("dims", [(), (1, 4), (8,)])
def test_a_batch_needs_a_first_dim_of_any_size(dims: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="want 0, or a model whose first dims may be of any size"):
        read("max_batch_size: 2", [port(*dims)], [port("n", name="y")])


def padding(dims: str = "seq", values: str = "") -> str:
    pairs = {"pad_dims": dims, **({"pad_values": values} if values else {})}
    return " ".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in pairs.items())


def test_dims_are_padded_by_their_names() -> None:
    spec = read(padding(values="ids=1")).spec
    assert [spec.padded_axes(each) for each in (*spec.inputs, *spec.outputs)] == [
        {1: "seq"}, {1: "seq"}, {1: "seq"}, {},
    ]  # fmt: skip
    assert spec.pad_values == {"ids": 1.0}


@pytest.mark.parametrize(
    ("datatype", "value", "fits"),
    [
        ("INT8", "127", True), ("INT8", "128", False), ("UINT8", "-1", False), ("INT64", "0.5", False),
        ("BOOL", "1", True), ("BOOL", "2", False), ("FP16", "-65504", True), ("FP16", "1e5", False),
        ("FP32", "1e38", True), ("FP32", "1e39", False), ("BF16", "1e38", True), ("FP64", "1e300", True),
    ],
)  # fmt: skip
def test_pad_values_are_values_of_their_type(datatype: str, value: str, fits: bool) -> None:
    inputs, outputs = [PortInfo("x", datatype, ("n", "seq"))], [port("n", name="y")]
    if fits:
        assert read(padding(values=f"x={value}"), inputs, outputs).spec.pad_values == {"x": float(value)}
    else:
        with pytest.raises(ConfigError, match=f"want a value of {datatype}"):
            read(padding(values=f"x={value}"), inputs, outputs)


def test_padding_is_of_dims_and_inputs_that_are_there() -> None:
    with pytest.raises(ConfigError, match="got 'seq', want a dim of the inputs: none has a name"):
        read(padding(), [port(1, 4)], [port(1, name="y")])
    with pytest.raises(ConfigError, match="got 'nothing', want an input with a dim of pad_dims"):
        read(padding(values="nothing=1"))


def test_text_is_never_padded() -> None:
    with pytest.raises(ConfigError, match="input 'x' of BYTES, want an input of numbers"):
        read(padding(), [PortInfo("x", "BYTES", ("n", "seq"))], [port("n", name="y")])


def test_what_a_step_takes_is_not_compared_with_the_engine() -> None:
    text = 'max_batch_size: 4 input { name: "text" data_type: TYPE_STRING dims: [1] }'
    spec = read(text, preprocess="preprocess.py").spec
    assert [each.name for each in spec.inputs] == ["text"]
    assert [each.name for each in spec.outputs] == ["logits", "pooled"]
    text_out = 'max_batch_size: 4 output { name: "label" data_type: TYPE_STRING dims: [1] }'
    spec = read(text_out, postprocess="postprocess.py").spec
    assert [each.name for each in spec.inputs] == ["ids", "mask"]
    assert [each.name for each in spec.outputs] == ["label"]
    with pytest.raises(ConfigError, match="whose first dims may be of any size"):
        read(text, [port(1, 4)], preprocess="preprocess.py")


def test_metadata_has_the_batch_and_the_configuration_has_not() -> None:
    spec = read(largest=16).spec
    assert metadata_json(spec, [1, 3]) == {
        "name": "m",
        "versions": ["1", "3"],
        "platform": "ridgeline_engine",
        "inputs": [
            {"name": "ids", "datatype": "INT64", "shape": [-1, -1]},
            {"name": "mask", "datatype": "INT64", "shape": [-1, -1]},
        ],
        "outputs": [
            {"name": "logits", "datatype": "FP32", "shape": [-1, -1, 3]},
            {"name": "pooled", "datatype": "FP16", "shape": [-1, 8]},
        ],
    }
    told = config_json(spec)
    assert told["max_batch_size"] == 16
    assert [each["dims"] for each in told["input"]] == [[-1], [-1]]
    assert [each["data_type"] for each in told["output"]] == ["TYPE_FP32", "TYPE_FP16"]
    assert told["dynamic_batching"]["max_queue_delay_microseconds"] == 0
    assert told["version_policy"] == {"latest": {"num_versions": 1}}
    assert told["instance_group"][0]["kind"] == "KIND_AUTO"
    # clients ask whether these are there, and then for what is in them
    assert not told.keys() & {"sequence_batching", "ensemble_scheduling", "response_cache", "optimization"}
    assert complete(configure(parse_json(json.dumps(told)), name="m"), INPUTS, OUTPUTS).spec == spec


def test_without_a_batch_shapes_are_told_as_they_are() -> None:
    spec = read("max_batch_size: 0").spec
    assert metadata_json(spec, ["1"])["inputs"][0]["shape"] == [-1, -1]
    assert config_json(spec)["input"][0]["dims"] == [-1, -1]
    assert "dynamic_batching" not in config_json(spec)
