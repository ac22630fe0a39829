"""Lays out the repository that `ridge serve` reads: the recogniser of `ridge demo`, with the steps in ocr/.

    python make_repository.py [FOLDER] [--model FILE]

The model is fetched into FOLDER if it is not there yet; the repository is FOLDER/repository.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

import onnx

from ridgeline.cli.demo_models import DEMO_MODELS, demo_files

STEPS = Path(__file__).with_name("ocr")


def main() -> None:
    parser = argparse.ArgumentParser(description="a repository with a trained recogniser of text")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("ridge-demo"), metavar="FOLDER")
    parser.add_argument("--model", type=Path, metavar="FILE", help="the recogniser, if it is already here")
    arguments = parser.parse_args()
    model = arguments.model or _fetched(arguments.folder)
    print(make_repository(model, arguments.folder / "repository"))


def make_repository(model: Path, repository: Path) -> Path:
    """`repository/ocr` with version 1 of the model. Again: a server that polls sees whole files only."""
    folder = repository / "ocr"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    for step in STEPS.iterdir():
        if step.is_file():
            _put(folder / step.name, step.read_bytes())
    _put(folder / "characters.txt", _characters(model).encode())
    shutil.copyfile(model, folder / "1" / "model.onnx.part")
    os.replace(folder / "1" / "model.onnx.part", folder / "1" / "model.onnx")
    return repository


def _fetched(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    files = demo_files(folder, wheel=None, tell=print)
    return next(files[each] for each in DEMO_MODELS if each.title == "recogniser")


def _characters(model: Path) -> str:
    """A line for each class of the recogniser, which has them in its metadata."""
    metadata = {each.key: each.value for each in onnx.load(model, load_external_data=False).metadata_props}
    return metadata["character"]


def _put(path: Path, content: bytes) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(content)
    os.replace(part, path)


if __name__ == "__main__":
    main()
