"""Random chains of moves, sums and norms over small tensors, by seed: what generated kernels put together."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from ridgeline.base.spec import Op
from ridgeline.kernels.floor import call_floor

LARGEST = 1500  # items of a value
SIZES = (1, 2, 3, 4, 4, 6)


class Chain:
    """The ops so far with every value by the floor. Each draw reads one of the latest values."""

    def __init__(self, seed: int, *, products: bool = False) -> None:
        self.rng = random.Random(seed)
        self.ops: list[Op] = []
        self.constants: dict[str, np.ndarray] = {}
        self.values: dict[str, Tensor] = {}
        self.inputs = {"x": self._tensor([self.rng.choice(SIZES) for _ in range(self.rng.randint(2, 4))])}
        self.values.update(self.inputs)
        draws = MOVES + (PRODUCTS if products else ())
        while len(self.ops) < 8:
            draw = self.rng.choice(draws)
            name = self.rng.choice(list(self.values)[-3:])
            if self.values[name].dim() > 1:
                draw(self, name)
        read = {name for op in self.ops for name in op.inputs}
        made = [name for op in self.ops for name in op.outputs]
        self.outputs = [name for name in made if name not in read][-2:]
        self._drop_unread()

    def add(self, op_type: str, *inputs: str | np.ndarray, **attrs: object) -> str:
        names = [name if isinstance(name, str) else self._constant(name) for name in inputs]
        op = Op(op_type, tuple(names), (f"v{len(self.ops)}",), dict(attrs))
        known = self.values | {n: torch.from_numpy(a) for n, a in self.constants.items()}
        (made,) = call_floor(op, [known[name] for name in names])
        if not 0 < made.numel() <= LARGEST or made.dim() > 6:
            return str(names[0])
        self.ops.append(op)
        self.values[op.outputs[0]] = made.contiguous()
        return op.outputs[0]

    def weight(self, *shape: int) -> np.ndarray:
        return (self._tensor(shape) / math.sqrt(shape[0])).numpy()

    def model(self) -> ir.Model:
        """The same as ONNX."""
        float32 = ir.TensorType(ir.DataType.FLOAT)
        shapes = {name: ir.Shape(tensor.shape) for name, tensor in self.values.items()}
        values = {n: ir.Value(name=n, type=float32, shape=shape) for n, shape in shapes.items()}
        weights = {n: ir.tensor(array, name=n) for n, array in self.constants.items()}
        values |= {n: ir.Value(name=n, const_value=weight) for n, weight in weights.items()}
        nodes = [
            ir.node(
                op.op_type, [values[n] for n in op.inputs], op.attrs, outputs=[values[n] for n in op.outputs]
            )
            for op in self.ops
        ]
        graph = ir.Graph(
            [values[n] for n in self.inputs], [values[n] for n in self.outputs], nodes=nodes,
            initializers=[values[n] for n in weights], opset_imports={"": 20}, name="chain",
        )  # fmt: skip
        return ir.Model(graph, ir_version=10)

    def _drop_unread(self) -> None:
        needed, kept = set(self.outputs), []
        for op in reversed(self.ops):
            if needed & set(op.outputs):
                kept.append(op)
                needed |= set(op.inputs)
        self.ops = kept[::-1]
        self.constants = {name: array for name, array in self.constants.items() if name in needed}

    def _constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def _tensor(self, shape: Sequence[int]) -> Tensor:
        made = torch.Generator().manual_seed(self.rng.randrange(1 << 30))
        return torch.randn(tuple(shape), generator=made)


def _slice(chain: Chain, x: str, axis: int | None = None) -> str:
    shape = chain.values[x].shape
    axis = chain.rng.randrange(len(shape)) if axis is None else axis
    start = chain.rng.randrange(shape[axis])
    bounds = (start, chain.rng.randint(start + 1, shape[axis]), axis, chain.rng.choice([1, 1, 2]))
    return chain.add("Slice", x, *(np.array([number]) for number in bounds))


def _roll(chain: Chain, x: str) -> None:
    for axis in chain.rng.sample(range(chain.values[x].dim()), 2):
        size = chain.values[x].shape[axis]
        at = np.array([chain.rng.randrange(1, max(size, 2))])
        if size > 1:
            tail = chain.add("Slice", x, at, np.array([size]), np.array([axis]))
            x = chain.add(
                "Concat", tail, chain.add("Slice", x, np.array([0]), at, np.array([axis])), axis=axis
            )


def _gather(chain: Chain, x: str) -> None:
    axis = chain.rng.randrange(chain.values[x].dim())
    shape = chain.rng.choice([(), (1,), (3,), (2, 2)])
    places = np.array([chain.rng.randrange(chain.values[x].shape[axis]) for _ in range(math.prod(shape))])
    chain.add("Gather", x, places.reshape(shape), axis=axis)


def _transpose(chain: Chain, x: str) -> None:
    perm = list(range(chain.values[x].dim()))
    chain.rng.shuffle(perm)
    turned = chain.add("Transpose", x, perm=perm)
    if chain.values[turned].shape == chain.values[x].shape:
        chain.rng.choice([_join, _add])(chain, x, turned)


def _reshape(chain: Chain, x: str) -> None:
    shape = list(chain.values[x].shape)
    at = chain.rng.randrange(len(shape) - 1)
    if chain.rng.random() < 0.5:
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    else:
        part = chain.rng.choice([size for size in range(1, shape[at] + 1) if shape[at] % size == 0])
        shape[at : at + 1] = [part, shape[at] // part]
    chain.add("Reshape", x, np.array(shape))


def _pad(chain: Chain, x: str) -> None:
    rank = chain.values[x].dim()
    pads = [chain.rng.choice([0, 0, 1, 2]) for _ in range(2 * rank)]
    chain.add("Pad", x, np.array(pads), np.array(chain.rng.choice([0.0, -1.0]), dtype=np.float32))


def _join(chain: Chain, x: str, other: str = "") -> None:
    axis = chain.rng.randrange(chain.values[x].dim())
    chain.add("Concat", x, other or _slice(chain, x, axis), axis=axis)


def _add(chain: Chain, x: str, other: str = "") -> None:
    chain.add("Add", x, other or chain.weight(*chain.values[x].shape[-2:]))


def _sum(chain: Chain, x: str) -> None:
    axes = np.array([chain.rng.randrange(chain.values[x].dim())])
    total = chain.add("ReduceSum", x, axes, keepdims=1)
    if total != x:
        chain.add("Sub", x, total)


def _unary(chain: Chain, x: str) -> None:
    chain.add(chain.rng.choice(["Relu", "Neg", "Tanh"]), x)


def _product(chain: Chain, x: str) -> None:
    columns = chain.values[x].shape[-1]
    for _ in range(chain.rng.choice([1, 2])):
        chain.add("MatMul", x, chain.weight(columns, chain.rng.choice([4, 6])))


def _norm(chain: Chain, x: str) -> None:
    weights = (chain.weight(chain.values[x].shape[-1]) for _ in range(2))
    chain.add("LayerNormalization", x, *weights, axis=-1, epsilon=0.01)


def _softmax(chain: Chain, x: str) -> None:
    chain.add("Softmax", x, axis=-1)


def _first_rows(chain: Chain, x: str) -> None:
    axis = chain.values[x].dim() - 2
    part = chain.add("Slice", x, np.array([0]), np.array([1]), np.array([axis]))
    chain.add("ReduceMean", part, np.array([axis]), keepdims=0)


MOVES: tuple[Callable[[Chain, str], object], ...] = (
    _slice, _roll, _gather, _transpose, _transpose, _reshape, _reshape, _pad, _join, _add, _sum, _unary,
)  # fmt: skip
PRODUCTS: tuple[Callable[[Chain, str], object], ...] = (_product, _product, _norm, _softmax, _first_rows)
