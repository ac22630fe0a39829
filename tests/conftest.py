"""What every test may lean on: seeds, a fixed thread count, a home in a temporary folder, a tiny model."""

from __future__ import annotations

import gc
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
import torch
from bench.zoo import ZOO, fetch

from passive_sessions import make_sessions_passive
from ridgeline.cli.main import main
from ridgeline.errors import RidgelineError
from ridgeline.runtime.device import current_device

# kernels in Triton run in its interpreter here, which must be on before Triton is first imported; those that
# are compiled are compiled in processes of their own
os.environ["TRITON_INTERPRET"] = "1"

SEED = 20
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
# two threads show races; beside another worker they would only share its core
THREADS = 1 if IS_WORKER else 2
# the longest first: a worker that takes one of them last leaves the other idle
LONGEST_FILES = (
    "test_readme.py", "test_transformers.py", "test_pages.py", "test_node_cases_a_to_l.py",
    "test_torch_guards.py", "test_triton_rows.py", "test_gpu_networks.py", "test_semantics.py",
    "test_torch_backend.py", "test_torch_transformers.py", "test_torch_compile.py", "test_torch_changes.py",
)  # fmt: skip
GC_EVERY = 5000  # new objects; with the default of 700, a tenth of an export's time is the collector's
USERS_HOME = "RIDGELINE_TESTS_USERS_HOME"
GPU_TESTS = Path(__file__).with_name("gpu")

TINY = """
<ir_version: 10, opset_import: ["": 20]>
tiny (float[{x}] x, float[8,3,3,3] conv_w, float[8] conv_b, float[10,8] fc_w, float[10] fc_b)
  => (float[{n},10] y)
{{
  c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (x, conv_w, conv_b)
  r = Relu (c)
  g = GlobalAveragePool (r)
  f = Flatten <axis = 1> (g)
  y = Gemm <transB = 1> (f, fc_w, fc_b)
}}
"""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Only tests/gpu sees a GPU: the others speak of machines without one."""
    if item.path.is_relative_to(GPU_TESTS):
        return (yield)
    current_device.cache_clear()  # an earlier test may have seen it
    with patch("torch.cuda.is_available", return_value=False):
        return (yield)


def write_tiny_model(path: Path, x: str = "N,3,32,32") -> Path:
    """Conv, Relu, GlobalAveragePool, Flatten, Gemm with seeded weights; `x` is the input's shape as text."""
    model = ir.from_proto(onnx.parser.parse_model(TINY.format(x=x, n=x.split(",", 1)[0])))
    rng = np.random.default_rng(SEED)
    for weight in model.graph.inputs[1:]:
        array = rng.normal(size=weight.shape.numpy(), scale=0.3).astype(np.float32)
        weight.const_value = ir.tensor(array, name=weight.name)
        model.graph.inputs.remove(weight)
        model.graph.register_initializer(weight)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    path.write_bytes(proto.SerializeToString())
    return path


def pytest_configure(config: pytest.Config) -> None:
    """A test must neither read nor fill the user's caches. Workers inherit the folder of the main process."""
    config.option.loadscopereorder = False  # xdist would put files of many tests first, and long ones last
    if IS_WORKER:
        make_sessions_passive()
    else:
        home = tempfile.mkdtemp(prefix="ridgeline-tests-")
        os.environ[USERS_HOME] = os.environ.get("HOME", home)
        os.environ.update(HOME=home, XDG_CACHE_HOME=f"{home}/.cache")
        config.add_cleanup(partial(shutil.rmtree, home, ignore_errors=True))


def pytest_collection_finish() -> None:
    """What libraries and test files hold lives to the end: the collector need not look at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_EVERY)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in the order in which workers take them, which xdist keeps: see `pytest_configure`."""
    place = {name: i for i, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


@pytest.fixture(autouse=True)
def _same_start_for_every_test() -> None:
    random.seed(SEED)
    np.random.seed(SEED)
    torch.default_generator.manual_seed(SEED)
    if torch.cuda.is_available():  # without a GPU, `torch.manual_seed` keeps a stack trace for each call
        torch.cuda.manual_seed_all(SEED)
    torch.set_num_threads(THREADS)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small conv net as a file: ``x`` float[N,3,32,32] to ``y`` float[N,10]. Do not write to it."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.onnx")


@pytest.fixture(scope="session")
def trained() -> Callable[[str], Path]:
    """``trained("ppocr6_cls")``: the file of a model of `bench/zoo.py`, downloaded on the first run."""

    def find(name: str) -> Path:
        entry = next(entry for entry in ZOO if entry.name == name)
        try:
            # pip's settings may lie in the user's own home
            with patch.dict(os.environ, HOME=os.environ[USERS_HOME]):
                return fetch(entry)
        except RidgelineError as error:
            pytest.skip(f"{name} is not in .models/, and this machine is offline: {error.what}")

    return find


@pytest.fixture(scope="session")
def make_tiny_model() -> Callable[..., Path]:
    """``make_tiny_model(path, x="N,3,H,W")`` writes the same net with other input dims."""
    return write_tiny_model


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ridge(capsys: pytest.CaptureFixture[str], here: Path) -> Callable[..., tuple[int, str, str]]:
    """`ridge(...)` runs a command in this process, in an empty folder: (exit status, stdout, stderr)."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), captured.out, captured.err

    return run
