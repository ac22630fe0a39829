"""Rows joined to batches, as engines are judged with them."""

from __future__ import annotations

import numpy as np
from quant_models import proto_of

import ridgeline
from ridgeline.precision.budget import in_batches


def test_the_last_batch_is_filled_up_with_the_first_rows() -> None:
    rows = [{"x": np.full((1, 2), i)} for i in range(3)]
    made = [batch["x"][:, 0].tolist() for batch in in_batches(rows, 2)]
    assert made == [[0, 1], [2, 0]]


def test_a_scalar_input_needs_no_batch() -> None:
    rows = [{"rate": np.array(16000), "x": np.ones((2, 1))}]
    (made,) = in_batches(rows, 1)
    assert made["rate"].shape == ()


def test_rows_of_different_lengths_are_judged_in_batches_of_their_own() -> None:
    """The profile takes no single row, and rows of different lengths cannot be joined."""
    rng = np.random.default_rng(0)
    model = proto_of(
        "g (float[N,T,8] x) => (float[N,T,8] y) { y = MatMul (x, w) }",
        w=rng.normal(size=(8, 8)).astype(np.float32),
    )
    data = [{"x": rng.normal(size=(3, length, 8)).astype(np.float32)} for length in range(1, 8)]
    engine = ridgeline.build(
        model,
        precision="fp16",
        profiles={"x": "2..4x1..8x8"},
        data=data,
        level=0,
        verify="fast",
        progress=False,
    )
    found = engine.report.precision
    assert found is not None
    assert found.held_out
    assert 1 < found.samples < 21
    assert 0 < found.error < 0.01
