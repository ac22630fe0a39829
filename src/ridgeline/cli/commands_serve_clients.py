"""`ridge infer` and `ridge loadtest`: one request to a server, and as many as it bears."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.arguments import AsJson
from ridgeline.cli.exits import FAILED_GATE
from ridgeline.cli.files import make_folder, require_distinct, require_writable, write_atomically
from ridgeline.cli.progress import StageProgress
from ridgeline.cli.render import emit, say_error, talk
from ridgeline.cli.serve_options import ADDED, Grpc, ModelName, Url, take
from ridgeline.cli.shared_options import with_options
from ridgeline.errors import OptionError

if TYPE_CHECKING:
    import numpy as np

ARRIVALS = ("poisson", "constant")
UNITS_US = {"us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
_measuring = partial(typer.Option, rich_help_panel="Measuring")
MEASURING: dict[str, Any] = {
    "duration": Annotated[
        float | None,
        _measuring("--duration", min=0.01, max=86400, metavar="S", help="seconds at each level (default: 5)"),
    ],
    "warmup": Annotated[
        float | None,
        _measuring("--warmup", min=0, max=3600, metavar="S", help="seconds before each level (default: 1)"),
    ],
    "arrivals": Annotated[
        str | None,
        _measuring(
            "--arrivals",
            metavar="|".join(ARRIVALS),
            help="open loop: at random, as of many users, or evenly (default: poisson)",
        ),
    ],
    "connections": Annotated[
        int | None,
        _measuring(
            "--connections",
            min=1,
            max=20000,
            metavar="N",
            help="open loop: connections at most (default: 512)",
        ),
    ],
}


def _take_measuring(given: dict[str, Any]) -> dict[str, Any]:
    names = {"duration": "duration_s", "warmup": "warmup_s"}
    asked = {names.get(name, name): given[name] for name in MEASURING if given[name] is not None}
    if asked.get("arrivals", ARRIVALS[0]) not in ARRIVALS:
        raise OptionError(f"--arrivals has no {asked['arrivals']!r}", want=" or ".join(ARRIVALS))
    return take(given) | {"settings": {"seed": given["seed"] or 0, **asked}}


def _with_load_options(command: Any) -> Any:
    return with_options(command, MEASURING | ADDED, _take_measuring)


def _with_request_options(command: Any) -> Any:
    return with_options(command, ADDED, take)


@_with_request_options
def infer(
    url: Url,
    model: ModelName,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="folder for the outputs, one .npy file each")
    ] = None,
    grpc: Grpc = False,
    json: AsJson = False,
    *,
    options: Any,
) -> None:
    """Send one request to a server of the Open Inference Protocol, and show the outputs.

    Inputs that are not given are random. Any server of the protocol will do: ridge serve, Triton, KServe.

    Examples:

      ridge infer localhost:8000 resnet

      ridge infer localhost:8000 resnet --input x=image.npy --output results

      ridge infer localhost:8001 resnet --batch 8 --grpc
    """
    from ridgeline.cli.draw_loadtest import draw_inference
    from ridgeline.serve.clients.rows import Inference, output_rows

    folder = make_folder(output) if output else None
    version = options.version or ""
    with options.client(url, grpc=grpc) as client:
        info = client.metadata(model, version)
        arrays = options.arrays(info)
        began = perf_counter_ns()
        outputs = client.infer(model, arrays, version=version)
        took_us = (perf_counter_ns() - began) / 1e3
    files = _write(outputs, folder) if folder else {}
    made = Inference(str(client.address), model, version, took_us, output_rows(info, outputs, files))
    emit(made, draw_inference, as_json=json, schema="inference")


def _write(outputs: Mapping[str, np.ndarray], folder: Path) -> dict[str, str]:
    from ridgeline.cli.arrays import file_stem, save_array

    files: dict[str, str] = {}
    for name, array in outputs.items():
        path = folder / f"{file_stem(name, taken=set(files.values()))}.npy"
        write_atomically(path, partial(save_array, array=array))
        files[name] = str(path)
    talk.print(f"{len(files)} file(s) written to {folder}", style="dim")
    return files


@_with_load_options
def loadtest(
    url: Url,
    model: ModelName,
    concurrency: Annotated[
        str, _measuring(metavar="1..64", help="closed loop: so many clients, each with one request at a time")
    ] = "",
    rate: Annotated[
        str, _measuring(metavar="100..2000", help="open loop: so many requests per second, come what may")
    ] = "",
    p99_below: Annotated[
        str, _measuring("--p99-below", metavar="20ms", help="find the highest rate whose p99 is within this")
    ] = "",
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="the levels as CSV")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="latency against throughput, as a page")
    ] = None,
    json: AsJson = False,
    *,
    options: Any,
    settings: Any,
) -> None:
    """Measure a server under load: latency percentiles, throughput, errors, level by level.

    In an open loop a request's latency counts from the time it was due, so that queueing is not hidden. The
    table has the server's own times beside, where it tells them. Without a level: --concurrency 1..32.
    Exit status 3 when no rate keeps --p99-below.

    Examples:

      ridge loadtest localhost:8000 resnet --concurrency 1..64

      ridge loadtest localhost:8000 resnet --rate 100..2000 --duration 10 --plot curve.html

      ridge loadtest localhost:8000 resnet --p99-below 20ms
    """
    from ridgeline.cli.draw_loadtest import draw_load
    from ridgeline.serve.loadtest.run import LoadSettings

    _require_one({"--concurrency": concurrency, "--rate": rate, "--p99-below": p99_below})
    bound_us = parse_duration_us(p99_below, option="--p99-below") if p99_below else None
    _require_places({"--csv": csv, "--plot": plot})
    if not (rate or p99_below):
        _require_open(settings)
    report = _run(url, model, (concurrency, rate), bound_us, options, LoadSettings(**settings))
    _export(report, csv, plot)
    emit(report, draw_load, as_json=json, schema="load_test")
    if bound_us is not None and report.best_rps is None:
        say_error(f"no rate keeps p99 within {p99_below}")
        raise typer.Exit(FAILED_GATE)


def _run(
    url: str, model: str, levels: tuple[str, str], bound_us: float | None, options: Any, settings: Any
) -> Any:
    """`levels` are those of a closed loop, and those of an open one; at most one of them is given."""
    from ridgeline.serve.loadtest.levels import parse_levels
    from ridgeline.serve.loadtest.loadtest import Target, highest_rate, run_levels

    concurrency, rate = levels
    wanted = parse_levels(rate or concurrency or "1..32", option="--rate" if rate else "--concurrency")
    version = options.version or ""
    with options.client(url) as client, StageProgress(talk) as progress:
        arrays = options.arrays(client.metadata(model, version))
        target = Target(model, version, arrays, options.headers(), options.ca)
        on_level = partial(progress, "measuring")
        if bound_us is not None:
            return highest_rate(client, target, bound_us, settings, on_level=on_level)
        return run_levels(client, target, wanted, settings, is_open=bool(rate), on_level=on_level)


def _export(report: Any, csv: Path | None, plot: Path | None) -> None:
    from ridgeline.serve.loadtest.page import load_page
    from ridgeline.serve.loadtest.rows import table_text

    for path, make in ((csv, table_text), (plot, load_page)):
        if path is not None:
            content = make(report).encode("utf-8")
            write_atomically(path, lambda file, content=content: file.write(content))  # type: ignore[misc]
            talk.print(f"wrote {path}", style="dim")


def parse_duration_us(text: str, *, option: str) -> float:
    """``20ms``, ``800us`` or ``1.5s``."""
    found = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(us|µs|ms|s)\s*", text)
    if found is None or not float(found[1]):
        raise OptionError(f"{option} does not read as a time", got=text[:80], want="20ms, 800us or 1.5s")
    return float(found[1]) * UNITS_US[found[2]]


def _require_one(given: Mapping[str, str]) -> None:
    found = [flag for flag, value in given.items() if value]
    if len(found) > 1:
        raise OptionError(f"{' and '.join(found)} cannot be used together", help="give one of them")


def _require_open(asked: Mapping[str, Any]) -> None:
    """A closed loop has as many connections as clients, and no arrivals."""
    for name in ("arrivals", "connections"):
        if name in asked:
            raise OptionError(
                f"--{name} means nothing in a closed loop", help="--rate or --p99-below makes an open one"
            )


def _require_places(written: Mapping[str, Path | None]) -> None:
    for flag, path in written.items():
        if path is not None:
            require_writable(path, option=flag)
    require_distinct(written, {})
