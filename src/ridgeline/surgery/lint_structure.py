"""Lint rules on structure: opsets, ops, names, order, values that no node makes or reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx

from ridgeline.errors import did_you_mean, last_lines
from ridgeline.frontend.functions import subgraphs
from ridgeline.frontend.other_runtimes import known_to_runtimes
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import row_of
from ridgeline.surgery.extract import walk_back
from ridgeline.surgery.graph import label, reads
from ridgeline.surgery.problem import Problem, Rule, Scope, Subject, domain_of, names_given, names_wanted

OLD_OPSET = 13


def opset_imports(subject: Subject) -> Iterator[Problem]:
    """Every domain that is used has a version, once."""
    used = {domain_of(node) for _, node in subject.all_nodes}
    for domain in sorted(used - set(subject.opsets)):
        name = domain or "ai.onnx"
        nodes = [node for _, node in subject.all_nodes if domain_of(node) == domain]
        yield Problem(
            "error", "opset", label(nodes[0]), f"no opset import for domain {name!r}",
            got=f"{len(nodes)} nodes of that domain", want=f"an opset_import of {name!r}",
            help="the exporter left it out; write it with onnx.helper or export again",
        )  # fmt: skip
    version = subject.opsets.get("", OLD_OPSET)
    newest = onnx.defs.onnx_opset_version()
    if version > newest:
        yield Problem(
            "error", "opset", "model", "the opset is newer than the installed onnx knows",
            got=str(version), want=f"at most {newest}", help="pip install --upgrade onnx",
        )  # fmt: skip
    elif version < OLD_OPSET:
        yield Problem(
            "note", "opset", "model", "the opset is old: it is converted before the build",
            got=str(version), want="18 or later", help="export again if the conversion gives trouble",
        )  # fmt: skip


def known_ops(subject: Subject) -> Iterator[Problem]:
    """Ops that nothing can run, each with all its nodes."""
    places: dict[tuple[str, str], list[onnx.NodeProto]] = {}
    for _, node in subject.all_nodes:
        key = (domain_of(node), node.op_type)
        if key in subject.local_functions or key[0] not in subject.opsets:
            continue
        if onnx.defs.has(key[1], max_inclusive_version=subject.opsets[key[0]], domain=key[0]):
            continue
        if not known_to_runtimes(*key):
            places.setdefault(key, []).append(node)
    for (domain, op), nodes in places.items():
        known = sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == domain})
        yield Problem(
            "error", "op", label(nodes[0]), f"nobody runs {domain + '::' if domain else ''}{op}",
            got=f"{len(nodes)} of them, opset {subject.opsets[domain]}",
            want="an op of the standard, of ONNX Runtime, of a plugin, or a function in the file",
            help=did_you_mean(op, known)
            if known
            else "install a plugin that has it, or give its meaning as a model-local function",
        )  # fmt: skip


def slow_ops(subject: Subject) -> Iterator[Problem]:
    """Ops that run, but not through PyTorch or a kernel of ours."""
    slow: dict[str, list[onnx.NodeProto]] = {}
    for _, node in subject.all_nodes:
        domain = domain_of(node)
        key = f"{domain}::{node.op_type}" if domain else node.op_type
        row = row_of(node)
        is_known = row.has_floor or bool(row.kind & Kind.CONTROL)
        if not is_known and (domain, node.op_type) not in subject.local_functions and (
            known_to_runtimes(domain, node.op_type) or onnx.defs.has(node.op_type, domain=domain)
        ):  # fmt: skip
            slow.setdefault(key, []).append(node)
    for key, nodes in slow.items():
        yield Problem(
            "note", "slow op", label(nodes[0]), f"{key} has no implementation of our own",
            got=f"{len(nodes)} of them", want="",
            help="it is taken apart into ops that have one, or else runs by itself, more slowly, in ONNX"
            " Runtime or the onnx reference evaluator",
        )  # fmt: skip


def legal_nodes(subject: Subject) -> Iterator[Problem]:
    """What ONNX's own checker says of each node: attributes, numbers of inputs, deprecated ops."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version = subject.proto.ir_version or 8
    context.opset_imports = dict(subject.opsets)
    for scope, node in subject.all_nodes:
        domain = domain_of(node)
        if (domain, node.op_type) in subject.local_functions or domain not in subject.opsets:
            continue
        if not onnx.defs.has(node.op_type, max_inclusive_version=subject.opsets[domain], domain=domain):
            continue
        if any(attr.ref_attr_name for attr in node.attribute):
            continue  # a function's parameter: checked where the function is called
        if any(subgraphs(node)):
            continue  # subgraphs see outer names, a lone node does not; their own nodes are checked
        try:
            onnx.checker.check_node(node, context)
        except onnx.checker.ValidationError as error:
            yield Problem(
                "error", "node", _at(scope, node), "ONNX's checker refuses this node",
                got=last_lines(error), want=f"{node.op_type} as opset {subject.opsets[domain]} has it",
            )  # fmt: skip


