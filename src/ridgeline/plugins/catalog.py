"""Which plugins there are: their ops, tactics and problems, and what an engine needs of them."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Needed
from ridgeline.errors import PluginError, RidgelineError, failure
from ridgeline.ir.op_given import MisfitError
from ridgeline.kernels.elements import dtype_name, to_numpy, to_torch
from ridgeline.plugins.schema import Schema, Shapes, Spec, is_open, is_size

GROUP = "ridgeline.plugins"  # of entry points
CHANGED = "; it is here "
FEW = 64  # whole numbers that a shape may depend on


@dataclass(frozen=True)
class Plugin:
    """Who brings an op: a name, a version, and a line on how to get it."""

    name: str
    version: str
    get: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def plugin_of(entry: EntryPoint) -> Plugin:
    """The package that an entry point stands in."""
    if entry.dist is None:
        return Plugin(entry.name, "0")
    name, version = entry.dist.name, entry.dist.version
    return Plugin(name, version, f"pip install {name}=={version}")


def package_of(value: Any) -> Plugin | None:
    """The package that a function or class comes from, if an entry point of that package names plugins.

    So an op belongs to the same plugin whether its module was imported by hand or by the entry point.
    """
    root = str(getattr(value, "__module__", "")).split(".")[0]
    return next((plugin_of(e) for e in entry_points(group=GROUP) if e.module.split(".")[0] == root), None)


@contextmanager
def blaming(what: str, **parts: str) -> Iterator[None]:
    """Whatever an author's function raises is an error of the plugin. Refusals and errors of ours pass."""
    try:
        yield
    except (RidgelineError, RefusedError):
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{what} {failure(error)}", **parts) from error


@dataclass(frozen=True)
class PluginRow:
    """A plugin that is installed or registered, and what is wrong with it."""

    plugin: str
    version: str
    ops: tuple[str, ...]
    tactics: tuple[str, ...]
    problem: str  # "" where there is none


@dataclass(frozen=True)
class PluginOp:
    """An op that a plugin brought: its schema, its shapes and its meaning."""

    schema: Schema
    shapes: Shapes
    reference: Callable[..., Any]
    plugin: Plugin
    arrays: Literal["torch", "numpy"] = "torch"

    def output_specs(self, inputs: Sequence[Spec | None], attrs: Mapping[str, Any]) -> list[Spec | None]:
        """What the author's function says of the outputs, held against the schema.

        `MisfitError`: the op does not take these inputs or attributes.
        """
        if problem := self.schema.why_not(inputs):
            raise MisfitError(problem)
        try:
            made = self.shapes(*_padded(self.schema, inputs), **attrs)
        except Exception as error:
            raise MisfitError(f"the shape function of {self.plugin} {failure(error)}") from error
        specs: list[Any] = list(made) if isinstance(made, (tuple, list)) else [made]
        self.require_count(len(specs), "shapes")
        for place, spec in enumerate(specs):
            if spec is None:
                continue
            if not isinstance(spec, Spec) or not isinstance(spec.shape, tuple):
                raise self.broken("shapes", f"output {place} is {spec!r}", "a Spec, or None")
            allowed = self.schema.allowed(place, inputs)
            if spec.dtype not in allowed:
                raise self.broken("shapes", f"output {place} is {spec.dtype}", " or ".join(allowed))
            if not all(map(is_size, spec.shape)):
                raise self.broken("shapes", f"output {place} is {spec}", "whole sizes from 0 on")
        return specs

    def run(self, *inputs: Tensor | None, **given: Any) -> tuple[Tensor, ...]:
        """The reference over torch tensors, its results held against its own shapes."""
        attrs = self.schema.given(given)
        tensors = _padded(self.schema, inputs)
        # a tensor made in inference mode does not count its changes
        counted = [t for t in inputs if t is not None and not t.is_inference()]
        before = [t._version for t in counted]
        specs_in = [None if t is None else spec_of(t) for t in inputs]
        got, help = ", ".join(map(str, specs_in)), f"mend the plugin {self.plugin}"
        with blaming(f"the reference of {self.schema.key}", got=got, help=help):
            made = self._call(tensors, attrs)
        if [t._version for t in counted] != before:
            raise self.broken("reference", "it changes an input", "results in memory of their own")
        results = tuple(made) if isinstance(made, (tuple, list)) else (made,)
        specs = self.output_specs(specs_in, attrs)
        self.require_count(len(results), "reference", len(specs))
        for place, (result, spec) in enumerate(zip(results, specs, strict=True)):
            if not isinstance(result, Tensor) or result.layout != torch.strided or result.is_meta:
                raise self.broken("reference", f"output {place} is {_kind(result)}", "a dense tensor")
            is_known = spec is not None and not is_open([spec])
            allowed = [str(spec)] if is_known else self.schema.allowed(place, specs_in)
            if str(spec_of(result) if is_known else dtype_name(result)) not in allowed:
                raise self.broken("reference", f"output {place} is {spec_of(result)}", " or ".join(allowed))
        return tuple(result.detach() for result in results)

    def _call(self, tensors: Sequence[Tensor | None], attrs: Mapping[str, Any]) -> Any:
        if self.arrays == "torch":
            return self.reference(*tensors, **attrs)
        made = self.reference(*(None if t is None else _read_only(t) for t in tensors), **attrs)
        device = next((t.device for t in tensors if t is not None), "cpu")
        several = made if isinstance(made, (tuple, list)) else [made]
        return [to_torch(array).to(device) for array in several]

    def require_count(self, count: int, what: str, wanted: int | None = None) -> None:
        """Raise where there are other outputs than the schema has, or than are wanted."""
        formal = len(self.schema.formal("outputs"))
        is_any = formal < len(self.schema.outputs)
        if count == 0 or count < formal or (count != formal and not is_any) or count != (wanted or count):
            raise self.broken(what, f"{count} outputs", f"{wanted or len(self.schema.outputs)}")

    def broken(self, what: str, got: str, want: str) -> PluginError:
        return PluginError(
            f"{what} of {self.schema.key} does not keep to its schema",
            got=got, want=want, help=f"mend the plugin {self.plugin}",
        )  # fmt: skip


