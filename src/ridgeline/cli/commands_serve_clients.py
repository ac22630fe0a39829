"""`ridge infer` and `ridge loadtest`: one request to a server, and as many as it bears."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Annotated, Any

import typer

from ridgeline.cli.arguments import AsJson, parse_pairs
from ridgeline.cli.exits import FAILED_GATE
from ridgeline.cli.files import make_folder, require_distinct, require_writable, write_atomically
from ridgeline.cli.progress import StageProgress
from ridgeline.cli.render import emit, say_error, talk
from ridgeline.errors import OptionError

ARRIVALS = ("poisson", "constant")
UNITS_US = {"us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
_connecting = partial(typer.Option, rich_help_panel="Connection")
_sending = partial(typer.Option, rich_help_panel="Inputs")
_measuring = partial(typer.Option, rich_help_panel="Measuring")

Url = Annotated[
    str, typer.Argument(metavar="URL", help="host and port, such as localhost:8000", show_default=False)
]
ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="name of the model in the server", show_default=False)
]
Version = Annotated[
    str, typer.Option(metavar="N", help="version of the model (default: the server's choice)")
]
Headers = Annotated[
    list[str] | None,
    _connecting("--header", metavar="NAME=VALUE", help="header of every request; repeatable"),
]
KeyFile = Annotated[
    Path | None, _connecting("--key-file", metavar="FILE", help="file whose first line is the API key")
]
Ca = Annotated[
    Path | None, _connecting("--ca", metavar="FILE", help="certificates to trust, for a server with TLS")
]
ServedInputs = Annotated[
    list[str] | None,
    _sending(
        "--input", metavar="NAME=FILE", help="a .npy file, or raw bytes of any other; or FILE.npz for several"
    ),
]
JsonData = Annotated[
    Path | None, _sending("--data", metavar="FILE.json", help='inputs as JSON: {"NAME": [[…]]}, or a request')
]
ServedShapes = Annotated[
    list[str] | None,
    _sending("--shapes", metavar="NAME=SHAPE", help="sizes of a random input: x=1x3x48x320; repeatable"),
]
Batch = Annotated[
    int | None, _sending("--batch", min=1, metavar="N", help="rows of the random inputs (default: 1)")
]
ServedSeed = Annotated[int, _sending("--seed", min=0, help="seed of the random inputs")]


def infer(
    url: Url,
    model: ModelName,
    input: ServedInputs = None,
    data: JsonData = None,
    shapes: ServedShapes = None,
    batch: Batch = None,
    seed: ServedSeed = 0,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="folder for the outputs, one .npy file each")
    ] = None,
    version: Version = "",
    grpc: Annotated[bool, _connecting("--grpc", help="over gRPC; its port is 8001 if URL has none")] = False,
    header: Headers = None,
    key_file: KeyFile = None,
    ca: Ca = None,
    json: AsJson = False,
) -> None:
    """Send one request to a server of the Open Inference Protocol, and show the outputs.

    Inputs that are not given are random. Any server of the protocol will do: ridge serve, Triton, KServe.

    Examples:

      ridge infer localhost:8000 resnet

      ridge infer localhost:8000 resnet --input x=image.npy --output results

      ridge infer localhost:8001 resnet --batch 8 --grpc
    """
    from ridgeline.cli.arrays import file_stem, save_array
    from ridgeline.cli.draw_loadtest import draw_inference
    from ridgeline.cli.serve_inputs import collect_arrays
    from ridgeline.serve.client_rows import Inference, output_rows

    folder = make_folder(output) if output else None
    with _client(url, header, key_file, ca, grpc=grpc) as client:
        info = client.metadata(model, version)
        arrays = collect_arrays(info, input, data, shapes, batch=batch, seed=seed)
        began = perf_counter_ns()
        outputs = client.infer(model, arrays, version=version)
        took_us = (perf_counter_ns() - began) / 1e3
        address = str(client.address)
    files: dict[str, str] = {}
    for name, array in outputs.items() if folder else ():
        assert folder is not None, "there are files only in a folder"
        path = folder / f"{file_stem(name, taken=set(files.values()))}.npy"
        write_atomically(path, partial(save_array, array=array))
        files[name] = str(path)
    if folder:
        talk.print(f"{len(files)} file(s) written to {folder}", style="dim")
    made = Inference(address, model, version, took_us, output_rows(info, outputs, files))
    emit(made, draw_inference, as_json=json, schema="inference")


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
    duration: Annotated[
        float, _measuring(min=0.1, max=86400, metavar="S", help="seconds at each level")
    ] = 5.0,
    warmup: Annotated[
        float, _measuring(min=0, max=3600, metavar="S", help="seconds before each level")
    ] = 1.0,
    arrivals: Annotated[
        str, _measuring(metavar="|".join(ARRIVALS), help="open loop: at random, as of many users, or evenly")
    ] = "poisson",
    connections: Annotated[
        int, _measuring(min=1, max=20000, metavar="N", help="open loop: connections at most")
    ] = 512,
    input: ServedInputs = None,
    data: JsonData = None,
    shapes: ServedShapes = None,
    batch: Batch = None,
    seed: ServedSeed = 0,
    version: Version = "",
    header: Headers = None,
    key_file: KeyFile = None,
    ca: Ca = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="the levels as CSV")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="latency against throughput, as a page")
    ] = None,
    json: AsJson = False,
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
    from ridgeline.cli.serve_inputs import collect_arrays
    from ridgeline.serve.loadtest import Target, highest_rate, run_levels
    from ridgeline.serve.loadtest_levels import parse_levels
    from ridgeline.serve.loadtest_page import load_page
    from ridgeline.serve.loadtest_rows import table_text
    from ridgeline.serve.loadtest_run import LoadSettings

    _require_one({"--concurrency": concurrency, "--rate": rate, "--p99-below": p99_below})
    if arrivals not in ARRIVALS:
        raise OptionError(f"--arrivals has no {arrivals!r}", want=" or ".join(ARRIVALS))
    bound_us = parse_duration_us(p99_below, option="--p99-below") if p99_below else None
    option = "--rate" if rate else "--concurrency"
    levels = parse_levels(rate or concurrency or "1..32", option=option)
    written = {"--csv": csv, "--plot": plot}
    for flag, path in written.items():
        if path is not None:
            require_writable(path, option=flag)
    require_distinct(written, {})
    settings = LoadSettings(
        duration_s=duration, warmup_s=warmup, arrivals=arrivals, connections=connections, seed=seed
    )
    with _client(url, header, key_file, ca) as client, StageProgress(talk) as progress:
        arrays = collect_arrays(client.metadata(model, version), input, data, shapes, batch=batch, seed=seed)
        target = Target(model, version, arrays, _headers(header, key_file), ca)
        on_level = partial(progress, "measuring")
        if bound_us is not None:
            report = highest_rate(client, target, bound_us, settings, on_level=on_level)
        else:
            is_open = bool(rate)
            report = run_levels(client, target, levels, settings, is_open=is_open, on_level=on_level)
    for path, make in ((csv, table_text), (plot, load_page)):
        if path is not None:
            content = make(report).encode("utf-8")
            write_atomically(path, lambda file, content=content: file.write(content))  # type: ignore[misc]
            talk.print(f"wrote {path}", style="dim")
    emit(report, draw_load, as_json=json, schema="load_test")
    if bound_us is not None and report.best_rps is None:
        say_error(f"no rate keeps p99 within {p99_below}")
        raise typer.Exit(FAILED_GATE)


def parse_duration_us(text: str, *, option: str) -> float:
    """``20ms``, ``800us`` or ``1.5s``."""
    found = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(us|µs|ms|s)\s*", text)
    if found is None or not float(found[1]):
        raise OptionError(f"{option} does not read as a time", got=text[:80], want="20ms, 800us or 1.5s")
    return float(found[1]) * UNITS_US[found[2]]


def _require_one(given: dict[str, str]) -> None:
    found = [flag for flag, value in given.items() if value]
    if len(found) > 1:
        raise OptionError(f"{' and '.join(found)} cannot be used together", help="give one of them")


def _client(
    url: str, header: Sequence[str] | None, key_file: Path | None, ca: Path | None, *, grpc: bool = False
) -> Any:
    from ridgeline.serve.client import Client

    headers = _headers(header, key_file)
    if not grpc:
        return Client(url, headers=headers, ca=ca)
    from ridgeline.serve.client_grpc import GrpcClient

    return GrpcClient(url, headers=headers, ca=ca)


def _headers(given: Sequence[str] | None, key_file: Path | None) -> dict[str, str]:
    from ridgeline.cli.serve_inputs import read_key

    headers = parse_pairs(given or (), option="--header", example="--header X-Team=search")
    for name, value in headers.items():
        if not (name + value).isascii() or not (name + value).isprintable() or ":" in name:
            raise OptionError("--header holds characters that a header cannot", got=f"{name}={value}")
    if key_file is not None:
        headers["Authorization"] = f"Bearer {read_key(key_file)}"
    return headers
