"""Files changed byte by byte: twenty seconds here, `make fuzz` for longer."""

from __future__ import annotations

from hostile_many import findings, fuzz

SECONDS, FEWEST = 20.0, 50


def test_changed_files_run_or_are_refused() -> None:
    rows = fuzz(0, 100_000, seconds=SECONDS, sanitize=False, worker_file="bytes_worker.py")
    assert not findings(rows)
    assert len(rows) >= FEWEST
    assert {row["verdict"] for row in rows} == {"ran", "refused"}
