"""The options that `ridge infer` and `ridge loadtest` share: how a server is reached, and what it is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.arguments import parse_pairs
from ridgeline.errors import OptionError

if TYPE_CHECKING:
    import numpy as np

_connecting = partial(typer.Option, rich_help_panel="Connection")
_sending = partial(typer.Option, rich_help_panel="Inputs")

Url = Annotated[
    str, typer.Argument(metavar="URL", help="host and port, such as localhost:8000", show_default=False)
]
ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="name of the model in the server", show_default=False)
]
Grpc = Annotated[bool, _connecting("--grpc", help="over gRPC; its port is 8001 if URL has none")]
ADDED: dict[str, Any] = {
    "input": Annotated[
        list[str] | None,
        _sending(
            "--input",
            metavar="NAME=FILE",
            help="a .npy file, or raw bytes of any other; or FILE.npz for several",
        ),
    ],
    "data": Annotated[
        Path | None,
        _sending("--data", metavar="FILE.json", help='inputs as JSON: {"NAME": [[…]]}, or a request'),
    ],
    "shapes": Annotated[
        list[str] | None,
        _sending("--shapes", metavar="NAME=SHAPE", help="sizes of a random input: x=1x3x48x320; repeatable"),
    ],
    "batch": Annotated[
        int | None, _sending("--batch", min=1, metavar="N", help="rows of the random inputs (default: 1)")
    ],
    "seed": Annotated[
        int | None,
        _sending("--seed", min=0, metavar="N", help="seed of random inputs, and of arrivals (default: 0)"),
    ],
    "version": Annotated[
        str | None,
        _connecting("--version", metavar="N", help="version of the model (default: the server's choice)"),
    ],
    "header": Annotated[
        list[str] | None,
        _connecting("--header", metavar="NAME=VALUE", help="header of every request; repeatable"),
    ],
    "key_file": Annotated[
        Path | None, _connecting("--key-file", metavar="FILE", help="file whose first line is the API key")
    ],
    "ca": Annotated[
        Path | None,
        _connecting("--ca", metavar="FILE", help="certificates to trust, for a server with TLS"),
    ],
}


@dataclass(frozen=True)
class Asked:
    """What was given after those options."""

    input: list[str] | None
    data: Path | None
    shapes: list[str] | None
    batch: int | None
    seed: int | None
    version: str | None
    header: list[str] | None
    key_file: Path | None
    ca: Path | None

    def client(self, url: str, *, grpc: bool = False) -> Any:
        from ridgeline.serve.clients.client import Client

        if not grpc:
            if re.match(r"\s*grpcs?://", url, re.IGNORECASE):
                raise OptionError(
                    f"{url!r} is an address of gRPC, and this speaks HTTP", want="the port of HTTP",
                    help="ridge infer --grpc speaks gRPC; ridge loadtest speaks HTTP only",
                )  # fmt: skip
            return Client(url, headers=self.headers(), ca=self.ca)
        from ridgeline.serve.clients.over_grpc import GrpcClient

        return GrpcClient(url, headers=self.headers(), ca=self.ca)

    def headers(self) -> dict[str, str]:
        from ridgeline.cli.serve_inputs import read_key

        headers = parse_pairs(self.header or (), option="--header", example="--header X-Team=search")
        for name, value in headers.items():
            if not (name + value).isascii() or not (name + value).isprintable() or ":" in name:
                raise OptionError("--header holds characters that a header cannot", got=f"{name}={value}")
        if self.key_file is not None:
            headers["Authorization"] = f"Bearer {read_key(self.key_file)}"
        return headers

    def arrays(self, info: Any) -> dict[str, np.ndarray]:
        """For every input of the model: from files, or random."""
        from ridgeline.cli.serve_inputs import collect_arrays

        return collect_arrays(info, self.input, self.data, self.shapes, batch=self.batch, seed=self.seed or 0)


def take(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"options": Asked(**{field.name: given[field.name] for field in fields(Asked)})}
