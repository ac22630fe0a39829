"""Reads text from images through a server: python read_text.py IMAGE… [--server HOST:PORT] [--key-file FILE]

Needs only Python: a request is a line of JSON, and the images behind it as they are.
"""

from __future__ import annotations

import argparse
import json
from http.client import HTTPConnection
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
    return outputs["TEXT"], outputs["CONFIDENCE"]


def main() -> None:
    parser = argparse.ArgumentParser(description="reads a line of text from each image")
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE")
    parser.add_argument("--server", default="localhost:8000", metavar="HOST:PORT")
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="the key, if the server wants one")
    arguments = parser.parse_args()
    key = arguments.key_file.read_text(encoding="utf-8").strip() if arguments.key_file else ""
    connection = HTTPConnection(arguments.server, timeout=60)
    try:
        for image in arguments.images:
            text, confidence = read_text(connection, image.read_bytes(), key)
            print(f"{image}  {confidence:.2f}  {text}")
    except (OSError, ValueError) as error:
        raise SystemExit(f"{arguments.server}: {error}") from error
    finally:
        connection.close()


if __name__ == "__main__":
    main()
