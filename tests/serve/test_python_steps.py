"""Python steps on hosts of both kinds: what they get, what they may return, and what their errors cost."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from hosted import OnLoop, X, Y, array_from, begin, folder, joined, rows, run, step_model

from ridgeline.serve.hosts.hosting import BatchError, Host, Joined, PortInfo

BYTES = (PortInfo("x", "BYTES", ("N",)),), (PortInfo("y", "BYTES", ("N",)),)


async def once(host: Host, code: str, given: list[Joined] | None = None, **ports: Any) -> np.ndarray:
    """One batch of a step that is loaded for it."""
    hosted = await host.load(step_model(code, "step", **ports))
    try:
        return (await run(hosted.instances[0], given or [joined("x", "FP32", rows(1, 2))]))["y"]
    finally:
        await host.unload("step")


def test_a_step_computes(do: OnLoop, host: Host) -> None:
    code = """
import numpy as np
shift = 0
def load():
    global shift
    shift = 10
def run(inputs):
    x = inputs["x"]
    assert list(inputs) == ["x"] and x.dtype == np.float32 and not x.flags.writeable
    return {"y": x[:, ::-1] + np.float32(shift), "more": None}
"""
    np.testing.assert_array_equal(do(once(host, code)), rows(11, 12), strict=True)
    assert not [path for path in folder().rglob("*") if "pycache" in path.name or path.suffix == ".pyc"]


def test_bytes_stay_bytes_and_text_may_come_back(do: OnLoop, host: Host) -> None:
    code = """
def run(inputs):
    x = inputs["x"]
    assert x.dtype == object and x.tolist() == [b"\\xff\\x00", b""], x
    y = x.copy()
    y[:] = ["wörd", b"raw"]
    return {"y": y}
"""
    given = Joined("x", "BYTES", (2,), [b"\x02\x00\x00\x00\xff\x00\x00\x00\x00\x00"])
    got = do(once(host, code, [given], inputs=BYTES[0], outputs=BYTES[1]))
    assert got.tolist() == ["wörd", "raw"]


@pytest.mark.parametrize("made", ["np.array(['a', 'bc'])", "np.array([b'a', b'bc'])"])
def test_arrays_of_text_of_any_kind(do: OnLoop, host: Host, made: str) -> None:
    code = f"import numpy as np\ndef run(inputs):\n    return {{'y': {made}}}"
    assert do(once(host, code, outputs=BYTES[1])).tolist() == ["a", "bc"]


def test_bfloat16_as_its_type_or_its_bits(do: OnLoop, host: Host) -> None:
    x, y = PortInfo("x", "BF16", ("N",)), PortInfo("y", "BF16", ("N",))
    bits = np.array([0x3F80, 0x4000], np.uint16)
    for made in ("inputs['x']", "inputs['x'].view('u2')"):
        code = (
            f"def run(inputs):\n    assert str(inputs['x'].dtype) == 'bfloat16'\n    return {{'y': {made}}}"
        )
        got = do(once(host, code, [joined("x", "BF16", bits)], inputs=(x,), outputs=(y,)))
        np.testing.assert_array_equal(got.view(np.uint16), bits)


WRONG = {
    "inputs['x'].astype('f8')": "output 'y' is float64, not FP32",
    "inputs['x'].astype('>f4')": "output 'y' is >f4, not FP32",
    "inputs['x'][0]": "output 'y' has shape [8], not ['N', 8]",
    "inputs['x'][:, :7]": "output 'y' has shape [2, 7], not ['N', 8]",
    "inputs['x'].tolist()": "output 'y' is list, not an array",
    "None": "output 'y' is NoneType, not an array",
    "inputs['x'].astype(object)": "output 'y' is object, not FP32",
}


@pytest.mark.parametrize("made", WRONG)
def test_outputs_are_what_was_declared(do: OnLoop, host: Host, made: str) -> None:
    with pytest.raises(BatchError) as failed:
        do(once(host, f"def run(inputs):\n    return {{'y': {made}}}"))
    assert str(failed.value) == WRONG[made]
    assert not failed.value.is_input


@pytest.mark.parametrize("made", ["{}", "{'z': 1}", "None", "[inputs['x']]"])
def test_an_output_that_is_missing(do: OnLoop, host: Host, made: str) -> None:
    with pytest.raises(BatchError, match="the step returned no output 'y'"):
        do(once(host, f"def run(inputs):\n    return {made}"))


RAISES = {
    "raise ValueError('too long')": ("ValueError: too long", True),
    "inputs['x'][0] = 1": ("ValueError: assignment destination is read-only", True),
    "raise KeyError('x')": ("KeyError: 'x'", False),
    "raise SystemExit(1)": ("SystemExit: 1", False),
    "raise KeyboardInterrupt": ("KeyboardInterrupt: KeyboardInterrupt", False),
    "assert 0, 'no\\n' * 3": ("AssertionError: no", False),
}


@pytest.mark.parametrize("does", RAISES)
def test_errors_of_a_step_are_those_of_its_batch(
    do: OnLoop, host: Host, does: str, caplog: pytest.LogCaptureFixture
) -> None:
    text, is_input = RAISES[does]
    code = f"def run(inputs):\n    if inputs['x'][0, 0] > 0:\n        {does}\n    return {{'y': inputs['x']}}"

    async def body() -> None:
        hosted = await host.load(step_model(code, "step"))
        for value in (0, 1, -1):
            batch = [joined("x", "FP32", rows(value))]
            if value <= 0:
                assert (await run(hosted.instances[0], batch))["y"][0, 0] == value
                continue
            with caplog.at_level(logging.CRITICAL, "ridgeline"), pytest.raises(BatchError) as failed:
                await run(hosted.instances[0], batch)
            assert str(failed.value) == text
            assert failed.value.is_input == is_input
            assert not failed.value.is_lost
            assert not failed.value.is_memory
        await host.unload("step")

    do(body())
    assert host.is_healthy


MEMORY = """
failures = {count}
def run(inputs):
    global failures
    if failures:
        failures -= 1
        raise MemoryError("none left")
    return {{"y": inputs["x"]}}
