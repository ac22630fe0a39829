"""Text of configurations: what reads, what does not, and what is said of it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from ridgeline.serve.config import fields as config_fields
from ridgeline.serve.config.config import configure
from ridgeline.serve.config.fields import HONOURED, NOTED, REFUSED, check_fields
from ridgeline.serve.config.text import (
    LARGEST_CONFIG,
    ConfigError,
    Problems,
    parse_config,
    parse_json,
    read_config,
)
from ridgeline.serve.protocol.messages import ModelConfig

FULL = """
name: "m"
backend: "ridgeline"
max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [-1, 4] }, { name: "mask" data_type: TYPE_INT64 dims: [-1] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [3] }]
instance_group [{ count: 2 kind: KIND_GPU gpus: [0, 1] }, { kind: KIND_CPU }]
version_policy: { specific { versions: [1, 3] } }
dynamic_batching {
  preferred_batch_size: [4, 8] max_queue_delay_microseconds: 100 preserve_ordering: true
  priority_levels: 3 default_priority_level: 2
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5000 max_queue_size: 9 }
  priority_queue_policy { key: 1 value { allow_timeout_override: true max_queue_size: 2 } }
}
model_warmup [{ name: "w" batch_size: 2 count: 3
  inputs { key: "x" value { data_type: TYPE_FP32 dims: [5, 4] random_data: true } }
  inputs { key: "mask" value { data_type: TYPE_INT64 dims: [5] zero_data: true } } }]
parameters { key: "idempotent" value { string_value: "true" } }
parameters { key: "mine" value { string_value: "kept" } }
metric_tags { key: "team" value: "a" }
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name: "m"\nmax_batch: 3', "line 2, column 1: got unknown field 'max_batch' in ModelConfig"),
        ('name: "m"\nmax_batch_sise: 3', "did you mean 'max_batch_size'?"),
        (
            "input { dim: 3 }",
            "unknown field 'dim' in ModelInput, want a field of Triton's ModelConfig; did you",
        ),
        ("max_batch_size: 4 max_batch_size: 5", 'should not have multiple "max_batch_size"'),
        ("max_batch_size: 99999999999", "line 1, column 17: got Value out of range"),
        ("max_batch_size: " + "9" * 5000, "line 1, column 17"),
        ("input { data_type: TYPE_NO }", "has no value named TYPE_NO"),
        ("dynamic_batching {} ensemble_scheduling {}", 'another member of oneof "scheduling_choice"'),
        ("input {" * 1000, "unknown field 'input' in ModelInput"),
        ('name: "\\377"', "Couldn't parse string"),
        ('name: "no end', "String missing ending quote"),
        ("[a.b.c] {}", "does not have extensions"),
        ("#" * (LARGEST_CONFIG + 1), "got 1,048,577 characters, want at most 1,048,576"),
    ],
)
def test_text_that_does_not_read_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    assert said in str(caught.value)
    assert str(caught.value).count(", want ") == len([each for each in caught.value.problems if each.want])
    assert len(str(caught.value)) < 700  # not the whole line that was at fault


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "JSON that is not an object"),
        ("null", "JSON that is not an object"),
        ("{", "Expecting property name"),
        ("[" * 100_000, "recursion"),
        ('{"input":' * 100_000, "recursion"),
        ('{"name": "a", "name": "b"}', "'name' 2 times in one object"),
        ('{"foo": 1}', "unknown field 'foo' in ModelConfig"),
        ('{"max_batch_size": 1.5}', "Couldn't parse integer"),
        ('{"max_batch_size": NaN}', "Couldn't parse integer"),
        ('{"max_batch_size": ' + "9" * 5000 + "}", "limit"),
        ('{"input": {"name": "x"}}', "repeated field input must be in []"),
        ('{"input": [null]}', "null is not allowed"),
        ('{"name": "\\ud800"}', "surrogate"),
        ('{"dynamic_batching": {"priority_queue_policy": {"x": {}}}}', "priority_queue_policy"),
        ('"' + "x" * LARGEST_CONFIG + '"', "at most 1,048,576"),
    ],
)
def test_json_that_does_not_read_is_told(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_json(text)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 700


def test_a_batch_size_that_is_0_differs_from_none() -> None:
    assert parse_config("max_batch_size: 0").sets_batch
    assert not parse_config('name: "max_batch_size: 0"').sets_batch
    assert parse_json('{"max_batch_size": 0}').sets_batch
    assert parse_json('{"maxBatchSize": 3}').config.max_batch_size == 3
    assert not parse_json('{"max_batch_size": null}').sets_batch


def test_files_are_bounded_and_regular(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text('name: "m"')
    assert read_config(path).config.name == "m"
    path.write_bytes(b'name: "\xff"')
    with pytest.raises(ConfigError, match=r"'config.pbtxt' is not UTF-8 at byte 7"):
        read_config(path)
    with path.open("wb") as file:
        file.truncate(LARGEST_CONFIG + 1)
    with pytest.raises(ConfigError, match="more than 1,048,576 bytes"):
        read_config(path)
    path.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        read_config(path)
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a regular file"):
        read_config(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="symbolic links"):
        read_config(path)


def leaves(descriptor: Any, path: str) -> Iterator[str]:
    for field in descriptor.fields:
        message = field.message_type if field.type == FieldDescriptor.TYPE_MESSAGE else None
        if message is not None and message.GetOptions().map_entry:
            message = message.fields_by_name["value"].message_type
        if message is None or not message.fields:
            yield path + field.name
        else:
            yield from leaves(message, f"{path}{field.name}.")


def test_every_field_is_in_exactly_one_table() -> None:
    known = [*HONOURED, *NOTED, *REFUSED]
    assert len(set(known)) == len(known)
    paths = list(leaves(ModelConfig.DESCRIPTOR, ""))
    assert len(paths) > 100
    for path in paths:
        tables = [each for each in known if f"{path}.".startswith(f"{each}.")]
        assert len(tables) == 1, (path, tables)
    for each in known:
        assert any(f"{path}.".startswith(f"{each}.") for path in paths), each


@pytest.mark.parametrize(
    "text",
    [
        "sequence_batching {}",
        "model_transaction_policy { decoupled: true }",
        "response_cache { enable: true }",
        "input { allow_ragged_batch: true }",
        "input { is_shape_tensor: true }",
        "output { is_shape_tensor: true }",
        "input { is_non_linear_format_io: true }",
        "output { is_non_linear_format_io: true }",
        "batch_input {}",
        "batch_output {}",
        'model_operations { op_library_filename: "evil.so" }',
        'model_repository_agents { agents { name: "checksum" } }',
        'cc_model_filenames { key: "9.0" value: "h.plan" }',
        'ensemble_scheduling { step { model_namespace: "n" } }',
        "input { data_type: 99 }",
        "instance_group { kind: 7 }",
        "dynamic_batching { priority_queue_policy { key: 1 value { timeout_action: 7 } } }",
    ],
)
def test_what_would_change_results_is_refused(text: str) -> None:
    problems = Problems()
    assert not check_fields(parse_config(text).config, problems)
    (problem,) = problems.found
    assert problem.got == "a field that is not supported" or "one of " in problem.want


def test_a_field_of_no_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_fields, "HONOURED", ("name",))
    problems = Problems()
    check_fields(parse_config('name: "m" max_batch_size: 1').config, problems)
    assert [each.where for each in problems.found] == ["max_batch_size"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("optimization { graph { level: 1 } cuda { graphs: true } }", "optimization is not honoured"),
        (
            "instance_group { count: 1 } instance_group { rate_limiter {} }",
            "instance_group[1].rate_limiter is",
        ),
        ('instance_group { host_policy: "p" }', "host_policy"),
        ('instance_group { profile: "1" }', "profile"),
        ("instance_group { passive: true }", "passive"),
        ("instance_group { secondary_devices {} }", "secondary_devices"),
        ("model_metrics { metric_control {} }", "model_metrics"),
        ('input { name: "x" format: FORMAT_NHWC }', "input[0].format is not honoured"),
    ],
)
def test_what_is_known_and_not_honoured_is_told(text: str, said: str) -> None:
    problems = Problems()
    (note,) = check_fields(parse_config(text).config, problems)
    assert said in note
    assert not problems.found


