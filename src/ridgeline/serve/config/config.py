"""A model's configuration to a `ModelSpec`: all that can be said before its engine is there.

`config.complete` compares it with the engine and fills in what it leaves open. Everything that is wrong is
told at once, in one `ConfigError`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.serve.config.ensemble import check_ensemble, read_ensemble
from ridgeline.serve.config.fields import check_fields
from ridgeline.serve.config.parameters import parameter_notes, read_parameters
from ridgeline.serve.config.queues import read_batching, read_instances, read_versions
from ridgeline.serve.config.sizes import check_sizes
from ridgeline.serve.config.tensors import read_tensors
from ridgeline.serve.config.text import Given, Problems
from ridgeline.serve.config.warmup import read_warmups
from ridgeline.serve.spec import BACKENDS, ENGINE, ENSEMBLE, PYTHON, ModelSpec, is_model_name

# what other servers' repositories name as the runtime of a model that Ridgeline builds an engine of
ALIASES = ("onnxruntime", "onnxruntime_onnx", "tensorrt")
_BACKENDS = ("", BACKENDS[ENGINE], *ALIASES)
_PLATFORMS = ("", ENGINE, BACKENDS[ENGINE], *ALIASES, "tensorrt_plan")
_TAG = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OWN_LABELS = ("model", "version", "gpu_uuid", "reason", "le", "quantile")  # of the server's metrics


@dataclass(frozen=True)
class Configured:
    """`is_batch_open`: the configuration leaves max_batch_size to the engine."""

    spec: ModelSpec
    notes: tuple[str, ...] = ()
    is_batch_open: bool = False
    source: str = "config.pbtxt"


def platform_of(config: Any) -> str:
    """Which kind of model a configuration is for, before it is checked."""
    if config.platform == ENSEMBLE or config.HasField("ensemble_scheduling"):
        return ENSEMBLE
    return PYTHON if config.platform == PYTHON or config.backend == BACKENDS[PYTHON] else ENGINE


def configure(
    given: Given,
    *,
    name: str,
    folder: Path | None = None,
    python_steps: bool = False,
    platform: str = "",
    preprocess: str = "",
    postprocess: str = "",
) -> Configured:
    """All that is wrong with it is one `ConfigError`.

    `folder` is the model's own, with real path. `platform`: what its files are, where they say. Steps are
    names of files.
    Parameters: each is something that a folder tells, and this module looks into none.
    """
    problems = Problems()
    config = given.config
    notes = list(check_fields(config, problems))
    told = platform_of(config)
    platform = told if told != ENGINE else platform or ENGINE
    notes += _check_platform(config, platform, python_steps, problems)
    own = read_parameters(config.parameters, problems)
    notes += parameter_notes(own)
    spec = ModelSpec(
        name=name,
        platform=platform,
        backend=BACKENDS[platform],
        max_batch_size=config.max_batch_size,
        inputs=tuple(read_tensors("input", config.input, folder, problems)),
        outputs=tuple(read_tensors("output", config.output, folder, problems)),
        batching=read_batching(config.dynamic_batching, config.max_batch_size, problems),
        instances=() if platform == ENSEMBLE else read_instances(config.instance_group, problems),
        versions=read_versions(config.version_policy, problems),
        warmups=read_warmups(config.model_warmup, folder, problems),
        ensemble=read_ensemble(config.ensemble_scheduling, name, problems) if platform == ENSEMBLE else None,
        idempotent=own.idempotent,
        pad_dims=own.pad_dims,
        pad_values=own.pad_values,
        build=own.build,
        parameters=own.rest,
        metric_tags=dict(sorted(config.metric_tags.items())),
        default_model_filename=config.default_model_filename,
        preprocess=preprocess,
        postprocess=postprocess,
    )
    _check_own(config, spec, problems)
    _check_told(spec, given, problems)
    if platform == ENSEMBLE:
        notes += _check_ensemble(config, spec, problems)
    if platform != ENGINE:
        check_sizes(spec, problems)
    problems.raise_any(given.source)
    is_open = platform == ENGINE and not given.sets_batch
    return Configured(spec, tuple(notes), is_open, given.source)


def _check_platform(config: Any, platform: str, python_steps: bool, problems: Problems) -> list[str]:
    notes = []
    backends, platforms = {
        ENGINE: (_BACKENDS, _PLATFORMS),
        PYTHON: (("", BACKENDS[PYTHON]), ("", PYTHON)),
        ENSEMBLE: (("",), ("", ENSEMBLE)),
    }[platform]
    fields = (
        ("backend", backends),
        ("platform", platforms),
        ("runtime", backends),
    )
    for field, known in fields:
        value = getattr(config, field)
        if value not in known:
            problems.add(field, repr(value), " or ".join(each or "nothing" for each in known))
        elif platform == ENGINE and value and not value.startswith(BACKENDS[ENGINE]):
            notes.append(f"{field} {value!r}: Ridgeline builds and runs the engine")
    if platform == PYTHON and not python_steps:
        problems.add("backend", "a model that is Python code", "python steps to be allowed: --python-steps")
    return notes


def _check_own(config: Any, spec: ModelSpec, problems: Problems) -> None:
    if not is_model_name(spec.name):
        problems.add("the model's name", repr(spec.name), "1 to 128 of A-Z a-z 0-9 . _ -")
    if config.name and config.name != spec.name:
        problems.add("name", repr(config.name), f"{spec.name!r}, as the folder is called, or nothing")
    if spec.max_batch_size < 0:
        problems.add("max_batch_size", spec.max_batch_size, "0 or more")
    file = spec.default_model_filename
    if "/" in file or "\\" in file or "\0" in file or file in (".", ".."):
        problems.add("default_model_filename", repr(file), "the name of a file in a version's folder")
    for tag in spec.metric_tags:
        if not _TAG.fullmatch(tag) or tag in _OWN_LABELS:
            problems.add("metric_tags", repr(tag), f"letters, digits and _, and not {', '.join(_OWN_LABELS)}")


def _check_told(spec: ModelSpec, given: Given, problems: Problems) -> None:
    """What an engine cannot say: all of other models, and what a step takes or gives."""
    is_engine = spec.platform == ENGINE
    sides = (
        ("input", spec.inputs, not is_engine or spec.preprocess),
        ("output", spec.outputs, not is_engine or spec.postprocess),
    )
    for side, tensors, is_needed in sides:
        if is_needed and not tensors:
            problems.add(side, "none", "all of them: only an engine can say them itself")
        for each in tensors:
            if is_needed and not each.datatype:
                problems.add(f"{side} {each.name!r}.data_type", "none", "its type")
    steps = " and ".join(filter(None, (spec.preprocess, spec.postprocess)))
    if steps and not is_engine:
        problems.add("the folder", f"{steps} beside a model that is no engine", "an engine, or no steps")
    elif steps and not given.sets_batch:
        problems.add("max_batch_size", "none", "a number: the engine's inputs are not those of the model")


def _check_ensemble(config: Any, spec: ModelSpec, problems: Problems) -> list[str]:
    assert spec.ensemble is not None, "its platform says so"
    for field in ("instance_group", "model_warmup"):
        if len(getattr(config, field)):
            problems.add(field, "some", "none: the ensemble's steps have their own")
    return check_ensemble(spec.ensemble, list(spec.inputs), list(spec.outputs), problems)
