"""The names and keywords other people's code relies on."""

from __future__ import annotations

import inspect
from importlib.metadata import version
from pathlib import Path

import pytest
from page_examples import run

import ridgeline
from ridgeline.errors import InternalError, OptionError, RidgelineError

PUBLIC = {
    "build",
    "compile",
    "load",
    "quantize",
    "register_op",
    "verify_engine",
    "write_report",
    "Engine",
    "errors",
    "onnx_backend",
    "__version__",
}
BUILD_KEYWORDS = {
    "target", "profiles", "precision", "level", "timing_cache", "lock",
    "verify", "deterministic", "workspace_bytes", "progress", "dynamic_shapes",
}  # fmt: skip


def test_public_names_are_there_and_listed() -> None:
    assert {name for name in PUBLIC if hasattr(ridgeline, name)} == PUBLIC
    assert set(dir(ridgeline)) >= PUBLIC
    assert set(ridgeline.__all__) >= PUBLIC - {"__version__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="biuld"):
        ridgeline.biuld  # noqa: B018 - the lookup is the test


@pytest.mark.parametrize("first", ["ridgeline.load", "ridgeline.Engine", "ridgeline.onnx_backend"])
def test_build_is_the_function_whatever_was_touched_first(first: str, tmp_path: Path) -> None:
    """A submodule of the same name hides it as soon as anything imports that."""
    code = f"import ridgeline; {first}; assert callable(ridgeline.build), ridgeline.build"
    done = run(["-c", code], tmp_path)
    assert done.returncode == 0, done.stderr


def test_version_is_the_distribution_s() -> None:
    assert ridgeline.__version__ == version("ridgeline")


def test_build_lists_its_keywords() -> None:
    parameters = inspect.signature(ridgeline.build).parameters
    keywords = {name for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert keywords >= BUILD_KEYWORDS


def test_a_mistyped_keyword_names_the_near_match(tiny_model: Path) -> None:
    with pytest.raises(OptionError, match=r"(?s)levle.*did you mean 'level'"):
        ridgeline.build(tiny_model, levle=0)


@pytest.mark.parametrize(
    "options",
    [{"level": 9}, {"verify": "maybe"}, {"target": "abacus"}, {"precision": "fp3"}, {"threads": -1}],
)
def test_an_unfit_value_is_an_option_error(tiny_model: Path, options: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        ridgeline.build(tiny_model, **options)


def test_every_error_of_the_user_is_one_family() -> None:
    classes = [
        c for _, c in inspect.getmembers(ridgeline.errors, inspect.isclass) if issubclass(c, Exception)
    ]
    assert all(issubclass(c, RidgelineError) for c in classes if c is not InternalError)
    assert not issubclass(InternalError, RidgelineError)


def test_onnx_backend_has_the_standard_doors() -> None:
    for door in ("prepare", "run_model", "supports_device"):
        assert callable(getattr(ridgeline.onnx_backend, door))
    assert ridgeline.onnx_backend.supports_device("CPU")
    assert not ridgeline.onnx_backend.supports_device("ABACUS")