def names(subject: Subject) -> Iterator[Problem]:
    """Values are made once, before they are read; outputs are made; node names are unique."""
    for scope in subject.scopes:
        made = dict.fromkeys(scope.outer | names_given(scope.graph))
        later = {name for node in scope.graph.node for name in node.output if name}
        all_known = sorted({*made, *later})
        for node in scope.graph.node:
            for name in dict.fromkeys(n for n in reads(node) if n not in made):
                yield _unmade(scope, node, name, is_later=name in later, known=all_known)
            for name in (n for n in node.output if n):
                if name in made:
                    yield Problem(
                        "error", "name", _at(scope, node), f"{name!r} is made a second time",
                        want="one maker for every name",
                    )  # fmt: skip
                made[name] = None
        for name in names_wanted(scope.graph):
            if name not in made:
                yield Problem(
                    "error", "output", scope.where or "model", f"nobody makes the output {name!r}",
                    help=did_you_mean(name, all_known),
                )  # fmt: skip
    counts = Counter(node.name for node in subject.proto.graph.node if node.name)
    for name, count in counts.items():
        if count > 1:
            yield Problem("warning", "name", name, "several nodes have this name", got=f"{count} nodes")


def _unmade(scope: Scope, node: onnx.NodeProto, name: str, *, is_later: bool, known: list[str]) -> Problem:
    if is_later:
        return Problem(
            "error", "order", _at(scope, node), f"reads {name!r} before it is made",
            want="nodes in the order of the data", help="sort the nodes: onnx_ir's graph.sort() does",
        )  # fmt: skip
    return Problem(
        "error",
        "name",
        _at(scope, node),
        f"reads {name!r}, which nobody makes",
        help=did_you_mean(name, known),
    )


def unused(subject: Subject) -> Iterator[Problem]:
    """Inputs, weights and nodes without an effect on any output."""
    graph = subject.graph
    outputs = {p.name for p in graph.proto.graph.output}
    for name in graph.inputs:
        if name not in graph.readers and name not in outputs:
            yield Problem(
                "warning", "unused", name, "nobody reads this input", help="callers must still give it"
            )
    idle = [name for name in graph.initializers if name not in graph.readers and name not in outputs]
    for name in idle:
        yield Problem(
            "warning", "unused", name, "nobody reads this weight", help="it only makes the file larger"
        )
    live = set(walk_back(graph, frozenset(), outputs, may_lack=True).nodes)
    for i, node in enumerate(graph.nodes):
        if i not in live:
            yield Problem("warning", "unused", label(node), "no output depends on this node")
    defaults = [p.name for p in graph.proto.graph.input if p.name in graph.initializers]
    if defaults:
        yield Problem(
            "note", "default", defaults[0], "weights are listed as inputs too: their values are defaults",
            got=f"{len(defaults)} of them", help="ridgeline takes them as constants",
        )  # fmt: skip


def _at(scope: Scope, node: onnx.NodeProto) -> str:
    return f"{label(node)} in {scope.where}" if scope.where else label(node)


STRUCTURE: tuple[Rule, ...] = (opset_imports, known_ops, legal_nodes, names, unused, slow_ops)
