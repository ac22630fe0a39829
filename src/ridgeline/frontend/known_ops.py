"""Ops outside the ONNX standard that ONNX Runtime's CPU build has. Models with them are not refused."""

from __future__ import annotations

from functools import lru_cache

from onnxruntime.capi import onnxruntime_pybind11_state as ort_state


@lru_cache(maxsize=1)
def _runtime_ops() -> frozenset[tuple[str, str]]:
    listed = getattr(ort_state, "get_all_operator_schema", None)
    if listed is None:
        return frozenset()
    return frozenset((schema.domain, schema.name) for schema in listed())


def known_to_runtimes(domain: str, op_type: str) -> bool:
    return (domain, op_type) in _runtime_ops()
