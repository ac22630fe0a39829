"""From the files of one version of a model to something that answers: built, hosted, warmed up."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ridgeline.serve.config.complete import DEFAULT_BATCH, complete
from ridgeline.serve.config.config import Configured
from ridgeline.serve.errors import RequestError, unavailable
from ridgeline.serve.hosts.hosting import Host, Hosted, HostedModel, PortInfo, WorkerLostError
from ridgeline.serve.hosts.hosts import PYTHON_STEPS, Hosts
from ridgeline.serve.models.builds import Builds
from ridgeline.serve.models.ensemble import Ensemble, Runnable, Stage
from ridgeline.serve.models.model import Model
from ridgeline.serve.models.steps import check_steps
from ridgeline.serve.models.warmup import run_on, warm_ups
from ridgeline.serve.settings import Settings
from ridgeline.serve.spec import ENSEMBLE, PYTHON, ModelSpec, TensorSpec
from ridgeline.serve.telemetry.statistics import ModelStatistics

Tensors = tuple[TensorSpec, ...]
_generations = itertools.count(1)


@dataclass(eq=False)
class Part:
    """A model inside a version, with the hosts that hold it."""

    model: Model
    hosts: dict[str, Host]  # by the key of what it hosts; what did not come back after a crash is left out

    @property
    def is_gone(self) -> bool:
        """It will never run anything again."""
        return not self.hosts


@dataclass
class Loaded:
    """One generation. `runnable` answers requests; `parts` are what runs behind it."""

    runnable: Runnable
    parts: list[Part] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    give_back: Callable[[Part], Awaitable[None]] | None = None  # whoever loaded the parts

    def waiting(self) -> int:
        """How many requests wait for an engine or a step."""
        return sum(len(part.model) for part in self.parts)

    async def retire(self) -> None:
        """Answer what was accepted, then give everything back."""
        await self.runnable.drain()
        for part in self.parts:
            await part.model.drain()
            if self.give_back is not None:
                await self.give_back(part)


@dataclass(frozen=True)
class Source:
    """What a version is made of."""

    name: str
    version: str
    folder: Path | None  # the model's; None for a file of the repository itself
    path: Path | None  # of the engine, the ONNX model or the Python file; None for an ensemble
    configured: Configured


class Loader:
    def __init__(self, settings: Settings, hosts: Hosts, find: Callable[[str, str], Runnable]) -> None:
        self._settings, self._hosts, self._find = settings, hosts, find
        self._builds = Builds(settings.cache)
        # of every generation from its first moment to its last: what happens to a worker happens to them
        self._parts: set[Part] = set()
        self._held: dict[str, Host] = {}  # by key: what a host has loaded for a part that is not made yet
        self._lost: set[str] = set()  # keys of those whose worker died meanwhile

    async def load(self, source: Source, statistics: ModelStatistics, tell: Callable[[str], None]) -> Loaded:
        """`LoadError` if the version cannot be served; then nothing of it is left."""
        spec = source.configured.spec
        if spec.platform == ENSEMBLE:
            return self._ensemble(source, statistics)
        assert source.path is not None, "only ensembles have no file"
        parts: list[Part] = []
        try:
            if spec.preprocess or spec.postprocess:
                return await self._pipeline(source, statistics, tell, parts)
            if spec.platform == PYTHON:
                part = await self._python(spec, source, source.path, statistics, parts)
                if spec.warmups:
                    await self._warm_up(part, source.folder, tell)
                return Loaded(part.model, parts, source.configured.notes, self.give_back)
            part, notes = await self._engine(source.configured, source, statistics, tell, parts)
            return Loaded(part.model, parts, notes, self.give_back)
        except BaseException:
            for part in parts:
                await self.give_back(part)
            raise

    async def give_back(self, part: Part) -> None:
        self._parts.discard(part)
        for key, host in part.hosts.items():
            await host.unload(key)

    def lose(self, device: str) -> None:
        """The worker of this device died: what ran there fails by itself, what waits goes on waiting."""
        for part in self._parts:
            for hosted in part.model.hosted:
                if part.hosts[hosted.key].device == device:
                    part.model.lose(hosted)
        self._lost |= {key for key, host in self._held.items() if host.device == device}

    def gain(self, device: str, back: Sequence[Hosted]) -> None:
        """A new worker has loaded these again. What it could not load is gone for good."""
        by_key = {hosted.key: hosted for hosted in back}
        for part in self._parts:
            for key in [key for key, host in part.hosts.items() if host.device == device]:
                if key in by_key:
                    part.model.gain(by_key[key])
                else:
                    del part.hosts[key]
            if part.is_gone:
                part.model.refuse_waiting(unavailable("the model could not be loaded again"))

    def refuse_waiting(self, error: RequestError) -> None:
        for part in self._parts:
            part.model.refuse_waiting(error)

    async def _engine(
        self,
        configured: Configured,
        source: Source,
        statistics: ModelStatistics,
        tell: Callable[[str], None],
        parts: list[Part],
    ) -> tuple[Part, tuple[str, ...]]:
        spec, path = configured.spec, source.path
        assert path is not None, "only ensembles have no file"
        if path.suffix != ".ridge":
            largest = DEFAULT_BATCH if configured.is_batch_open else spec.max_batch_size
            path = await self._builds.engine_for(path, self._build_options(spec), largest, tell)
        tell("loading")
        held = await self._host(spec, source, "engine", path)
        first = held[0][1]
        try:
            known = complete(configured, first.inputs, first.outputs)
        except BaseException:
            await self._let_go(held)
            raise
        part = await self._part(known.spec, source.version, held, statistics, parts)
        await self._warm_up(part, source.folder, tell)
        return part, known.notes

    def _build_options(self, spec: ModelSpec) -> dict[str, Any]:
        """Those of the server, and the model's own before them."""
        options = {"target": self._settings.target, **self._settings.build}
        return options | dict(spec.build)

    async def _python(
        self, spec: ModelSpec, source: Source, path: Path, statistics: ModelStatistics, parts: list[Part]
    ) -> Part:
        held = await self._host(spec, source, "python", path)
        return await self._part(spec, source.version, held, statistics, parts)

    async def _host(
        self, spec: ModelSpec, source: Source, kind: str, path: Path
    ) -> list[tuple[Host, Hosted]]:
        """The model on every device that its instance groups name."""
        held: list[tuple[Host, Hosted]] = []
        threads = spec.build.get("threads")
        for group in spec.instances:
            devices = [PYTHON_STEPS] if kind == "python" else self._hosts.devices_of(group)
            for device in devices:
                host = await self._hosts.host_of(device)
                model = HostedModel(
                    key=f"{source.name}:{source.version}:{next(_generations)}",
                    kind="python" if kind == "python" else "engine",
                    path=path,
                    instances=group.count,
                    threads=int(threads) if threads else None,
                    trust=self._settings.trust,
                    inputs=_ports(spec, spec.inputs) if kind == "python" else (),
                    outputs=_ports(spec, spec.outputs) if kind == "python" else (),
                )
                self._held[model.key] = host
                try:
                    held.append((host, await host.load(model)))
                except BaseException:
                    self._held.pop(model.key)
                    await self._let_go(held)
                    raise
        return held

    async def _let_go(self, held: list[tuple[Host, Hosted]]) -> None:
        for host, hosted in held:
            self._held.pop(hosted.key, None)
            self._lost.discard(hosted.key)
            await host.unload(hosted.key)

    async def _part(
        self,
        spec: ModelSpec,
        version: str,
        held: list[tuple[Host, Hosted]],
        statistics: ModelStatistics,
        parts: list[Part],
    ) -> Part:
        """A model of what hosts hold. `WorkerLostError` if a worker died before it was one."""
        keys = {hosted.key for _, hosted in held}
        if keys & self._lost:
            await self._let_go(held)
            raise WorkerLostError("a worker ended while this was loaded")
        model = Model(spec, version, [hosted for _, hosted in held], statistics)
        part = Part(model, {hosted.key: host for host, hosted in held})
        for key in keys:
            del self._held[key]
        self._parts.add(part)
        parts.append(part)
        return part

    async def _warm_up(self, part: Part, folder: Path | None, tell: Callable[[str], None]) -> None:
        spec = part.model.spec
        outputs = [port.name for port in spec.outputs]
        planned = {port.name: port.planned for port in part.model.hosted[0].inputs}
        # their files may be large
        for name, inputs, count in await asyncio.to_thread(list, warm_ups(spec, folder, planned)):
            tell(f"warming up: {name}")
            for hosted in part.model.hosted:
                for instance in hosted.instances:
                    for _ in range(count):
                        await run_on(instance, inputs, outputs, may_refuse=not spec.warmups)

    async def _pipeline(
        self, source: Source, statistics: ModelStatistics, tell: Callable[[str], None], parts: list[Part]
    ) -> Loaded:
        """Python code before and after the engine: three models in a row, each with a queue of its own."""
        outer = source.configured.spec
        # what a client sees on the side of a step is the step's, and the other side is the engine's
        inner = replace(
            outer, inputs=() if outer.preprocess else outer.inputs, preprocess="",
            outputs=() if outer.postprocess else outer.outputs, postprocess="",
        )  # fmt: skip
        inner_config = Configured(inner, (), is_batch_open=not outer.max_batch_size)
        of_engine = ModelStatistics(outer.name, source.version)
        of_engine.whole = statistics
        part, notes = await self._engine(inner_config, source, of_engine, tell, parts)
        engine = part.model.spec
        stages = []
        if outer.preprocess:
            ends = _whole(outer, outer.inputs), _whole(engine, engine.inputs)
            before = await self._step(outer, source, outer.preprocess, ends, parts)
            stages.append(_stage(outer.preprocess, before, outputs="engine:"))
        stages.append(
            _stage(
                "engine",
                part.model,
                inputs="engine:" if outer.preprocess else "",
                outputs="after:" if outer.postprocess else "",
            )
        )
        if outer.postprocess:
            ends = _whole(engine, engine.outputs), _whole(outer, outer.outputs)
            after = await self._step(outer, source, outer.postprocess, ends, parts)
            stages.append(_stage(outer.postprocess, after, inputs="after:"))
        spec = replace(
            outer,
            inputs=outer.inputs if outer.preprocess else engine.inputs,
            outputs=outer.outputs if outer.postprocess else engine.outputs,
        )
        whole = Ensemble(spec, source.version, stages, statistics, runs_batches=True)
        return Loaded(whole, parts, notes, self.give_back)

    async def _step(
        self, outer: ModelSpec, source: Source, file: str, ends: tuple[Tensors, Tensors], parts: list[Part]
    ) -> Model:
        """One request at a time: what code makes of one says nothing about another."""
        assert source.folder is not None, "steps are files of a folder"
        spec = replace(
            outer, platform=PYTHON, max_batch_size=0, batching=replace(outer.batching, max_batch=1),
            inputs=ends[0], outputs=ends[1], preprocess="", postprocess="", pad_dims=(),
        )  # fmt: skip
        own = ModelStatistics(f"{outer.name}/{file}", source.version)
        return (await self._python(spec, source, source.folder / file, own, parts)).model

    def _ensemble(self, source: Source, statistics: ModelStatistics) -> Loaded:
        spec = source.configured.spec
        assert spec.ensemble is not None, "its platform says so"
        check_steps(spec, lambda name, version: self._find(name, version).spec)
        stages = [
            Stage(step.model, _finder(self._find, step.model, step.version), step.input_map, step.output_map)
            for step in spec.ensemble.steps
        ]
        ensemble = Ensemble(
            spec, source.version, stages, statistics, most_at_once=spec.ensemble.max_inflight_requests
        )
        return Loaded(ensemble, [], source.configured.notes)


def _finder(find: Callable[[str, str], Runnable], name: str, version: str) -> Callable[[], Runnable]:
    return lambda: find(name, version)


def _stage(name: str, model: Model, *, inputs: str = "", outputs: str = "") -> Stage:
    """A step whose tensors have these prefixes among those of the whole."""
    return Stage(
        name,
        lambda: model,
        {port.name: inputs + port.name for port in model.spec.inputs},
        {port.name: outputs + port.name for port in model.spec.outputs},
    )


def _whole(spec: ModelSpec, tensors: Tensors) -> Tensors:
    """As a step beside them sees them: the batch is one of their dims."""
    return tuple(replace(each, dims=spec.whole_dims(each), names=(), reshape=None) for each in tensors)


def _ports(spec: ModelSpec, tensors: Tensors) -> tuple[PortInfo, ...]:
    """-1 becomes a name: a size that may differ from call to call."""
    return tuple(
        PortInfo(
            each.name,
            each.datatype,
            tuple(
                dim if dim >= 0 else f"{each.name}.{axis}" for axis, dim in enumerate(spec.whole_dims(each))
            ),
        )
        for each in tensors
    )
