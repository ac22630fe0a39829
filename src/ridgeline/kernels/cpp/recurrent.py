"""LSTM, GRU and RNN over a whole sequence in one call, without allocations or Python between the steps.

S steps, B batch, I input size, H hidden size, N directions. Hidden units are processed in blocks of a vector;
a panel of a packed weight holds all gates of one block, so a block's states follow directly from its sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Op, Site
from ridgeline.kernels.cpp.anchor import VECTORS
from ridgeline.kernels.cpp.dialect import term
from ridgeline.kernels.cpp.linear import TILE
from ridgeline.kernels.cpp.operands import operands_of, spec_of
from ridgeline.kernels.cpp.prelude import PRELUDE
from ridgeline.kernels.cpp.recurrent_text import CELLS, FRAME, ROWS
from ridgeline.kernels.floor.recurrent import DEFAULTS, parametrised
from ridgeline.kernels.scalar.program import Number, Program

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# inputs that are read where they lie: x, the lengths, the states; weights and biases are packed
READ = (0, 4, 5, 6)
# of products with x that are computed ahead; they stay in L2 until their step
AHEAD_BYTES = 256 * 1024
STATE_BYTES = 256 * 1024
ACTIVATIONS = {
    "relu": "x < 0.0f ? 0.0f : x", "tanh": "rl_tanh(x)", "sigmoid": "1.0f / (1.0f + rl_exp(-x))",
    "softsign": "x / (1.0f + rl_abs(x))", "softplus": "rl_log1p(rl_exp(-rl_abs(x))) + rl_max(x, 0.0f)",
    "affine": "{alpha} * x + {beta}", "leakyrelu": "x < 0.0f ? {alpha} * x : x",
    "elu": "x < 0.0f ? {alpha} * rl_expm1(x) : x", "thresholdedrelu": "x >= {alpha} ? x : 0.0f",
    "scaledtanh": "{alpha} * rl_tanh({beta} * x)",
    "hardsigmoid": "rl_min(rl_max({alpha} * x + {beta}, 0.0f), 1.0f)",
}  # fmt: skip


@dataclass(frozen=True)
class Recurrent:
    """The op of a region, and its sizes. Operands are names; an absent one is ""."""

    op: Op
    steps: int
    batch: int
    size: int
    hidden: int
    directions: int

    @property
    def gates(self) -> int:
        return GATES[self.op.op_type]

    @property
    def is_batch_first(self) -> bool:
        return bool(self.op.attrs.get("layout", 0))

    @property
    def is_reset_late(self) -> bool:
        """Whether a GRU resets after the product, which then needs no second pass."""
        return self.op.op_type == "GRU" and bool(self.op.attrs.get("linear_before_reset", 0))

    @property
    def step_macs(self) -> int:
        """Multiplications of one step in one direction that depend on the previous step."""
        return self.batch * self.gates * self.hidden * self.hidden

    @property
    def macs(self) -> int:
        each = self.gates * self.hidden * (self.size + self.hidden)
        return self.steps * self.batch * self.directions * each

    def operand(self, index: int) -> str:
        return self.op.inputs[index] if index < len(self.op.inputs) else ""


@dataclass(frozen=True)
class Cut:
    """How the work is divided among threads: `split` is "rows" (of the batch, and directions) or "units"."""

    threads: int
    split: str
    lanes: int


def find_recurrent(site: Site) -> Recurrent:
    """The site's one op, or `RefusedError`."""
    body = site.body
    if len(body.ops) != 1 or body.ops[0].domain or body.ops[0].op_type not in GATES:
        raise RefusedError("the region is not one LSTM, GRU or RNN")
    op = body.ops[0]
    given = dict(enumerate(op.inputs))
    for index, what in ((1, "W"), (2, "R"), (3, "B"), (7, "P")):
        name = given.get(index)
        if name and name not in site.weights and name not in body.constants:
            raise RefusedError(f"{what} is computed, want a constant")
    for name in filter(None, (*op.inputs, *body.outputs)):
        dtype, want = spec_of(site, name).dtype, "int32" if name == given.get(4) else "float32"
        if dtype != want:
            raise RefusedError(f"{name} is {dtype}, want {want}")
    x, r = spec_of(site, given[0]).shape, spec_of(site, given[2]).shape
    if 0 in (*x, *r):
        raise RefusedError("an axis has no elements")
    steps, batch = x[:2][:: -1 if op.attrs.get("layout", 0) else 1]
    found = Recurrent(op, steps, batch, x[2], r[2], r[0])
    _acts_text(found)  # refuses activations it does not know
    return found


