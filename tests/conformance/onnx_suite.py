"""ONNX's own backend tests, one case each, through the real path: frontend, passes, plan, engine.

The models of the zoo (`OnnxBackendRealModelTest`) are left out: they would be downloaded.
"""

from __future__ import annotations

import logging
import unittest
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import onnx
import onnx.backend.test

import ridgeline.onnx_backend

# the counts of another version are other counts
ONNX_VERSION = "1.23.2"
KINDS = {
    "OnnxBackendNodeModelTest": "node",
    "OnnxBackendSimpleModelTest": "simple",
    "OnnxBackendPyTorchConvertedModelTest": "converted",
    "OnnxBackendPyTorchOperatorModelTest": "operator",
}
PROCESSES = 2
FAILING = Path(__file__).with_name("failing.txt")


@dataclass(frozen=True)
class Case:
    """One test of the suite."""

    kind: str
    name: str  # as the suite has it, without `test_` and the device
    test: type[unittest.TestCase]

    @property
    def label(self) -> str:
        return f"{self.kind}/{self.name}"

    def problem(self) -> str | None:
        """What went wrong, in one line; None if the case passes."""
        result = unittest.TestResult()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.test(f"test_{self.name}_cpu").run(result)
        if result.skipped:
            return f"skipped: {result.skipped[0][1]}"
        if result.wasSuccessful():
            return None
        lines = [line.strip() for line in (result.errors or result.failures)[0][1].strip().splitlines()]
        raised = [i for i, line in enumerate(lines) if line.startswith("File ")]
        return " ".join(lines[raised[-1] + 2 if raised else -1 :])[:400]


@lru_cache(maxsize=1)
def all_cases() -> tuple[Case, ...]:
    """Every case that needs nothing but this machine, in the order of their names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite divides by zero on purpose when it makes its data
        suite = onnx.backend.test.BackendTest(ridgeline.onnx_backend, __name__)
    logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)
    found = [
        Case(KINDS[group], method.removeprefix("test_").removesuffix("_cpu"), test)
        for group, test in suite.test_cases.items()
        if group in KINDS
        for method in dir(test)
        if method.startswith("test_") and method.endswith("_cpu")
    ]
    return tuple(sorted(found, key=lambda case: case.label))


@lru_cache(maxsize=1)
def read_failing() -> dict[str, str]:
    """The cases that fail, with the reason: `kind/name: reason` in each line."""
    lines = [line for line in FAILING.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split(": ", 1) for line in lines)


def cases_of(*kinds: str, first: str = "a", last: str = "z") -> list[Case]:
    """The cases of some kinds whose names begin with a letter from `first` to `last`."""
    return [case for case in all_cases() if case.kind in kinds and first <= case.name[0].lower() <= last]


def check(case: Case) -> None:
    """A case passes, or it is listed and fails; a draw of random numbers may come out either way."""
    reason = read_failing().get(case.label)
    problem = case.problem()
    if reason is None:
        assert problem is None, problem
    elif not reason.startswith("chance"):
        assert problem is not None, f"{case.label} passes now: take it out of {FAILING.name}"


def run_share(part: int, only: str) -> dict[str, str | None]:
    """What is wrong with each case of one process's share."""
    cases = [case for case in all_cases() if only in case.label]
    return {case.label: case.problem() for case in cases[part::PROCESSES]}
