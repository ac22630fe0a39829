"""Files as the inputs of a request: texts and images as BYTES."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.cli.serve_inputs import collect_arrays
from ridgeline.errors import OptionError
from ridgeline.serve.clients.tensors import ModelInfo, TensorInfo


def info(*shape: int) -> ModelInfo:
    return ModelInfo("reader", ("1",), "python", (TensorInfo("IMAGE", "BYTES", shape),), ())


@pytest.mark.parametrize("shape", [(1,), (-1,), (-1, 1), ()])
def test_a_file_is_one_element(tmp_path: Path, shape: tuple[int, ...]) -> None:
    file = tmp_path / "photo.png"
    file.write_bytes(b"\x89PNG\0")
    made = collect_arrays(info(*shape), [f"IMAGE={file}"], None, None, batch=None, seed=0)
    assert made["IMAGE"].shape == (1,) * len(shape)
    assert made["IMAGE"].item() == b"\x89PNG\0"


def test_several_elements_do_not_come_of_one_file(tmp_path: Path) -> None:
    file = tmp_path / "photo.png"
    file.write_bytes(b"\x89PNG\0")
    with pytest.raises(OptionError, match="several texts"):
        collect_arrays(info(-1, 2), [f"IMAGE={file}"], None, None, batch=None, seed=0)


def test_rows_are_asked_for_where_inputs_have_any_number() -> None:
    with pytest.raises(OptionError, match="--batch means nothing here"):
        collect_arrays(info(1, 2), None, None, None, batch=8, seed=0)
    assert collect_arrays(info(-1, 2), None, None, None, batch=8, seed=0)["IMAGE"].shape == (8, 2)