def recurrent_source(site: Site, found: Recurrent, cut: Cut) -> tuple[Program, str]:
    """The program with the kernel's operands, and the kernel's text."""
    op = found.op
    operands = operands_of(site, filter(None, map(found.operand, READ)))
    places, packed = operands.places, len(operands.names)
    results = dict(zip(("y", "h_last", "c_last"), op.outputs, strict=False))
    pointers = {
        "x": places[op.inputs[0]],
        "lens": places.get(found.operand(4)),
        "h_given": places.get(found.operand(5)),
        "c_given": places.get(found.operand(6)),
        **{name: places.get(value) for name, value in results.items()},
        **{name: packed + i for i, name in enumerate(("w", "r", "r_late", "bias"))},
    }
    text = [
        PRELUDE.strip(), '#include <omp.h>', VECTORS.strip(), TILE.strip(), _sizes_text(found, cut),
        _acts_text(found), ROWS, CELLS[_cell(found)], FRAME, *_run_text(found, cut, pointers), "",
    ]  # fmt: skip
    return operands.program(_touched(found, cut, operands.names)), "\n".join(text)


def _touched(found: Recurrent, cut: Cut, pointers: Mapping[str, str]) -> dict[str, int]:
    """Bytes of every operand, result and packed weight; all are read or written whole."""
    units = found.directions * _padded(found, cut.lanes)
    state = found.directions * found.batch * found.hidden
    early = 2 if _cell(found) == "GRU" else found.gates
    items = [
        (found.operand(0), found.steps * found.batch * found.size), (found.operand(4), found.batch),
        (found.operand(5), state), (found.operand(6), state),
        *zip(found.op.outputs, (found.steps * state, state, state), strict=False),
    ]  # fmt: skip
    packed = (
        found.gates * units * found.size, early * units * found.hidden,
        (found.gates - early) * units * found.hidden or 1, len(_bias_rows(found)) * units,
    )  # fmt: skip
    touched = {f"w{i}": 4 * count for i, count in enumerate(packed)}
    for name, count in items:
        if name in pointers:  # one value may be several operands
            touched[pointers[name]] = max(touched.get(pointers[name], 0), 4 * count)
    return touched


def _cell(found: Recurrent) -> str:
    return "GRU_LATE" if found.is_reset_late else found.op.op_type


