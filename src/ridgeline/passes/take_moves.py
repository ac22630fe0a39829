"""Which ops that only move elements a region may take along, for kernels that read and write by index.

Only looks; whether a node is still to be had, the caller says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from ridgeline.ir.op_row import Kind, Trait
from ridgeline.ir.ops import has, is_a
from ridgeline.ir.quant import dequantizes
from ridgeline.passes.match import Found, PatternOps, Var, attribute, constant, find

IsFree: TypeAlias = Callable[[ir.Node], bool]

_OPERANDS = 3  # q, k and v
_OP, _OUT, _V = PatternOps(), Var("out"), Var("v")
_GUARD = _OP.Where(_OP.IsNaN(_OUT), _OP.ReduceSum(_OP.Mul(_V, 0.0), _OP.known(Var("axes"))), _OUT)


def guard_of(attention: ir.Node) -> list[ir.Node]:
    """The Mul, ReduceSum, IsNaN and Where that put zero times the values for NaN behind an Attention."""
    out = attention.outputs[0]
    where = next((node for node, _ in out.uses() if node.op_type == "Where"), None)
    if where is None or attention.op_type != "Attention":
        return []
    for found in find(_GUARD, where.outputs[0], Found({"out": out, "v": attention.inputs[2]})):
        values = [out, *(node.outputs[0] for node in found.nodes[1:])]
        if all(_read_only_by(value, set(found.nodes)) for value in values):
            return list(reversed(found.nodes))
    return []


def views_before(attention: ir.Node, is_free: IsFree) -> list[ir.Node]:
    """The views and slices of q, k and v, and the Split they come from, that nobody else reads."""
    kernel = {attention, *guard_of(attention)}
    own = [dequantizer_of(value, is_free) for value in attention.inputs[:_OPERANDS]]
    kernel |= {node for node in own if node is not None}
    operands = [
        value if node is None else node.inputs[0] for node, value in zip(own, attention.inputs, strict=False)
    ]
    chains = [_views_up(value, kernel, is_free) for value in operands if value is not None]
    taken = {*kernel, *(node for chain in chains for node in chain)}
    found: dict[ir.Node, None] = {}
    for value, chain in zip(operands, chains, strict=True):
        start = chain[-1].inputs[0] if chain else value
        part = start.producer()
        is_part = part is not None and part.op_type == "Split" and is_free(part) and _is_fixed(part)
        if is_part and part is not None and all(_read_only_by(out, taken) for out in part.outputs):
            found.update(dict.fromkeys((*chain, part)))
        # reshapes alone are views outside a region too
        elif any(not is_a(node, Kind.VIEW) for node in chain):
            found.update(dict.fromkeys(chain))
    return list(found)


def dequantizer_of(value: ir.Value | None, is_free: IsFree) -> ir.Node | None:
    """The DequantizeLinear of an operand, if a region has it already: that of the operand's only reader."""
    maker = value.producer() if value is not None else None
    return maker if maker is not None and dequantizes(maker) and not is_free(maker) else None


def _views_up(value: ir.Value, readers: set[ir.Node], is_free: IsFree) -> list[ir.Node]:
    """Views between a value and its readers, the last one first."""
    chain: list[ir.Node] = []
    while (node := value.producer()) is not None and has(node, Trait.STRIDED) and is_free(node):
        if not _read_only_by(value, {chain[-1]} if chain else readers) or not _is_fixed(node):
            break
        chain.append(node)
        value = node.inputs[0]
    return chain


def views_after(attention: ir.Node, is_free: IsFree) -> list[ir.Node]:
    """The transpose that joins the heads again, and the reshape behind it."""
    return views_behind([attention, *guard_of(attention)][-1].outputs[0], is_free)


def views_behind(value: ir.Value, is_free: IsFree) -> list[ir.Node]:
    """A transpose of the value, and a reshape behind that."""
    found: list[ir.Node] = []
    for kinds in (("Transpose",), ("Reshape",)):
        readers = {node for node, _ in value.uses()}
        node = next(iter(readers), None)
        if value.is_graph_output() or len(readers) != 1 or node is None or node.op_type not in kinds:
            break
        if not is_free(node) or not _is_fixed(node):
            break
        found.append(node)
        value = node.outputs[0]
    return found


def moves_before(
    nodes: Sequence[ir.Node], is_free: IsFree, *, turns: bool = False, is_copied: IsFree = lambda _: False
) -> list[ir.Node]:
    """Gathers, splits, slices and joins whose results only these nodes read.

    With `turns`, transposes of rows and the reshapes between such ops as well. Views before them are taken
    where they are copies.
    """
    taken = set(nodes)
    found: list[ir.Node] = []
    waiting = list(nodes)
    while waiting:
        for value in waiting.pop().inputs:
            chain = _reach(value, taken, is_free, turns) if value is not None else []
            while chain and is_a(chain[-1], Kind.VIEW) and not is_copied(chain[-1]):
                chain.pop()  # free outside a region
            taken.update(chain)
            found += chain
            waiting += chain
    return found


def _reach(value: ir.Value, taken: set[ir.Node], is_free: IsFree, turns: bool) -> list[ir.Node]:
    """The views behind which a value is made, and the move before them, as far as nobody else reads them."""
    chain: list[ir.Node] = []
    while (node := value.producer()) is not None and node not in taken:
        readers = taken | set(chain)
        if not is_a(node, Kind.MOVEMENT) or not is_free(node) or not _is_fixed(node):
            break
        if not all(_read_only_by(out, readers) for out in node.outputs):
            break
        if not is_a(node, Kind.VIEW):
            is_taken = node.op_type != "Transpose" or (turns and keeps_columns(node))
            return [*chain, node] if is_taken else chain
        if not turns:
            break
        chain.append(node)
        value = node.inputs[0]
    return chain


def keeps_columns(transpose: ir.Node) -> bool:
    """Neighbours in memory stay neighbours."""
    perm = attribute(transpose, "perm")
    return perm is not None and perm[-1] == len(perm) - 1


def _is_fixed(node: ir.Node) -> bool:
    """How it moves is written in the model; only a gather's places may come at run time."""
    if node.op_type in ("Gather", "Concat", "Transpose"):
        return True
    return all(value is None or constant(value) is not None for value in node.inputs[1:])


def _read_only_by(value: ir.Value, readers: set[ir.Node]) -> bool:
    return not value.is_graph_output() and all(node in readers for node, _ in value.uses())
