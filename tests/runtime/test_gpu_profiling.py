"""Kernels of replays assigned to steps, on time-stamps of the test's own: no GPU is needed."""

from __future__ import annotations

import pytest

from ridgeline.runtime.gpu_profiling import (
    DeviceWork,
    UnmatchedError,
    assign_replays,
    lay_on_timeline,
    read_work,
    split_at_markers,
)

SPIN = "at::cuda::(anonymous namespace)::spin_kernel(long)"


def work(name: str, start: float, us: float, kind: str = "kernel") -> DeviceWork:
    return DeviceWork(kind, name, start, us)


def test_markers_part_the_steps() -> None:
    seen = [work(SPIN, 0, 1), work("a", 2, 1), work("b", 4, 1), work(SPIN, 6, 1), work(SPIN, 8, 1)]
    assert [[each.name for each in step] for step in split_at_markers(seen, 2)] == [["a", "b"], []]
    with pytest.raises(UnmatchedError, match="2 of 3 markers"):
        split_at_markers(seen[1:], 2)


def test_replays_are_dealt_out_in_order() -> None:
    steps = [[work("a", 0, 1)], [], [work("b", 1, 1), work("Memcpy DtoD", 2, 1, "gpu_memcpy")]]
    seen = [
        work(name, 10 * replay + i, 1, kind)
        for replay in range(3)
        for i, (name, kind) in enumerate([("a", "kernel"), ("b", "kernel"), ("Memcpy", "gpu_memcpy")])
    ]
    made = assign_replays([work(SPIN, -5, 1), *seen], steps, 3)
    assert [[len(step) for step in replay] for replay in made] == [[1, 0, 2]] * 3
    assert made[2][0][0].start_us == 20


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ([work("a", 0, 1)], "ran 1 kernels"),
        ([work("a", 0, 1), work("c", 1, 1)], "runs 'c' where a step launches 'b'"),
        ([work("a", 0, 1), work("b", 1, 1, "gpu_memset")], "where a step launches"),
    ],
)
def test_what_does_not_match_is_not_guessed(seen: list[DeviceWork], said: str) -> None:
    with pytest.raises(UnmatchedError, match=said):
        assign_replays(seen, [[work("a", 0, 1)], [work("b", 1, 1)]], 1)


def test_gaps_and_overlap_are_differences_of_time_stamps() -> None:
    first = [[work("a", 0, 10)], [work("b", 10, 5)]]
    # 3 µs before a; b starts 2 µs before a ends; its second kernel 1 µs after the first
    second = [[work("a", 18, 10)], [work("b", 26, 6), work("b2", 33, 4)]]
    (a,), (b,) = lay_on_timeline([first, second])
    assert (a.start_us, a.busy_us, a.gap_us, a.overlap_us) == (3, 10, 3, 0)
    assert (b.start_us, b.busy_us, b.gap_us, b.overlap_us) == (11, 10, 1, 2)
    assert [(kernel.name, kernel.start_us) for kernel in b.kernels] == [("b", 11), ("b2", 18)]
    # together they are the length of the replay, from the end of the one before
    assert sum(run.busy_us + run.gap_us - run.overlap_us for run in (a, b)) == 37 - 15


def test_a_step_inside_another_s_time_adds_nothing() -> None:
    first = [[work("a", 0, 10)], [work("b", 2, 3)]]
    (a,), (b,) = lay_on_timeline([first, [[work("a", 10, 10)], [work("b", 12, 3)]]])
    assert (b.busy_us, b.gap_us, b.overlap_us) == (3, 0, 3)
    assert a.busy_us + b.busy_us - b.overlap_us == 10


def test_only_the_device_s_work_is_read() -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 5.5, "dur": 1.25},
        {"ph": "X", "cat": "kernel", "name": "l", "ts": 9, "dur": 1, "args": {"grid": [12, 8, 1]}},
        {"ph": "X", "cat": "gpu_user_annotation", "name": "step", "ts": 5, "dur": 3},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 3},
        {"ph": "M", "name": "process_name"},
    ]
    found = read_work({"traceEvents": events})
    assert found == [DeviceWork("kernel", "k", 5.5, 1.25), DeviceWork("kernel", "l", 9.0, 1.0, 96)]


def test_steps_side_by_side_get_their_own_kernels() -> None:
    # a, then b → c beside d → e, then f
    steps = [[work(name, 0, 1)] for name in "abcdef"]
    before = [0, 0b1, 0b11, 0b1, 0b1001, 0b11111]
    seen = [work(name, i, 1) for i, name in enumerate("adbecf")]
    (made,) = assign_replays(seen, steps, 1, before)
    assert [step[0].name for step in made] == list("abcdef")
    assert [step[0].start_us for step in made] == [0, 2, 4, 1, 3, 5]
    with pytest.raises(UnmatchedError, match="runs 'd' where a step launches 'b'"):
        assign_replays(seen, steps, 1)
    with pytest.raises(UnmatchedError, match="runs 'f' where a step launches 'a'"):
        assign_replays([work("f", 0, 1), *seen[:-1]], steps, 1, before)


def test_time_beside_another_stream_is_overlap_and_no_gap() -> None:
    first = [[work("a", 0, 10)], [work("b", 10, 10)], [work("c", 10, 20)], []]
    # c, the later step, covers the time until b starts: nothing was idle then
    second = [[work("a", 30, 10)], [work("b", 55, 10)], [work("c", 40, 20)], []]
    (a,), (b,), (c,), (nothing,) = lay_on_timeline([first, second])
    assert (a.gap_us, a.busy_us, a.overlap_us) == (0, 10, 0)
    assert (b.gap_us, b.busy_us, b.overlap_us) == (0, 10, 5)
    assert (c.gap_us, c.busy_us, c.overlap_us) == (0, 20, 0)
    assert (nothing.start_us, nothing.busy_us) == (35, 0)
    assert sum(run.busy_us + run.gap_us - run.overlap_us for run in (a, b, c)) == 65 - 30
