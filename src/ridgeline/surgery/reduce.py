"""`reduce`: the smallest part of a model on which a command still fails.

Bisects the end, then the beginning, then takes out node after node. A cut is fed with what the whole model
had there, for every sample. Nothing is believed: each step is a run of the command, and so is the last.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx

from ridgeline.base.arrays import load_sample
from ridgeline.base.progress import Progress
from ridgeline.errors import ModelError, OptionError, first_line
from ridgeline.frontend.functions import count_nodes
from ridgeline.frontend.types import port_text
from ridgeline.surgery.check import Command, Outcome
from ridgeline.surgery.extract import Part, known_type, part_model, walk_back
from ridgeline.surgery.graph import ModelGraph, label, read_graph, reads, write_model
from ridgeline.surgery.record import Recording, random_sample, record

# a value that stands in the file instead of being an input
CONSTANT_BYTES = 1 << 20


@dataclass(frozen=True)
class Step:
    """One run of the command."""

    action: str
    nodes: int
    still_fails: bool
    outcome: str
    seconds: float


@dataclass(frozen=True)
class Reduced:
    """What is left, and how it was found."""

    nodes: int
    of_nodes: int
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    samples: int
    steps: tuple[Step, ...]
    notes: tuple[str, ...]

    @property
    def checks(self) -> int:
        return len(self.steps)


@dataclass(frozen=True)
class Cut:
    """A candidate: where it begins and ends, which beginnings are constants, which nodes are passed by."""

    starts: frozenset[str]
    ends: tuple[str, ...]
    constants: frozenset[str] = frozenset()
    skips: frozenset[int] = frozenset()


def reduce_file(
    model: Path,
    output: Path,
    command: Command,
    *,
    samples: Sequence[Path] = (),
    max_checks: int = 500,
    progress: Progress | None = None,
) -> Reduced:
    """Write the smallest failing part to `output`, its inputs beside it, and tell the steps."""
    graph = read_graph(model)
    with tempfile.TemporaryDirectory(prefix="ridge-reduce-") as scratch:
        recording, notes = _record(graph, samples, Path(scratch))
        search = Search(graph, command, recording, Path(scratch), max_checks, progress)
        cut = search.run()
        proto = search.proto(cut)
        write_model(proto, graph.folder, output)
        folder = output.with_name(f"{output.stem}_inputs")
        kept = [p.name for p in proto.graph.input]
        written = recording.write_samples(kept, folder) if recording is not None else []
        search.confirm(output, folder, count_nodes(proto.graph.node))
    return Reduced(
        nodes=count_nodes(proto.graph.node),
        of_nodes=count_nodes(graph.nodes),
        ops=tuple(node.op_type for node in proto.graph.node),
        inputs=tuple(f"{n} {port_text(search.type_of(n))}" for n in kept),
        outputs=cut.ends,
        samples=len(written),
        steps=tuple(search.steps),
        notes=(*notes, *search.notes, *_doubts(search.steps)),
    )


def _record(graph: ModelGraph, samples: Sequence[Path], folder: Path) -> tuple[Recording | None, list[str]]:
    """Values at all samples; with none given, at random ones. Without any, cuts keep declared types only."""
    given = [load_sample(file, list(graph.inputs)) for file in samples]
    try:
        return record(graph, given or [random_sample(graph, seed=0)], folder), []
    except Exception as error:
        if given:
            raise ModelError("the samples cannot be run to record values", got=first_line(error)) from error
        return None, [f"no values were recorded ({first_line(error)}): cuts are fed by the command itself"]


def _doubts(steps: Sequence[Step]) -> list[str]:
    """A note if the command failed on every part: then it says nothing about the model."""
    if len(steps) < 3 or not all(step.still_fails for step in steps):
        return []
    return ["the command failed on every part that was tried: does it pass on any model?"]


@dataclass
class Search:
    """The bisection, with its memory of what was tried."""

    graph: ModelGraph
    command: Command
    recording: Recording | None
    folder: Path
    max_checks: int
    progress: Progress | None
    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _known: dict[Cut, bool] = field(default_factory=dict)
    _first: Outcome | None = None

    def run(self) -> Cut:
        whole = Cut(frozenset(), tuple(p.name for p in self.graph.proto.graph.output))
        self.proto(whole)  # an output that no node makes can neither be kept nor cut away
        if not self._fails(whole, "the whole model"):
            raise OptionError(
                "--check passes on the whole model: there is nothing to reduce",
                got=self.steps[-1].outcome,
                want="a command that fails (exits with another status than 0)",
                help="give --match what it prints, if it fails with status 0",
            )
        cut = self._one_output(whole)
        cut = self._trim_end(cut)
        cut = self._trim_beginning(cut)
        cut = self._drop_nodes(cut)
        return self._write_constants(self._pass_nodes_by(cut))

    def confirm(self, model: Path, inputs: Path, nodes: int) -> None:
        """The file that was written, run once more."""
        outcome = self.command.run(model, inputs)
        self._note("the written file", nodes, outcome)
        if not self.steps[-1].still_fails:
            raise OptionError(
                "--check passes on the part that failed a moment ago: the failure comes and goes",
                got=outcome.text,
                help="repeat the run inside --check until it fails, or fix its seeds",
            )

    def part(self, cut: Cut) -> Part:
        return walk_back(self.graph, cut.starts, cut.ends)

    def type_of(self, name: str) -> onnx.TypeProto:
        """What the file says, else what was recorded."""
        try:
            return known_type(self.graph, name)
        except ModelError:
            if self.recording is None or not self.recording.has(name):
                raise
            return self.recording.type_of(name)

    def proto(self, cut: Cut) -> onnx.ModelProto:
        """The candidate as a model; recorded values stand in it where the cut says so."""
        part = self.part(cut)
        for name in (*part.inputs, *part.outputs):
            self.graph.types[name] = self.type_of(name)
        made = part_model(self.graph, part)
        for at in sorted(cut.skips):
            _pass_by(made.graph, self.graph.nodes[at])
        kept = [p for p in made.graph.input if p.name not in cut.constants]
        del made.graph.input[:]
        made.graph.input.extend(kept)
        if cut.constants:
            assert self.recording is not None, "constants are made of recorded values"
            for name in sorted(cut.constants & set(part.inputs)):
                array = self.recording.of(name)[0]
                made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        return made

    # the stages

    def _one_output(self, cut: Cut) -> Cut:
        for name in cut.ends if len(cut.ends) > 1 else ():
            alone = replace(cut, ends=(name,))
            if self._fails(alone, f"only the output {name!r}"):
                return alone
        return cut

    def _trim_end(self, cut: Cut) -> Cut:
        """The earliest node whose results show the failure."""
        nodes = [i for i in self.part(cut).nodes if self.graph.depends[i]]

        def ending(at: int) -> Cut:
            return replace(cut, ends=tuple(name for name in self.graph.nodes[nodes[at]].output if name))

        found = self._bisect(
            len(nodes), ending, "end", lambda at: f"ends at {label(self.graph.nodes[nodes[at]])}"
        )
        return cut if found is None else ending(found)

    def _trim_beginning(self, cut: Cut) -> Cut:
        """The latest place that the failure can start from."""
        nodes = [i for i in self.part(cut).nodes if self.graph.depends[i]]

        def starting(at: int) -> Cut:
            # at 0 everything is cut away but the last node; at the far end nothing is
            kept = set(nodes[len(nodes) - 1 - at :])
            wanted = {name for i in kept for name in reads(self.graph.nodes[i])}
            border = {n for n in wanted if self._is_made_outside(n, kept)}
            return replace(cut, starts=frozenset(border))

        def text(at: int) -> str:
            return f"begins with {label(self.graph.nodes[nodes[len(nodes) - 1 - at]])}"

        found = self._bisect(len(nodes), starting, "beginning", text)
        return cut if found is None else starting(found)

    def _is_made_outside(self, name: str, kept: set[int]) -> bool:
        at = self.graph.producer.get(name)
        return at is not None and at not in kept and self.graph.depends[at]

    def _drop_nodes(self, cut: Cut) -> Cut:
        """Each node's results given instead of made, until no node can go."""
        shrunk = True
        while shrunk:
            shrunk = False
            part = self.part(cut)
            for at in reversed(part.nodes):
                node = self.graph.nodes[at]
                if not self.graph.depends[at] or set(node.output) & set(cut.ends):
                    continue
                trial = replace(cut, starts=cut.starts | {n for n in node.output if n in self.graph.readers})
                if len(self.part(trial).nodes) < len(self.part(cut).nodes) and self._fails(
                    trial, f"without {label(node)}"
                ):
                    cut, shrunk = trial, True
        return cut

    def _pass_nodes_by(self, cut: Cut) -> Cut:
        """Nodes whose result has the type of what they read: their readers read that instead."""
        for at in (i for i in self.part(cut).nodes if self.graph.depends[i]):
            node = self.graph.nodes[at]
            if not set(node.output) & set(cut.ends) and self._is_like_its_input(node):
                trial = replace(cut, skips=cut.skips | {at})
                if self._fails(trial, f"past {label(node)}"):
                    cut = trial
        return cut

    def _is_like_its_input(self, node: onnx.NodeProto) -> bool:
        """And nothing else needs it: results that subgraphs capture keep their names."""
        if len(node.output) != 1 or not node.input or not node.input[0]:
            return False
        inner = {
            name for i in self.graph.readers.get(node.output[0], ()) for name in self.graph.nodes[i].input
        }
        types = [self.graph.types.get(name) for name in (node.input[0], node.output[0])]
        return node.output[0] in inner and types[0] is not None and types[0] == types[1]

    def _write_constants(self, cut: Cut) -> Cut:
        """Inputs that were no inputs before become constants, if all samples agree on them."""
        inputs = self.part(cut).inputs
        for name in inputs:
            if name in self.graph.inputs or self.recording is None or not self.recording.has(name):
                continue
            if len(cut.constants) == len(inputs) - 1:
                break  # a model without inputs is constant and shows little of the failure
            arrays = self.recording.of(name)
            is_same = all(np.array_equal(arrays[0], other) for other in arrays[1:])
            if not is_same or arrays[0].nbytes > CONSTANT_BYTES:
                continue
            trial = replace(cut, constants=cut.constants | {name})
            if self._fails(trial, f"{name!r} as a constant"):
                cut = trial
        return cut

    # the work

    def _bisect(
        self, count: int, make: Callable[[int], Cut], stage: str, text: Callable[[int], str]
    ) -> int | None:
        """The smallest index that fails, taking it that larger ones fail too; None if only the last does."""
        low, high = 0, count - 1
        while low < high:
            middle = (low + high) // 2
            if self._fails(make(middle), text(middle), stage):
                high = middle
            else:
                low = middle + 1
        return high if high < count - 1 else None

    def _fails(self, cut: Cut, action: str, stage: str = "nodes") -> bool:
        if cut in self._known:
            return self._known[cut]
        if len(self.steps) >= self.max_checks:
            if not self.notes:
                self.notes.append(f"stopped after {self.max_checks} checks: --max-checks allows more")
            return False
        try:
            proto = self.proto(cut)
        except ModelError:  # a cut through a value of unknown type cannot be written down
            self._known[cut] = False
            return False
        model, inputs = self.folder / "candidate.onnx", self.folder / "candidate_inputs"
        write_model(proto, self.graph.folder, model)
        if self.recording is not None and self.command.wants_inputs:
            self.recording.write_samples([p.name for p in proto.graph.input], inputs)
        outcome = self.command.run(model, inputs)
        if self._first is None:
            self._first = outcome
        self._note(action, count_nodes(proto.graph.node), outcome)
        if self.progress is not None:
            self.progress(stage, len(self.steps), 0, f"{action}: {outcome.text}")
        self._known[cut] = self.steps[-1].still_fails
        return self._known[cut]

    def _note(self, action: str, nodes: int, outcome: Outcome) -> None:
        assert self._first is not None, "the whole model is run first"
        same = self.command.is_same(outcome, self._first)
        self.steps.append(Step(action, nodes, same, outcome.text, round(outcome.seconds, 3)))


def _pass_by(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """Take the node out; who read its result reads its input."""
    for i, other in enumerate(graph.node):
        if other.output == node.output:
            del graph.node[i]
            break
    for other in graph.node:
        for i, name in enumerate(other.input):
            if name == node.output[0]:
                other.input[i] = node.input[0]
