"""The options of `ridge bench` that say how to measure and what to write, read as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.arguments import Target, build_options
from ridgeline.cli.shared_options import BUILDING
from ridgeline.errors import OptionError

InputFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "--load-inputs",
        metavar="NAME=FILE",
        help="input from a .npy file, or the raw bytes of any other file; or FILE.npz for several",
    ),
]
SweepOption = Annotated[
    str, typer.Option(metavar="DIM=1..64", help="run at each size of a dim: batch=1..64, or N=1,2,5")
]
Rebuild = Annotated[
    bool, typer.Option("--rebuild", help="with --sweep: an engine for each size, not one for all")
]
AsCsv = Annotated[bool, typer.Option("--csv", help="the rows as CSV on stdout, nothing else there")]
_PANEL = "Measuring"
MEASURING: dict[str, Any] = {
    "duration": Annotated[
        float | None,
        typer.Option(metavar="S", rich_help_panel=_PANEL, help="seconds to measure each for (default: 3)"),
    ],
    "warmup": Annotated[
        float | None,
        typer.Option(metavar="MS", rich_help_panel=_PANEL, help="ms to warm each up (default: 200)"),
    ],
    "iterations": Annotated[
        int | None,
        typer.Option(
            metavar="N", rich_help_panel=_PANEL, help="queries of each context at least (default: 10)"
        ),
    ],
    "concurrency": Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            "--streams",
            metavar="N",
            rich_help_panel=_PANEL,
            help="contexts side by side, each in a thread, on a GPU with a stream each (default: 1)",
        ),
    ],
    "avg_runs": Annotated[
        int | None,
        typer.Option(metavar="N", rich_help_panel=_PANEL, help="list averages of N queries in a row as well"),
    ],
    "percentile": Annotated[
        list[str] | None,
        typer.Option(metavar="P,…", rich_help_panel=_PANEL, help="percentiles (default: 90,95,99)"),
    ],
    "no_transfers": Annotated[
        bool,
        typer.Option("--no-transfers", rich_help_panel=_PANEL, help="inputs and outputs stay on the GPU"),
    ],
    "no_graph": Annotated[
        bool,
        typer.Option("--no-graph", rich_help_panel=_PANEL, help="GPU: queue steps one by one, no CUDA graph"),
    ],
}
_FILES = "Files"
EXPORTS: dict[str, Any] = {
    "export_times": Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=_FILES, help="every query: .csv or .json"),
    ],
    "export_output": Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=_FILES, help="the outputs: .npz or .json"),
    ],
    "export_profile": Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel=_FILES, help="a separate run, layer by layer: .csv or .json"
        ),
    ],
}
ADDED = BUILDING | {"target": Target} | MEASURING | EXPORTS


def take(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a build, the settings of the measurement, and the files to write."""
    from ridgeline.analyze.bench_export import ARRAYS, TABLES, require_suffix
    from ridgeline.analyze.bench_settings import BenchSettings

    read = {
        "duration_s": given["duration"],
        "warmup_ms": given["warmup"],
        "iterations": given["iterations"],
        "concurrency": given["concurrency"],
        "avg_runs": given["avg_runs"],
        "percentiles": parse_percentiles(given["percentile"]),
        "transfers": not given["no_transfers"],
        "graph": not given["no_graph"],
    }
    if given["avg_runs"] == 0:
        raise OptionError("--avg-runs is too small", got="0", want="1 or more")
    exports = {flag_of(name): given[name] for name in EXPORTS if given[name] is not None}
    for flag, path in exports.items():
        require_suffix(path, flag, ARRAYS if flag == "--export-output" else TABLES)
    return {
        "options": build_options({name: given[name] for name in BUILDING | {"target": Target}}),
        "settings": BenchSettings(**{name: value for name, value in read.items() if value is not None}),
        "exports": exports,
    }


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def parse_percentiles(given: Sequence[str] | None) -> tuple[float, ...] | None:
    """``["90,95", "99.9"]`` as three numbers, each once."""
    words = [word.strip() for text in given or () for word in text.split(",") if word.strip()]
    try:
        return tuple(dict.fromkeys(float(word) for word in words)) or None
    except ValueError:
        raise OptionError("--percentile is no number", got=" ".join(given or ()), want="90,95,99.9") from None


def require_no_more(flag: str, others: Mapping[str, bool]) -> None:
    """Raise if options were given that have no meaning beside this one."""
    found = [other for other, is_given in others.items() if is_given]
    if found:
        raise OptionError(f"{', '.join(found)} cannot be used beside {flag}", help="leave one of them out")
