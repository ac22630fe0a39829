"""What `torch.export` assumed about sizes: guards, ranges, equal dims, sizes that are not 0 or 1."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from ridgeline.base.guards import ARITY, MAX_DEPTH, SIZE, Term, evaluate, holds, sizes_in
from ridgeline.errors import UnsupportedError
from ridgeline.options import MAX_DIM

# torch assumes that every open size is at least this, and records no guard for it
LEAST = 2
COMPARED: dict[type, str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
COMPUTED: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.Div: "/", ast.Pow: "**",
}  # fmt: skip
# how torch writes these operators as calls
CALLS = {
    "Min": "min", "Max": "max", "sym_float": "float", "ToFloat": "float", "FloorDiv": "//", "CleanDiv": "//",
    "Mod": "%", "PythonMod": "%", "IntTrueDiv": "/", "FloatTrueDiv": "/", "Eq": "==", "Ne": "!=",
    "CeilToInt": "ceil", "FloorToInt": "floor", "TruncToInt": "trunc", "RoundToInt": "round", "int": "trunc",
    "sym_sqrt": "sqrt", "PowByNatural": "**", "FloatPow": "**",
}  # fmt: skip
FOLDED = {"min": "min", "max": "max", "sym_sum": "+"}


@dataclass(frozen=True)
class OpenDim:
    """A dim that may change: every input and axis that has its size, the first of them telling it."""

    places: tuple[tuple[str, int], ...]
    is_bounded: bool  # the user's range or the module's code excludes 0 and 1

    @property
    def term(self) -> Term:
        return (SIZE, *self.places[0])


@dataclass(frozen=True)
class Assumed:
    """What an export holds for: `guards` are recorded, `sizes` are taken to be 2 or more without a record."""

    guards: tuple[Term, ...] = ()
    sizes: tuple[Term, ...] = ()
    dims: tuple[OpenDim, ...] = ()

    def all_guards(self, example: Mapping[str, Sequence[int]]) -> tuple[Term, ...]:
        """With the sizes that are taken to be 2 or more; one that the example has smaller may be so."""
        least = [(">=", size, min(LEAST, evaluate(size, example))) for size in self.sizes]
        return (*self.guards, *(guard for guard in least if guard[2] > 0))


NOTHING_ASSUMED = Assumed()


class UnreadableError(Exception):
    """A guard about something other than sizes and numbers."""


def read_assumed(
    program: ExportedProgram, names: Sequence[str], tensors: Sequence[Tensor], *, is_oblivious: bool
) -> Assumed:
    """The assumptions of an export, over its inputs' names.

    `is_oblivious`: torch also took sizes that are computed from others to be 2 or more.
    """
    nodes = _input_nodes(program)
    shapes = {name: tuple(tensor.shape) for name, tensor in zip(names, tensors, strict=True)}
    called = dict(zip((node.name for node in nodes), names, strict=True))
    reader = _Reader({str(name): called.get(str(name), "") for name in program.graph_signature.user_inputs})
    for is_plain in (True, False):  # a dim that is a symbol tells it; one computed from it does so at need
        for name, node in zip(names, nodes, strict=True):
            for axis, size in enumerate(node.meta["val"].shape):
                if isinstance(size, torch.SymInt) and not size.node.expr.is_number:
                    reader.take(size.node.expr, name, axis, shapes[name][axis], is_plain=is_plain)
    if not reader.symbols:
        return Assumed(tuple(reader.guards))
    recorded = getattr(program, "_guards_code", None)
    if recorded is None:
        raise UnsupportedError(
            "this PyTorch does not say what its export assumed about sizes",
            got=torch.__version__,
            help="leave dynamic_shapes out, or use a release between 2.11 and 2.13",
        )
    guards = [*reader.guards, *_ranges(program, reader)]
    sizes: list[Term] = list(reader.symbols.values())
    try:
        guards += [reader.read(line) for line in recorded]
        sizes += _computed_sizes(program, reader) if is_oblivious else []
    except (UnreadableError, SyntaxError, RecursionError):
        # a guard that cannot be read cannot be checked at another size, so the sizes are fixed
        guards += [("==", (SIZE, *place), shapes[place[0]][place[1]]) for place in reader.places()]
    guards = [guard for guard in dict.fromkeys(guards) if not _is_plain_truth(guard)]
    sizes = [size for size in dict.fromkeys(sizes) if _least(size) < LEAST]
    return Assumed(tuple(guards), tuple(sizes), tuple(reader.open_dims(program)))


def _input_nodes(program: ExportedProgram) -> list[Any]:
    """One for each tensor that a call gives."""
    wanted = set(program.graph_signature.user_inputs)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in wanted]
    return [node for node in nodes if isinstance(node.meta.get("val"), Tensor)]


class _Reader:
    """torch's symbols and expressions as terms over the sizes of inputs."""

    def __init__(self, inputs: Mapping[str, str]) -> None:
        """`inputs`: torch's name of every argument, and ours; "" for one that is no tensor."""
        self._inputs = {_spelled(argument): name for argument, name in inputs.items()}
        self._flat = list(inputs.values())
        self.symbols: dict[str, Term] = {}
        self.exprs: dict[str, Any] = {}  # torch's own, by their text
        self.told: dict[str, list[tuple[str, int]]] = {}  # places of plain symbols
        self.guards: list[Term] = []
        self._others: list[tuple[str, int]] = []

    def take(self, expr: Any, name: str, axis: int, size: int, *, is_plain: bool) -> None:
        """One open dim of an input: it tells a symbol, or must agree with those already told."""
        if bool(expr.is_Symbol) != is_plain:
            return
        key, place = str(expr), (SIZE, name, axis)
        self.exprs[key] = expr
        if is_plain:
            self.told.setdefault(key, []).append((name, axis))
            if self.symbols.setdefault(key, place) != place:
                self.guards.append(("==", place, self.symbols[key]))
            return
        self._others.append((name, axis))
        try:
            self._solve(expr, place)
            self.guards.append(("==", place, self.read(key)))
        except UnreadableError:
            self.guards.append(("==", place, size))

    def _solve(self, expr: Any, place: Term) -> None:
        """`a * s + b` tells s where nobody did yet."""
        unknown = [symbol for symbol in expr.free_symbols if str(symbol) not in self.symbols]
        if len(unknown) != 1 or len(expr.free_symbols) != 1:
            return
        rest = expr.subs(unknown[0], 0)
        factor = expr.subs(unknown[0], 1) - rest
        if not (rest.is_Integer and factor.is_Integer) or factor * unknown[0] + rest != expr:
            return
        self.symbols[str(unknown[0])] = ("//", ("-", place, int(rest)), int(factor))

    def places(self) -> list[tuple[str, int]]:
        return [*(place for told in self.told.values() for place in told), *self._others]

    def open_dims(self, program: ExportedProgram) -> list[OpenDim]:
        return [
            OpenDim(tuple(places), _range(program, self.exprs[key])[0] > LEAST)
            for key, places in self.told.items()
        ]

    def read(self, line: str) -> Term:
        """A guard or an expression as torch writes it."""
        return self._term(ast.parse(line.strip(), mode="eval").body, 0)

    def _term(self, node: ast.AST, depth: int) -> Term:
        if depth > MAX_DEPTH // 2:
            raise UnreadableError
        match node:
            case ast.Constant(value=bool() as value):
                return int(value)
            case ast.Constant(value=int() | float() as value):
                return value
            case ast.Name(id=name) if name in self.symbols:
                return self.symbols[name]
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return ("*", -1, self._term(inner, depth + 1))
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return ("not", self._term(inner, depth + 1))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in COMPUTED:
                return (COMPUTED[type(op)], self._term(left, depth + 1), self._term(right, depth + 1))
            case ast.BoolOp(op=op, values=values):
                return _folded("and" if isinstance(op, ast.And) else "or", self._terms(values, depth))
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(o) in COMPARED for o in ops):
                terms = self._terms([left, *others], depth)
                pairs = zip(ops, terms[:-1], terms[1:], strict=True)
                return _folded("and", [(COMPARED[type(o)], a, b) for o, a, b in pairs])
            case ast.Call(func=func, args=args, keywords=[]):
                return self._call(func, args, depth)
            case ast.Subscript(
                value=ast.Call(func=ast.Attribute(attr="size")), slice=ast.Constant(value=axis)
            ):
                return (SIZE, self._input(node), axis)
        raise UnreadableError(ast.dump(node)[:200])

    def _terms(self, nodes: Sequence[ast.AST], depth: int) -> list[Term]:
        return [self._term(node, depth + 1) for node in nodes]

    def _call(self, func: ast.AST, args: Sequence[ast.AST], depth: int) -> Term:
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        name = CALLS.get(name, name)
        if name in FOLDED and len(args) == 1 and isinstance(args[0], (ast.List, ast.Tuple)):
            args = args[0].elts
        terms = self._terms(args, depth)
        if name in FOLDED and terms:
            return _folded(FOLDED[name], terms)
        if ARITY.get(name) != len(terms):
            raise UnreadableError(name)
        return (name, *terms)

    def _input(self, node: Any) -> str:
        """The input of `L['x'][0]['key'].size()[1]`, which torch names x_0_key."""
        place = node.value.func.value
        keys: list[Any] = []
        while isinstance(place, ast.Subscript) and isinstance(place.slice, ast.Constant):
            keys.insert(0, place.slice.value)
            place = place.value
        if not (isinstance(place, ast.Name) and place.id == "L" and keys):
            raise UnreadableError(ast.dump(node)[:200])
        is_flat = keys[0] == "flat_args" and len(keys) == 2 and keys[1] < len(self._flat)
        name = self._flat[keys[1]] if is_flat else self._inputs.get(_spelled("_".join(map(str, keys))))
        if not name:
            raise UnreadableError(str(keys))
        return name