@pytest.mark.parametrize("text", ["model_transaction_policy {}", "response_cache { enable: false }", ""])
def test_what_is_refused_may_stand_there_switched_off(text: str) -> None:
    problems = Problems()
    assert not check_fields(parse_config(text).config, problems)
    assert not problems.found


def test_text_cannot_speak_to_the_terminal() -> None:
    with pytest.raises(ConfigError) as caught:
        configure(parse_config('name: "\\033[2J\u202e"'), name="m")
    assert "\x1b" not in str(caught.value)
    assert "\u202e" not in str(caught.value)


def test_whatever_is_mutated_only_the_one_error_escapes() -> None:
    """Three seconds of it; texts that read go all the way."""
    random_source = random.Random(7)
    put_in = ["{", "}", "[", "]", "-1", "0", "4294967295", "9" * 30, '"\\377"', "TYPE_BF16", "\0", "é"]
    words = [*FULL.split(), *put_in]
    refused = read = told = 0
    until = time.monotonic() + 3
    while time.monotonic() < until:
        text = FULL
        for _ in range(random_source.randint(1, 4)):
            at, size = random_source.randrange(len(text)), random_source.choice((0, 1, 2, 8, 40))
            put = random_source.choice(("", random_source.choice(words), chr(random_source.randrange(256))))
            text = text[:at] + put + text[at + size :]
        problems = 0
        try:
            configure(parse_config(text), name="m")
        except ConfigError as error:
            problems = len(error.problems)
            refused += 1
        else:
            read += 1
        told += problems
    assert refused > 100
    assert told >= refused
    assert read > 10
