"""Views of values that a library allocates, made again at each call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from ridgeline.base.spec import TensorSpec
from ridgeline.runtime.instance import Instance


def test_a_view_lies_as_its_spec_says() -> None:
    rows, image = TensorSpec("float32", (2, 3, 5, 4)), TensorSpec("float32", (2, 4, 3, 5), "channels_last")
    inferred = SimpleNamespace(specs={"rows": rows, "image": image, "back": rows})
    made = torch.arange(120.0).view(rows.shape)
    values: dict[str, Any] = {"rows": made}
    views = [("image", "rows", 0)], [("back", "image", 0)]
    for of_one in views:
        Instance._dynamic_views(SimpleNamespace(inferred=inferred), values, of_one, [])()  # type: ignore[arg-type]
    assert torch.equal(values["image"], made.permute(0, 3, 1, 2))
    assert values["image"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(values["back"], made)
    assert values["back"].data_ptr() == made.data_ptr()
