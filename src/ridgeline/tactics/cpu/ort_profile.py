"""Times of nodes inside a session, from the file that ONNX Runtime's own profiler writes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import onnxruntime as ort

from ridgeline.base.typed_json import parse_json
from ridgeline.tactics.base import InsideTime

_SUFFIX = "_kernel_time"


def time_nodes(
    session: ort.InferenceSession, outputs: list[str], feeds: Mapping[str, np.ndarray], rounds: int
) -> tuple[InsideTime, ...]:
    """Time of each node over so many runs, the first left out. The session was opened to be profiled."""
    for _ in range(rounds + 1):
        session.run(outputs, feeds)
    return read_profile(Path(session.end_profiling()).read_text(encoding="utf-8"), rounds + 1)


def read_profile(text: str, runs: int) -> tuple[InsideTime, ...]:
    """The nodes of a profile of so many runs; `ValueError` if it is of another number of runs."""
    events = parse_json(text)
    starts = sorted(event["ts"] for event in events if event.get("name") == "model_run")
    if len(starts) != runs or runs < 2:
        raise ValueError(f"a profile of {len(starts)} runs, want {runs}")
    nodes = [
        event
        for event in events
        if event.get("cat") == "Node"
        and str(event.get("name")).endswith(_SUFFIX)
        and event["ts"] >= starts[1]
    ]
    times: dict[tuple[str, str], list[int]] = {}
    for event in _outermost(nodes):
        key = event["name"].removesuffix(_SUFFIX), event["args"]["op_name"]
        run = bisect_right(starts, event["ts"]) - 2
        times.setdefault(key, [0] * (runs - 1))[run] += event["dur"]
    return tuple(InsideTime(name, op_type, _middle(taken)) for (name, op_type), taken in times.items())


def _middle(samples: Sequence[int]) -> float:
    """Mean of the middle half: whole microseconds, as it counts, are too coarse for a median, and a plain
    mean has every interruption in it."""
    ascending, cut = sorted(samples), len(samples) // 4
    return fmean(ascending[cut : len(ascending) - cut])


def _outermost(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without nodes of subgraphs, whose time is in that of the If or Loop around them."""
    kept: list[dict[str, Any]] = []
    ends: dict[Any, int] = {}
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        end = event["ts"] + event["dur"]
        if end > ends.get(event["tid"], -1) or event["ts"] >= ends.get(event["tid"], -1):
            kept.append(event)
            ends[event["tid"]] = end
    return kept
