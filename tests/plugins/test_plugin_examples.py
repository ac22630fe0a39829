"""The worked examples: packages that bring ops through their entry points, and pages whose blocks run."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from plugin_models import register_haar, wavelet

import ridgeline
from ridgeline.cli.main import main
from ridgeline.errors import PluginError
from ridgeline.kernels.cpp.compiler import find_compiler
from ridgeline.plugins import CATALOG
from ridgeline.plugins.entry_points import load_plugins

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIMIT_S = 300


def blocks(page: Path, language: str) -> str:
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return "\n".join(text for name, text in found if name == language)


def write_distribution(site: Path, name: str, entry: str, version: str = "1.0") -> None:
    """What an installer leaves of a package, besides its modules."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[ridgeline.plugins]\nacme = {entry}\n")


Installed = Callable[..., Path]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that packages can be put into, and that this process looks for plugins in."""
    folder = tmp_path / "site"
    folder.mkdir()
    modules = set(sys.modules)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(tmp_path)
    load_plugins.cache_clear()
    yield folder
    load_plugins.cache_clear()
    CATALOG.problems.clear()
    for name in set(sys.modules) - modules:
        if name.startswith("acme"):
            del sys.modules[name]


def put_example(site: Path, name: str) -> Path:
    folder = EXAMPLES / name
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    write_distribution(site, project["name"], project["entry-points"]["ridgeline.plugins"]["acme"])
    for module in folder.glob("*.py"):
        shutil.copy(module, site)
    return folder / "README.md"


def ridge(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(str(end.value.code or 0))


def test_a_package_installed_from_a_folder_brings_an_op(tmp_path: Path) -> None:
    if not importlib.util.find_spec("pip") or not importlib.util.find_spec("setuptools"):
        pytest.skip("pip and setuptools are not installed")
    shutil.copytree(EXAMPLES / "01_python_op", tmp_path / "package")
    install = ["pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", "site"]
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    run(["-m", *install, "./package"], tmp_path, **quiet)
    where = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    script = "import sys, ridgeline\nassert 'acme_median' not in sys.modules, 'loaded by the import'\n"
    script += blocks(EXAMPLES / "01_python_op" / "README.md", "python")
    script += "\nridgeline.load('denoise.ridge').run({'x': x})"
    run(["-c", script], tmp_path, PYTHONPATH=where)
    without = run(["-c", "import ridgeline; ridgeline.load('denoise.ridge')"], tmp_path, fails=True)
    assert "this engine needs plugins that are not here" in without
    assert "acme-median 1.0, for acme.signal::MedianFilter" in without
    assert "pip install acme-median==1.0" in without


def run(words: list[str], folder: Path, *, fails: bool = False, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=os.environ | environment, capture_output=True, text=True,
        check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert bool(done.returncode) == fails, done.stderr
    return done.stderr


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("0*")))
def test_the_blocks_of_an_example_run(name: str, site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "03_cpp_op" and find_compiler() is None:
        pytest.skip("no C++ compiler")
    page = put_example(site, name)
    exec(compile(blocks(page, "python"), str(page), "exec"), {"__name__": name})
    for line in blocks(page, "console").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        assert words[0] == "ridge"
        assert ridge(*words[1:]) == 0, capsys.readouterr().err
    assert "acme" in capsys.readouterr().out


def test_plugins_are_listed_with_their_problems(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_example(site, "03_cpp_op")
    (site / "acme_broken.py").write_text("import acme_that_is_not_there\n")
    write_distribution(site, "acme-broken", "acme_broken", "0.3")
    assert ridge("plugins") == 0
    table = capsys.readouterr().out
    for words in ("acme-softmax", "acme.softmax.cpp", "acme-broken", "ModuleNotFoundError"):
        assert words in table
    assert ridge("plugins", "--json") == 0
    rows = {row["plugin"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["acme-softmax"]["tactics"] == ["acme.softmax.cpp"]
    assert "acme_that_is_not_there" in rows["acme-broken"]["problem"]
    assert rows["acme-broken"]["version"] == "0.3"


def test_a_plugin_that_fails_half_way_brings_nothing(site: Path, tmp_path: Path) -> None:
    (site / "acme_half.py").write_text(
        "from plugin_models import register_haar\nregister_haar(plugin=None)\nraise RuntimeError('half')\n"
    )
    write_distribution(site, "acme-half", "acme_half")
    load_plugins()
    assert not CATALOG.ops
    assert list(CATALOG.problems.values()) == ["failed: RuntimeError: half"]


def test_an_engine_whose_plugin_fails_to_import_says_so(site: Path, tmp_path: Path) -> None:
    plugin = ridgeline.plugins.Plugin("acme-half", "1.0")
    register_haar(plugin=plugin)
    options: dict[str, Any] = {"level": 0, "threads": 1, "profiles": {"x": (2, 64)}}
    path = ridgeline.build(wavelet(), **options).save(tmp_path / "e.ridge")
    ridgeline.plugins.unregister("acme-half")
    (site / "acme_half.py").write_text("raise RuntimeError('half')\n")
    write_distribution(site, "acme-half", "acme_half")
    load_plugins.cache_clear()
    with pytest.raises(
        PluginError, match=r"acme-half 1\.0, for acme\.dsp::Haar; it failed: RuntimeError: half"
    ):
        ridgeline.load(path)


@pytest.mark.parametrize(("folder", "name"), [("01_python_op", "acme-median"), ("03_cpp_op", "acme-softmax")])
def test_what_a_module_brings_belongs_to_its_package_also_where_it_is_imported_by_hand(
    folder: str, name: str, site: Path
) -> None:
    put_example(site, folder)
    module = importlib.import_module(name.replace("-", "_"))
    if hasattr(module, "register"):
        module.register()
    before = CATALOG.rows()
    load_plugins()
    assert CATALOG.rows() == before
    assert [(row.plugin, row.version, row.problem) for row in before] == [(name, "1.0", "")]