"""


def test_a_batch_that_runs_out_of_memory_is_tried_once_more(do: OnLoop, host: Host) -> None:
    np.testing.assert_array_equal(do(once(host, MEMORY.format(count=1))), rows(1, 2))


def test_memory_that_is_really_short_costs_that_batch(do: OnLoop, host: Host) -> None:
    async def body() -> None:
        hosted = await host.load(step_model(MEMORY.format(count=2), "step"))
        for is_short in (True, False):
            future = await begin(hosted.instances[0], [joined("x", "FP32", rows(1))])
            if is_short:
                with pytest.raises(BatchError, match="out of memory: MemoryError: none left") as failed:
                    await future
                assert failed.value.is_memory
                assert not failed.value.is_input
            else:
                result = await future
                assert array_from(result.outputs[0])[0, 0] == 1
                result.release()
        await host.unload("step")

    do(body())


def test_huge_arrays_are_short_memory_too(do: OnLoop, host: Host) -> None:
    code = "import numpy as np\ndef run(inputs):\n    return {'y': np.empty((1 << 50, 8), np.float32)}"
    with pytest.raises(BatchError, match="out of memory") as failed:
        do(once(host, code))
    assert failed.value.is_memory


def test_instances_of_a_step_run_at_the_same_time(do: OnLoop, host: Host) -> None:
    code = """
import threading
barrier = threading.Barrier(2)
def run(inputs):
    barrier.wait(10)
    return {"y": inputs["x"]}
"""

    async def body() -> None:
        hosted = await host.load(step_model(code, "step", inputs=(X,), outputs=(Y,), instances=2))
        futures = [await begin(each, [joined("x", "FP32", rows(1))]) for each in hosted.instances]
        for future in futures:
            (await future).release()
        await host.unload("step")

    do(body())
