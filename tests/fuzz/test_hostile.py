"""Models and engine files that somebody bent: they run or are refused, and touch no memory but their own.

Twenty seconds of the first seeds here; `make fuzz` runs more.
"""

from __future__ import annotations

from hostile_many import findings, fuzz, sanitizer_libraries

SECONDS = 20.0


def test_hostile_models_and_engines_corrupt_nothing() -> None:
    rows = fuzz(0, 100_000, seconds=SECONDS, sanitize=sanitizer_libraries() is not None, hang_s=60.0)
    assert not findings(rows)
    assert {"ran", "refused"} <= {row["verdict"] for row in rows}