def _spelled(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_").lower()


def _folded(name: str, terms: Sequence[Term]) -> Term:
    made = terms[0]
    for term in terms[1:]:
        made = (name, made, term)
    return made


def _range(program: ExportedProgram, expr: Any) -> tuple[int, int | None]:
    """Smallest and largest size; the largest is None where there is none."""
    found = program.range_constraints.get(expr)
    if found is None:
        return 0, None
    low = int(found.lower) if found.lower.is_Integer else 0
    high = int(found.upper) if found.upper.is_Integer else None
    return low, None if high is None or high >= MAX_DIM else high


def _ranges(program: ExportedProgram, reader: _Reader) -> list[Term]:
    made: list[Term] = []
    for key, expr in reader.exprs.items():
        low, high = _range(program, expr)
        try:
            term = reader.read(key)
        except UnreadableError:
            continue  # such a dim is fixed
        made += [(">=", term, low)] if low > LEAST else []
        made += [("<=", term, high)] if high is not None else []
    return made


def _computed_sizes(program: ExportedProgram, reader: _Reader) -> list[Term]:
    """Sizes of results that follow from open dims. Sizes that data decides on are in no guard."""
    found: dict[str, Any] = {}
    for node in program.graph.nodes:
        values = node.meta.get("val")
        for value in values if isinstance(values, (tuple, list)) else (values,):
            for size in value.shape if isinstance(value, Tensor) else ():
                if isinstance(size, torch.SymInt):
                    found.setdefault(str(size.node.expr), size.node.expr)
    known = set(reader.symbols)
    return [
        reader.read(key)
        for key, expr in found.items()
        if expr.free_symbols and {str(symbol) for symbol in expr.free_symbols} <= known
    ]


def _least(term: Term) -> float:
    """A bound from below of a size expression, where every size is at least 1."""
    if not isinstance(term, tuple):
        return term
    if term[0] == SIZE:
        return 1
    if term[0] not in ("+", "*", "min", "max"):
        return -float("inf")
    one, other = (_least(part) for part in term[1:])
    if term[0] == "*":
        return one * other if one >= 0 and other >= 0 else -float("inf")
    return {"+": one + other, "min": min(one, other), "max": max(one, other)}[term[0]]


def _is_plain_truth(guard: Term) -> bool:
    """True for a guard that holds always: it names no size, or compares a size with itself."""
    if not sizes_in(guard):
        return holds(guard, {})
    return isinstance(guard, tuple) and guard[0] == "==" and guard[1] == guard[2]
