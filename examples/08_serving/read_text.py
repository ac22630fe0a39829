"""Reads text from images through a server: python read_text.py IMAGE… [--server HOST:PORT] [--key-file FILE]

Needs only Python: a request is a line of JSON, and the images behind it as they are.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path


def read_text(connection: HTTPConnection, image: bytes, key: str = "") -> tuple[str, float]:
    """What the model `ocr` reads, and how sure it is, from 0 to 1."""
    tensor = len(image).to_bytes(4, "little") + image  # an element of BYTES: its length, then itself
    head = {
        "inputs": [
            {
                "name": "IMAGE",
                "shape": [1],
                "datatype": "BYTES",
                "parameters": {"binary_data_size": len(tensor)},
            }
        ]
    }
    told = json.dumps(head).encode()
    headers = {"Inference-Header-Content-Length": str(len(told))} | ({"X-API-Key": key} if key else {})
    connection.request("POST", "/v2/models/ocr/infer", told + tensor, headers)
    response = connection.getresponse()
    answer = json.loads(response.read())
    if response.status != 200:
        raise ValueError(answer["error"])
    outputs = {each["name"]: each["data"][0] for each in answer["outputs"]}
    return outputs["TEXT"], float(outputs["CONFIDENCE"])


def read_key(file: Path) -> str:
    """The first line that is no comment. Errors name the file: a key is not to be seen on a terminal."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    key = next((line.strip() for line in lines if line.strip() and not line.startswith("#")), "")
    if not key or not key.isascii() or not key.isprintable():
        raise ValueError(f"{file} holds no key")
    return key


def main() -> None:
    parser = argparse.ArgumentParser(description="reads a line of text from each image")
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE")
    parser.add_argument("--server", default="localhost:8000", metavar="HOST:PORT")
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="the key, if the server wants one")
    arguments = parser.parse_args()
    try:
        key = read_key(arguments.key_file) if arguments.key_file else ""
        with closing(HTTPConnection(arguments.server, timeout=60)) as connection:
            for image in arguments.images:
                text, confidence = read_text(connection, image.read_bytes(), key)
                print(f"{image}  {confidence:.2f}  {text}")
    except (OSError, HTTPException, ValueError) as error:
        raise SystemExit(f"{arguments.server}: {str(error).strip()}") from None
    except (KeyError, IndexError, TypeError) as error:
        raise SystemExit(f"{arguments.server}: the answer does not read: {error!r}") from None


if __name__ == "__main__":
    main()
