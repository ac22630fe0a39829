"""Values of configurations: what they come to, and everything that is wrong told at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.serve.test_config_text import FULL

from ridgeline.serve.config.config import Configured, configure
from ridgeline.serve.config.files import contained
from ridgeline.serve.config.json import config_json
from ridgeline.serve.config.text import ConfigError, no_config, parse_config
from ridgeline.serve.config.warmup import warmup_file
from ridgeline.serve.spec import (
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
)

X = ' input { name: "x" data_type: TYPE_FP32 dims: [1] }'
Y = ' output { name: "y" data_type: TYPE_FP32 dims: [1] }'


def read(text: str, folder: Path | None = None, **more: object) -> Configured:
    return configure(parse_config(text), name="m", folder=folder, **more)  # type: ignore[arg-type]


def test_all_that_is_honoured_arrives() -> None:
    assert read(FULL) == Configured(
        ModelSpec(
            name="m",
            max_batch_size=8,
            inputs=(TensorSpec("x", "FP32", (-1, 4)), TensorSpec("mask", "INT64", (-1,))),
            outputs=(TensorSpec("y", "FP32", (3,)),),
            batching=BatchPolicy(
                max_batch=8,
                preferred=(4, 8),
                max_delay_s=0.0001,
                preserve_ordering=True,
                priority_levels=3,
                default_priority=2,
                queue=QueuePolicy(9, 0.005, "DELAY"),
                queues={1: QueuePolicy(2, allow_override=True)},
            ),
            instances=(InstanceGroup(2, "KIND_GPU", (0, 1)), InstanceGroup(1, "KIND_CPU")),
            versions=VersionPolicy("specific", versions=(1, 3)),
            warmups=(
                WarmUp(
                    "w",
                    2,
                    3,
                    (WarmUpInput("mask", "INT64", (5,)), WarmUpInput("x", "FP32", (5, 4), "random")),
                ),
            ),
            idempotent=True,
            parameters={"mine": "kept"},
            metric_tags={"team": "a"},
        )
    )


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "a" * 129, "a\n"])
def test_names_of_models_are_parts_of_paths_and_urls(name: str) -> None:
    with pytest.raises(ConfigError, match="the model's name: got"):
        configure(no_config(), name=name)


def test_nothing_is_needed() -> None:
    configured = configure(no_config(), name="m")
    assert configured == Configured(ModelSpec("m"), is_batch_open=True)
    assert configured.spec.batching.queue_of(0) == QueuePolicy()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name: "other"', "name: got 'other', want 'm', as the folder is called"),
        ("max_batch_size: -1", "max_batch_size: got -1, want 0 or more"),
        ('backend: "pytorch"', "backend: got 'pytorch', want nothing or ridgeline or onnxruntime"),
        ('platform: "tensorflow_savedmodel"', "platform: got"),
        ('runtime: "../../evil.so"', "runtime: got"),
        ('backend: "python"', "--python-steps"),
        ("input { data_type: TYPE_FP32 }", "input[0].name: got none"),
        (X + X, "input: got 'x' 2 times, want each name once"),
        (Y + Y, "output: got 'y' 2 times"),
        ('input { name: "x" dims: [0] }', "input 'x'.dims: got [0], want sizes of 1 or more, or -1 for any"),
        ('input { name: "x" dims: [-2] }', "input 'x'.dims: got [-2]"),
        ('output { name: "y" dims: [' + "1," * 70 + "1] }", "output 'y'.dims: got 71 dims, want at most 64"),
        ('input { name: "x" dims: [6] reshape { shape: [2, 4] } }', "reshape: got [2, 4], want as many"),
        ('input { name: "x" dims: [-1, 6] reshape { shape: [6, -1] } }', "input 'x'.reshape"),
        ('input { name: "x" dims: [6] reshape { shape: [-1] } }', "input 'x'.reshape"),
        ('input { name: "x" dims: [1] reshape { shape: [0] } }', "input 'x'.reshape: got [0]"),
        ("dynamic_batching { preferred_batch_size: [0] }", "preferred_batch_size: got [0]"),
        ("dynamic_batching { priority_levels: 2 }", "default_priority_level: got 0, want 1 to 2"),
        ("dynamic_batching { default_priority_level: 1 }", "default_priority_level: got 1, want 0 to 0"),
        ("dynamic_batching { priority_levels: 2 default_priority_level: 3 }", "got 3, want 1 to 2"),
        ("dynamic_batching { priority_levels: 9999 default_priority_level: 1 }", "priority_levels: got 9999"),
        ("dynamic_batching { priority_queue_policy { key: 1 value {} } }", "got priority 1, want 1 to"),
        ("instance_group { count: -1 }", "instance_group[0].count: got -1, want 1 to 64"),
        ("instance_group { count: 65 }", "instance_group[0].count: got 65, want 1 to 64"),
        ("instance_group { kind: KIND_CPU gpus: [0] }", "gpus: got [0], want none with KIND_CPU"),
        ("instance_group { kind: KIND_MODEL gpus: [0] }", "want none with KIND_MODEL"),
        ("instance_group { kind: KIND_GPU gpus: [0, 0] }", "instance_group[0].gpus: got [0, 0]"),
        ("instance_group { kind: KIND_GPU gpus: [-1] }", "instance_group[0].gpus: got [-1]"),
        ('instance_group { name: "a" } instance_group { name: "a" }', "instance_group: got 'a' 2 times"),
        ("instance_group {}" * 65, "instance_group: got 65 groups"),
        ("instance_group { kind: KIND_GPU gpus: [" + ",".join(map(str, range(65))) + "] }", "most 64 GPUs"),
        ("instance_group { kind: 7 }", "instance_group[0].kind: got 7, want one of KIND_AUTO, KIND_GPU"),
        ('input { name: "x" data_type: 99 }', "input[0].data_type: got 99, want one of TYPE_INVALID"),
        ("version_policy { specific {} }", "version_policy.specific.versions: got []"),
        ("version_policy { specific { versions: [0] } }", "version_policy.specific.versions: got [0]"),
        ("version_policy { specific { versions: [1, 1] } }", "got '1' 2 times"),
        ("version_policy { latest {} }", "version_policy.latest.num_versions: got 0, want 1 or more"),
        ('default_model_filename: "../x.onnx"', "default_model_filename: got '../x.onnx'"),
        ('default_model_filename: ".."', "default_model_filename: got '..'"),
        ('default_model_filename: "a\\\\b"', "default_model_filename: got"),
        ('default_model_filename: "a\\0b"', "default_model_filename: got"),
        ('metric_tags { key: "a b" value: "c" }', "metric_tags: got 'a b'"),
        ('metric_tags { key: "model" value: "c" }', "metric_tags: got 'model'"),
        ('platform: "ensemble"', "ensemble_scheduling.step: got 0 steps"),
        ('model_warmup { name: "w" }', "model_warmup 'w'.batch_size: got 0, want 1 or more"),
        ("model_warmup { batch_size: 1 count: 4294967295 }", "model_warmup[0].count: got 4294967295"),
        ('model_warmup { name: "w" batch_size: 1 } model_warmup { name: "w" batch_size: 1 }', "'w' 2 times"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert said in str(caught.value)


def test_everything_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read('name: "n" max_batch_size: -1 instance_group { count: 99 } sequence_batching {}' + X + X)
    assert len(caught.value.problems) == 5
    assert str(caught.value).startswith("config.pbtxt: 5 problems\n  ")
    with pytest.raises(ConfigError) as caught:
        read("instance_group { count: 99 }" * 30)
    assert len(caught.value.problems) == 30
    assert "… and 20 more" in str(caught.value)


@pytest.mark.parametrize("alias", ["onnxruntime", "tensorrt", "onnxruntime_onnx"])
def test_other_runtimes_are_run_by_ridgeline_and_that_is_said(alias: str) -> None:
    configured = read(f'backend: "{alias}"')
    assert configured.spec.backend == "ridgeline"
    assert configured.notes == (f"backend {alias!r}: Ridgeline builds and runs the engine",)
    assert read('platform: "tensorrt_plan"').notes
    assert not read('platform: "ridgeline_engine" backend: "ridgeline"').notes


def test_gpus_make_a_group_one_of_gpus() -> None:
    assert read("instance_group { gpus: [1] }").spec.instances == (InstanceGroup(1, "KIND_GPU", (1,)),)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", VersionPolicy()),
        ("version_policy { latest { num_versions: 3 } }", VersionPolicy("latest", 3)),
        ("version_policy { all {} }", VersionPolicy("all")),
        ("version_policy { specific { versions: [3, 1] } }", VersionPolicy("specific", versions=(1, 3))),
    ],
)
def test_version_policies(text: str, policy: VersionPolicy) -> None:
    assert read(text).spec.versions == policy


def parameters(**texts: str) -> str:
    return " ".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}' for k, v in texts.items())


def test_own_parameters_are_read() -> None:
    spec = read(
        parameters(
            idempotent="true", pad_dims="seq, height", pad_values="ids=1, mask=-0.5", threads="2", level="3",
            precision="fp16", profile=" ids=1..8x128  n=[1, 2..8]", theirs="kept",
        )
    ).spec  # fmt: skip
    assert spec.idempotent
    assert spec.pad_dims == ("seq", "height")
    assert spec.pad_values == {"ids": 1.0, "mask": -0.5}
    profiles = {"ids": "1..8x128", "n": "[1,2..8]"}
    assert spec.build == {"threads": 2, "level": 3, "precision": "fp16", "profiles": profiles}
    assert spec.parameters == {"theirs": "kept"}


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("idempotent", "yes"), ("idempotent", ""),
        ("pad_dims", ""), ("pad_dims", "a,,b"), ("pad_dims", "a, a"),
        ("pad_values", "x"), ("pad_values", "x=nan"), ("pad_values", "=1"), ("pad_values", "x=1, x=2"),
        ("threads", "-1"), ("threads", "9999"), ("threads", "2.0"), ("threads", "٣"), ("level", "99"),
        ("precision", "fp17"), ("profile", "x"),
        ("profile", "x=axb"), ("profile", "x=1 x=2"), ("profile", "x=8..1"),
    ],
)  # fmt: skip
def test_own_parameters_that_do_not_read_are_told(key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"parameters '{key}': got '{text}', want"):
        read(parameters(**{key: text}))


def test_a_number_of_many_digits_is_no_more_than_wrong() -> None:
    with pytest.raises(ConfigError, match="want a whole number, 0 to"):
        read(parameters(threads="9" * 5000))


def test_a_parameter_that_is_nearly_ours_is_noted() -> None:
    configured = read(parameters(idempotant="true"))
    assert not configured.spec.idempotent
    assert configured.notes == ("parameter 'idempotant' is kept as your own; did you mean 'idempotent'?",)


def test_labels_come_from_inside_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    (folder / "names").mkdir(parents=True)
    (folder / "names/labels.txt").write_text("cat\ndog\n", "utf-8")
    (tmp_path / "secret.txt").write_text("s")

    def labels(name: str) -> tuple[str, ...]:
        return read(f'output {{ name: "y" label_filename: "{name}" }}', folder).spec.outputs[0].labels

    assert labels("names/labels.txt") == ("cat", "dog")
    (folder / "binary.txt").write_bytes(b"\xff")
    (folder / "out.txt").symlink_to(tmp_path / "secret.txt")
    os.mkfifo(folder / "pipe")
    with (folder / "large.txt").open("wb") as file:
        file.truncate(2**20 + 1)
    for name, said in {
        "../secret.txt": "not a path inside",
        "/etc/passwd": "not a path inside",
        "names/../../secret.txt": "not a path inside",
        "names//labels.txt": "not a path inside",
        "no.txt": "does not exist",
        "out.txt": "link out",
        "pipe": "is a pipe",
        "names": "is a folder",
        "large.txt": "more than 1,048,576 bytes",
        "binary.txt": "not UTF-8",
        "a\\\\b": "not a path inside",
        "a\\0b": "not a path inside",
    }.items():
        with pytest.raises(ConfigError, match=said) as caught:
            labels(name)
        assert str(tmp_path) not in str(caught.value)
    with pytest.raises(ValueError, match="File name too long"):
        contained(folder, "a" * 300)
    with pytest.raises(ConfigError, match="want a model with a folder"):
        read('output { name: "y" label_filename: "labels.txt" }')


def warm(text: str) -> str:
    return f'{X} model_warmup {{ name: "w" batch_size: 1 inputs {{ key: "x" value {{ {text} }} }} }}'


def test_files_of_warm_ups_lie_in_their_folder_and_have_the_right_bytes(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup/two").write_bytes(bytes(8))
    (tmp_path / "warmup/text").write_bytes(b"\1\0\0\0a\2\0\0\0bc")
    (tmp_path / "outside").write_bytes(bytes(8))
    text = 'data_type: {} dims: [{}] input_data_file: "{}"'
    made = read(warm(text.format("TYPE_FP32", 2, "two")), tmp_path).spec.warmups[0].inputs[0]
    assert made == WarmUpInput("x", "FP32", (2,), "file", "two")
    assert warmup_file(tmp_path, made) == bytes(8)
    spec = read(warm(text.format("TYPE_FP32", 2, "two")), tmp_path).spec
    assert config_json(spec)["model_warmup"][0]["inputs"]["x"]["input_data_file"] == "two"
    assert read(warm(text.format("TYPE_STRING", 2, "text")), tmp_path).spec.warmups[0].count == 1
    for kind, dims, name, said in (
        ("TYPE_FP32", 3, "two", "'two' has 8 bytes, not 12"),
        ("TYPE_FP32", 1, "two", "more than 4 bytes"),
        ("TYPE_FP32", 2, "../outside", "not a path inside"),
        ("TYPE_FP32", 2, "outside", "does not exist"),
        ("TYPE_STRING", 3, "text", "ends inside element 2 of 3"),
    ):
        with pytest.raises(ConfigError, match=said):
            read(warm(text.format(kind, dims, name)), tmp_path)
    with pytest.raises(ConfigError, match="want a model with a folder"):
        read(warm(text.format("TYPE_FP32", 2, "two")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("zero_data: true dims: [1]", "data_type: got none"),
        ("data_type: TYPE_FP32 dims: [1]", "got no data, want zero_data or random_data or input_data_file"),
        ("data_type: TYPE_FP32 dims: [-1] zero_data: true", r"dims: got \[-1\], want sizes of 0 or more$"),
        ("data_type: TYPE_FP32 dims: [1000000, 1000000] zero_data: true", "at most 1,073,741,824 bytes"),
        ("data_type: TYPE_FP64 dims: [200000000] zero_data: true", "at most 1,073,741,824 bytes"),
        (
            "data_type: TYPE_FP32 dims: [-1] input_data_file: 'x'",
            r"1 problem\n.* got \[-1\], want sizes of 0 or more$",
        ),
        ("dims: [1] input_data_file: 'x'", r"1 problem\n.*data_type: got none"),
        ("data_type: TYPE_STRING dims: [1000000000] zero_data: true", "at most 1,073,741,824 bytes"),
    ],
)
def test_warm_ups_that_cannot_be_made_are_told(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(warm(text))


PYTHON_MODEL = 'backend: "python" max_batch_size: 4'


def test_a_python_model_says_what_it_takes_and_gives() -> None:
    configured = read(PYTHON_MODEL + X + Y, python_steps=True)
    assert not configured.notes
    assert not read('platform: "ridgeline_python"' + X + Y, python_steps=True).is_batch_open
    assert read(X + Y, python_steps=True, platform=PYTHON).spec.backend == "python"
    spec = configured.spec
    assert (spec.platform, spec.backend, spec.batching.max_batch) == (PYTHON, "python", 4)
    for text, said in (
        (PYTHON_MODEL + X, "output: got none"),
        (PYTHON_MODEL + Y + 'input { name: "x" dims: [1] }', "input 'x'.data_type: got none"),
        (PYTHON_MODEL + X + Y + "dynamic_batching { preferred_batch_size: 5 }", "at most max_batch_size, 4"),
    ):
        with pytest.raises(ConfigError, match=said):
            read(text, python_steps=True)


def test_a_model_with_steps_says_its_own_side_and_its_batch() -> None:
    assert read("max_batch_size: 0" + X, preprocess="preprocess.py").spec.preprocess == "preprocess.py"
    with pytest.raises(ConfigError, match="max_batch_size: got none") as caught:
        read("", preprocess="preprocess.py", postprocess="postprocess.py")
    assert len(caught.value.problems) == 3
    with pytest.raises(ConfigError, match="beside a model that is no engine"):
        read(PYTHON_MODEL + X + Y, python_steps=True, preprocess="preprocess.py")


def step(model: str, version: int = -1, *, i: str, o: str) -> str:
    maps = f'input_map {{ key: "i" value: "{i}" }} output_map {{ key: "o" value: "{o}" }}'
    return f'step {{ model_name: "{model}" model_version: {version} {maps} }}'


def ensemble(*steps: str, rest: str = "") -> str:
    return f"{X} {Y} ensemble_scheduling {{ {' '.join(steps)} {rest} }}"


def test_an_ensemble_is_its_steps() -> None:
    text = ensemble(step("a", i="x", o="mid"), step("b", 3, i="mid", o="y"), rest="max_inflight_requests: 5")
    spec = read(text).spec
    assert (spec.platform, spec.backend, spec.instances) == (ENSEMBLE, "", ())
    steps = (
        EnsembleStep("a", "", {"i": "x"}, {"o": "mid"}),
        EnsembleStep("b", "3", {"i": "mid"}, {"o": "y"}),
    )
    assert spec.ensemble == Ensemble(steps, 5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ensemble(step("../a", i="x", o="y")), r"step\[0\].model_name: got '../a'"),
        (ensemble(step("m", i="x", o="y")), r"step\[0\].model_name: got 'm', want the name of another"),
        (ensemble(step("a", -2, i="x", o="y")), r"step\[0\].model_version: got -2"),
        (ensemble('step { model_name: "a" }'), r"step\[0\].input_map: got no pairs"),
        (ensemble(step("a", i="", o="y")), r"step\[0\].input_map: got an empty name"),
        (ensemble('step { output_map { key: "" value: "y" } }'), "output_map: got an empty"),
        (ensemble(step("a", i="z", o="y")), r"input_map: got 'i' from 'z', want an input .*: x, y"),
        (ensemble(step("a", i="x", o="z")), "output 'y': got made by no step"),
        (ensemble(step("a", i="x", o="y"), step("b", i="x", o="y")), "'y', which is made by step 0"),
        (ensemble(step("a", i="x", o="x")), "'x', which is an input of the ensemble"),
        (ensemble(step("a", i="w", o="v"), step("b", i="v", o="w"), step("c", i="w", o="y")), "each other"),
        (ensemble(step("a", i="y", o="y")), "wait for each other: 0 .a. → 0 .a."),
        (ensemble(step("a", i="x", o="y") * 257), "257 steps, want 1 to 256"),
        (ensemble(step("a", i="x", o="y")) + "instance_group {}", "instance_group: got some, want none"),
        (ensemble(step("a", i="x", o="y")) + 'backend: "ridgeline"', "backend: got 'ridgeline'"),
        (ensemble(step("a", i="x", o="y")) + 'runtime: "ridgeline"', "runtime: got 'ridgeline'"),
        (Y + f"ensemble_scheduling {{ {step('a', i='x', o='y')} }}", "input: got none"),
    ],
)  # fmt: skip
def test_ensembles_that_cannot_run_are_told(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(text)


def test_an_input_that_no_step_reads_is_noted() -> None:
    unread = 'input { name: "z" data_type: TYPE_FP32 dims: [1] }'
    assert read(unread + ensemble(step("a", i="x", o="y"))).notes == ("input 'z' is read by no step",)
