"""The door for others' ops: docs/writing-a-plugin.md shows what an author writes."""

from __future__ import annotations

from ridgeline.plugins.catalog import CATALOG, Plugin, PluginOp
from ridgeline.plugins.gpu_tactics import NvrtcTactic, TritonTactic
from ridgeline.plugins.register import register_op, register_tactic, unregister
from ridgeline.plugins.schema import Schema, Spec
from ridgeline.plugins.tactics import CppTactic, OpSite, OpTactic, PythonTactic

__all__ = [
    "CATALOG", "CppTactic", "NvrtcTactic", "OpSite", "OpTactic", "Plugin", "PluginOp", "PythonTactic",
    "Schema", "Spec", "TritonTactic", "register_op", "register_tactic", "unregister",
]  # fmt: skip
