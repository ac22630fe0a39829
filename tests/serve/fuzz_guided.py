"""Damaged input that coverage guides: `python tests/serve/fuzz_guided.py body -max_total_time=200`.

The name is that of a target: body, grpc or config. Needs atheris (`pip install atheris`, where there is one);
the suite and `fuzz_http.py` do not. Options after the name are libFuzzer's. It ends with a traceback, and
keeps the input in a file, if anything but the one error of that reader escapes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import atheris

with atheris.instrument_imports(include=["ridgeline.serve"]):
    from fuzz_http import LIMITS, SEEDS, check_codec

    from ridgeline.serve.config.text import ConfigError, parse_config
    from ridgeline.serve.errors import RequestError
    from ridgeline.serve.grpc.codec import decode_request
    from ridgeline.serve.protocol import messages

LENGTH_BYTES = 2  # of the header, in front of a body
NO_LENGTH = 0xFFFF


def body(data: bytes) -> None:
    """The body of a request over HTTP, behind the length of its header."""
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    check_codec(data[LENGTH_BYTES:], None if length == NO_LENGTH else length)


def grpc(data: bytes) -> None:
    """A ModelInferRequest."""
    try:
        decode_request(data, LIMITS)
    except RequestError:
        return


def config(data: bytes) -> None:
    """The text of a config.pbtxt."""
    try:
        parse_config(data.decode("utf-8", "replace"))
    except ConfigError:
        return


TARGETS: dict[str, Callable[[bytes], None]] = {"body": body, "grpc": grpc, "config": config}


CONFIGS = (
    "max_batch_size: 8 dynamic_batching { preferred_batch_size: [4, 8] max_queue_delay_microseconds: 100 }",
    'input [ { name: "x" data_type: TYPE_FP32 dims: [-1, 3] } ] output [ { name: "y" dims: [2] } ]',
    "instance_group { count: 2 kind: KIND_GPU gpus: 0 } version_policy { specific { versions: 1 } }",
    'parameters { key: "threads" value: { string_value: "2" } } platform: "onnxruntime_onnx"',
    'ensemble_scheduling { step [ { model_name: "a" input_map { key: "x" value: "y" } } ] }',
)


def seeds_of(name: str) -> list[bytes]:
    """What a target takes as it stands: a fuzzer that begins with nothing finds no braces for hours."""
    if name == "config":
        return [text.encode() for text in CONFIGS]
    if name == "grpc":
        made = messages.ModelInferRequest(model_name="m", id="1", raw_input_contents=[b"\1\2"])
        made.inputs.add(name="x", datatype="INT8", shape=[2])
        made.outputs.add(name="y").parameters["classification"].int64_param = 2
        typed = messages.ModelInferRequest(model_name="m")
        typed.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(1.5)
        return [made.SerializeToString(), typed.SerializeToString()]
    bodies = []
    for document, blobs in SEEDS:
        header = json.dumps(document).encode()
        length = NO_LENGTH if blobs is None else len(header)
        bodies.append(length.to_bytes(LENGTH_BYTES, "little") + header + (blobs or b""))
    return bodies


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"name one of {', '.join(TARGETS)}")
    name = sys.argv.pop(1)
    with TemporaryDirectory() as corpus:
        for i, seed in enumerate(seeds_of(name)):
            (Path(corpus) / str(i)).write_bytes(seed)
        atheris.Setup([*sys.argv, corpus], TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