def batch_rows(found: Recurrent, cut: Cut) -> int:
    """Sequences that one unit of work processes together."""
    groups = -(-cut.threads // found.directions) if cut.split == "rows" else 1
    most = STATE_BYTES // (16 * _padded(found, cut.lanes))
    if not most:
        raise RefusedError(f"{found.hidden} hidden units, want at most {STATE_BYTES // 16}")
    return min(-(-found.batch // groups), most)


def _padded(found: Recurrent, lanes: int) -> int:
    return -(-found.hidden // lanes) * lanes


def _sizes_text(found: Recurrent, cut: Cut) -> str:
    rows, padded = batch_rows(found, cut), _padded(found, cut.lanes)
    ahead = max(1, min(found.steps, AHEAD_BYTES // (4 * rows * found.gates * padded)))
    # registers: rows * gates accumulators beside the operands
    tile = max(1, min(8, (24 if cut.lanes == 16 else 12) // found.gates))
    sizes = {
        "S": found.steps, "B": found.batch, "I": found.size, "H": found.hidden, "N": found.directions,
        "L": cut.lanes, "HP": padded, "BLOCKS": padded // cut.lanes, "GATES": found.gates, "BC": rows,
        "TC": ahead, "TILE_ROWS": tile, "REGISTERS": 24 if cut.lanes == 16 else 12,
        "EARLY": 2 if _cell(found) == "GRU" else found.gates, "BIAS": len(_bias_rows(found)) * cut.lanes,
    }  # fmt: skip
    flags = {
        "BATCH_FIRST": found.is_batch_first, "HAS_LENS": bool(found.operand(4)),
        "HAS_PEEPHOLES": bool(found.operand(7)), "COUPLED": bool(found.op.attrs.get("input_forget", 0)),
        "IN_TEAM": cut.threads > 1 and cut.split == "units",
    }  # fmt: skip
    lines = [f"constexpr i64 {name} = {value};" for name, value in sizes.items()]
    lines += [f"[[maybe_unused]] constexpr bool {name} = {int(value)};" for name, value in flags.items()]
    return "\n".join(lines)


def _acts_text(found: Recurrent) -> str:
    """The activations of every direction as functions; what enters a gate is clipped first."""
    attrs, kind = found.op.attrs, found.op.op_type
    names = attrs.get("activations") or DEFAULTS[kind] * found.directions
    unknown = [name for name in names if name.lower() not in ACTIVATIONS]
    each = len(DEFAULTS[kind])
    if unknown or len(names) < each * found.directions:
        raise RefusedError(f"activations {', '.join(unknown or names)}")
    clip = attrs.get("clip")
    made = parametrised(names, attrs.get("activation_alpha"), attrs.get("activation_beta"))
    lines = ["template <int D> struct Acts;"]
    for d in range(found.directions):
        lines.append(f"template <> struct Acts<{d}> {{")
        reverse = attrs.get("direction", "forward") == "reverse" or d == 1
        lines.append(f"static constexpr bool is_reverse = {int(reverse)};")
        for letter, (key, alpha, beta) in zip("fgh", made[each * d : each * (d + 1)], strict=False):
            text = ACTIVATIONS[key].format(alpha=_number(alpha), beta=_number(beta))
            # ONNX Runtime clips what enters the gates, but not what leaves the cell
            if clip is not None and letter != "h":
                limit = _number(float(clip))
                lines.append(f"FN float {letter}(float x) {{ x = rl_min(rl_max(x, -{limit}), {limit});")
            else:
                lines.append(f"FN float {letter}(float x) {{")
            lines.append(f"return {text}; }}")
        lines.append("};")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"({term(Number(float(value), 'float32'))})"


def _run_text(found: Recurrent, cut: Cut, pointers: dict[str, int | None]) -> list[str]:
    kinds = {"lens": "const int*", "y": "float*", "h_last": "float*", "c_last": "float*"}
    lines = ['extern "C" void run(void** p) {', "Args a = {};"]
    for name, place in pointers.items():
        if place is not None:
            lines.append(f"a.{name} = ({kinds.get(name, 'const float*')})p[{place}];")
    units = f"{found.directions} * PARTS"
    if cut.threads > 1 and cut.split == "rows":
        lines.append(f"#pragma omp parallel for schedule(static) num_threads({cut.threads})")
        lines.append(f"for (i64 unit = 0; unit < {units}; ++unit) {{ Shared s; rl_part(a, s, unit, 0, 1); }}")
    elif cut.threads > 1:
        lines.append("Shared s;")
        lines.append(f"#pragma omp parallel num_threads({cut.threads})")
        lines.append(f"for (i64 unit = 0; unit < {units}; ++unit) {{")
        lines.append("rl_part(a, s, unit, omp_get_thread_num(), omp_get_num_threads());")
        # no thread may start the next unit in memory that another thread still reads
        lines += ["#pragma omp barrier", "}"]
    else:
        lines.append("Shared s;")
        lines.append(f"for (i64 unit = 0; unit < {units}; ++unit) rl_part(a, s, unit, 0, 1);")
    return [*lines, "}"]


def pack_recurrent(found: Recurrent, constants: dict[str, Tensor], lanes: int) -> list[Tensor]:
    """W, R, the part of R that a second pass needs, and biases with peepholes, as the kernel reads them."""
    w, r = constants[found.op.inputs[1]], constants[found.op.inputs[2]]
    early = 2 if _cell(found) == "GRU" else found.gates
    first, late = r.split_with_sizes([early * found.hidden, (found.gates - early) * found.hidden], 1)
    vectors = torch.stack(_bias_values(found, constants), 1).flatten(1, 2)
    return [
        _panels(w, found, lanes),
        _panels(first, found, lanes),
        _panels(late, found, lanes) if late.shape[1] else torch.zeros(1),
        _panels(vectors[:, :, None], found, lanes),
    ]


def _panels(weight: Tensor, found: Recurrent, lanes: int) -> Tensor:
    """[N, gates * H, K] as [N][blocks][K][gates][lanes], with zeros after the last unit."""
    n, rows, depth = weight.shape
    gates, padded = rows // found.hidden, _padded(found, lanes)
    wide = torch.zeros(n, gates, padded, depth)
    wide[:, :, : found.hidden] = weight.reshape(n, gates, found.hidden, depth)
    return wide.view(n, gates, padded // lanes, lanes, depth).permute(0, 2, 4, 1, 3).contiguous()


def _bias_rows(found: Recurrent) -> Sequence[str]:
    """The vectors per block: one per gate; a late reset keeps the recurrent bias apart; then peepholes."""
    rows = ["gate"] * found.gates + ["late"] * found.is_reset_late
    return rows + ["peephole"] * (3 if found.operand(7) else 0)


def _bias_values(found: Recurrent, constants: dict[str, Tensor]) -> list[Tensor]:
    n, gates, hidden = found.directions, found.gates, found.hidden
    given = found.operand(3)
    both = constants[given].view(n, 2, gates, hidden) if given else torch.zeros(n, 2, gates, hidden)
    rows = list(both.sum(1).unbind(1))
    if found.is_reset_late:
        rows[2] = both[:, 0, 2]
        rows.append(both[:, 1, 2])
    if found.operand(7):
        rows += constants[found.operand(7)].view(n, 3, hidden).unbind(1)
    return rows
