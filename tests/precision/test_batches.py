"""Rows joined to batches, as engines are judged with them."""

from __future__ import annotations

import numpy as np

from ridgeline.precision.budget import in_batches


def test_the_last_batch_is_filled_up_with_the_first_rows() -> None:
    rows = [{"x": np.full((1, 2), i)} for i in range(3)]
    made = [batch["x"][:, 0].tolist() for batch in in_batches(rows, 2)]
    assert made == [[0, 1], [2, 0]]


def test_a_scalar_input_needs_no_batch() -> None:
    rows = [{"rate": np.array(16000), "x": np.ones((2, 1))}]
    (made,) = in_batches(rows, 1)
    assert made["rate"].shape == ()
