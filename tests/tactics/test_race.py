"""Racing: the quick one wins, the hopeless are left behind early, and slow sites cost few runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import sleep

from ridgeline.select.race import LONG_ROUNDS, race


def sleeper(name: str, seconds: float, runs: Counter[str]) -> Callable[[], object]:
    def call() -> None:
        runs[name] += 1
        sleep(seconds)

    return call


def test_a_hopeless_slow_call_runs_twice() -> None:
    runs: Counter[str] = Counter()
    calls = [sleeper("quick", 0.008, runs), sleeper("slow", 0.08, runs)]
    (quick, slow), _ = race(calls, each_s=0.001, pause_s=0.0005, long_rounds=LONG_ROUNDS)
    assert runs["slow"] == 2
    assert 8_000 <= quick < slow
    assert slow >= 80_000


def test_long_calls_get_few_rounds_where_asked() -> None:
    few: Counter[str] = Counter()
    many: Counter[str] = Counter()
    race([sleeper("a", 0.008, few)], each_s=0.001, pause_s=0.0005, long_rounds=LONG_ROUNDS)
    race([sleeper("a", 0.008, many)], each_s=0.001, pause_s=0.0005)
    assert few["a"] < many["a"]


def test_quick_calls_are_sampled_many_times() -> None:
    runs: Counter[str] = Counter()
    times, _ = race([sleeper("a", 0.0, runs), sleeper("b", 0.0005, runs)], each_s=0.1, pause_s=0.0)
    assert times[0] < times[1]
    assert runs["a"] > 20
