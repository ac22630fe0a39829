"""Writes serve/protocol/inference.desc from the .proto files beside it, with grpcio-tools."""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

FOLDER = Path(__file__).parents[1] / "src" / "ridgeline" / "serve" / "protocol"


def compile_to(target: Path) -> None:
    files = sorted(path.name for path in FOLDER.glob("*.proto"))
    arguments = ["protoc", f"--proto_path={FOLDER}", f"--descriptor_set_out={target}", "--include_imports"]
    if protoc.main([*arguments, *files]):
        sys.exit(f"protoc refused the files of {FOLDER}")


if __name__ == "__main__":
    compile_to(FOLDER / "inference.desc")