@dataclass
class Catalog:
    """All that is registered in this process."""

    ops: dict[str, PluginOp] = field(default_factory=dict)  # by domain::OpType
    tactics: dict[str, Plugin] = field(default_factory=dict)  # by the name of the tactic
    code: dict[str, str] = field(default_factory=dict)  # by op and tactic: a digest of what it comes from
    problems: dict[Plugin, str] = field(default_factory=dict)  # of plugins that could not be loaded

    def plugins(self) -> list[Plugin]:
        found = [*(op.plugin for op in self.ops.values()), *self.tactics.values(), *self.problems]
        return sorted(set(found), key=str)

    def rows(self) -> tuple[PluginRow, ...]:
        """For people: each plugin with all that it brought."""
        return tuple(
            PluginRow(
                plugin.name, plugin.version,
                tuple(key for key, op in self.ops.items() if op.plugin == plugin),
                tuple(name for name, owner in self.tactics.items() if owner == plugin),
                self.problems.get(plugin, ""),
            )
            for plugin in self.plugins()
        )  # fmt: skip

    def needed(self, ops: Iterable[str], tactics: Iterable[str]) -> tuple[Needed, ...]:
        """What an engine with these ops and tactics needs of plugins."""
        uses: dict[Plugin, dict[str, None]] = {}
        for key in (key for key in ops if key in self.ops):
            uses.setdefault(self.ops[key].plugin, {})[key] = None
        for name in (name for name in tactics if name in self.tactics):
            uses.setdefault(self.tactics[name], {})[name] = None
        return tuple(
            Needed(p.name, p.version, p.get, tuple(used), self._schemas(used)) for p, used in uses.items()
        )

    def require(self, needed: Sequence[Needed]) -> None:
        """Raise where a plugin that an engine was built with is not here, or is not the same here."""
        missing = [(need, why) for need in needed if (why := self._why_not(need)) is not None]
        if missing:
            cures = [
                "build the engine again" if why.startswith(CHANGED)
                else f"the file says: {need.get}" if need.get
                else f"install {need.plugin} {need.version}"
                for need, why in missing
            ]  # fmt: skip
            raise PluginError(
                "this engine needs plugins that are not here, or are not as they were",
                rows=[f"{n.plugin} {n.version}, for {', '.join(n.uses)}{why}" for n, why in missing],
                help=f"{'; '.join(cures)}; `ridge plugins` lists what is installed",
            )

    def _why_not(self, need: Needed) -> str | None:
        """What is here instead of what an engine needs; None where it is here itself."""
        found = [plugin for plugin in self.plugins() if plugin.name == need.plugin]
        broken = [self.problems[plugin] for plugin in found if plugin in self.problems]
        if broken or need.version not in {plugin.version for plugin in found}:
            return f"; it {broken[0]}" if broken else f"; here is {found[0]}" if found else ""
        lacks = [use for use in need.uses if use not in self.ops and use not in self.tactics]
        if lacks:
            return f"{CHANGED}without {', '.join(lacks)}"
        is_other = need.schemas not in ("", self._schemas(need.uses))
        return f"{CHANGED}with another schema, under the same version" if is_other else None

    def _schemas(self, uses: Iterable[str]) -> str:
        """A digest of the schemas of these ops."""
        texts = [repr(self.ops[key].schema) for key in uses if key in self.ops]
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]

    def digest(self) -> str:
        """Of everything registered and the code behind it; what was measured with other code is void."""
        lines = [f"{name} {code}" for name, code in self.code.items()]
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:12] if lines else ""


CATALOG = Catalog()


def spec_of(tensor: Tensor) -> Spec:
    is_small = tensor.is_cpu and not tensor.is_floating_point() and tensor.numel() <= FEW
    return Spec(dtype_name(tensor), tuple(tensor.shape), to_numpy(tensor) if is_small else None)


def _padded(schema: Schema, given: Sequence[Any]) -> list[Any]:
    """None for each trailing input that is left out."""
    return [*given, *[None] * (len(schema.formal("inputs")) - len(given))]


def _read_only(tensor: Tensor) -> np.ndarray:
    array = to_numpy(tensor)
    array.flags.writeable = False
    return array


def _kind(result: Any) -> str:
    return f"on {result.device}, {result.layout}" if isinstance(result, Tensor) else type(result).__name__


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bytes."""
    return torch.equal(*(t.contiguous().view(-1).view(torch.uint8) for t in (one, other)))


def code_digest(part: Any) -> str:
    """Of the texts an op or a tactic holds, and of the files that its class and functions stand in."""
    values = [getattr(part, f.name) for f in fields(part)] if is_dataclass(part) else []
    texts = [value for value in values if isinstance(value, str)]
    files = {_file_of(value) for value in (type(part), *values) if callable(value)}
    content = b"".join(file.read_bytes() for file in sorted(files) if file.is_file())
    return hashlib.sha256("\0".join(texts).encode() + content).hexdigest()[:12]


def _file_of(value: Any) -> Path:
    try:
        return Path(inspect.getfile(getattr(value, "fn", value)))  # `fn`: a Triton kernel's function
    except TypeError:  # a builtin
        return Path()
