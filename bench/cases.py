"""Every model a benchmark may run, under one name: the zoo, MiniLM, and the networks at their opsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.feeds import Feed, draw
from bench.networks import NETWORKS, export
from bench.zoo import MINILM_FEEDS, MINILM_OPSETS, MODELS, ZOO, export_minilm, fetch


@dataclass(frozen=True)
class Case:
    """A model and its inputs. `path` fetches or exports the file when it is not there yet."""

    name: str
    is_trained: bool
    path: Callable[[], Path]
    feeds: Mapping[str, Feed]

    def draw(self, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
        return draw(self.feeds, seed)

    @property
    def profiles(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the feeds, as `ridgeline.build` takes them."""
        return {name: feed.shape for name, feed in self.feeds.items()}

    @property
    def shapes(self) -> dict[str, str]:
        return {name: str(feed) for name, feed in self.feeds.items()}


def _cases() -> Iterator[Case]:
    for entry in ZOO:
        yield Case(entry.name, True, partial(fetch, entry), entry.feeds)
    for opset in MINILM_OPSETS:
        yield Case(f"minilm_{opset}", True, partial(export_minilm, opset), MINILM_FEEDS)
    for network in NETWORKS.values():
        for opset in network.opsets:
            path = partial(export, network.name, MODELS / "networks", opset=opset)
            yield Case(f"{network.name}_{opset}", False, path, network.feeds)


CASES: dict[str, Case] = {case.name: case for case in _cases()}
