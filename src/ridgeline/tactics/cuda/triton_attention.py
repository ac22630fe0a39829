"""Attention by our own Triton kernel: strided views read where they lie, blocks chosen by size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import product
from typing import Any

from torch import Tensor

from ridgeline.base.architectures import REGISTERS
from ridgeline.base.choices import RefusedError
from ridgeline.base.devices import Device, device_of
from ridgeline.base.spec import ITEM_BITS, TF32, Config, Site, Target
from ridgeline.kernels.triton.products import EXACT
from ridgeline.kernels.triton.source import Kernel
from ridgeline.kernels.triton.text import power_of_two
from ridgeline.tactics.base import Footprint, Launch, Offer
from ridgeline.tactics.cuda.own_kernels import KernelTactic, launcher_of
from ridgeline.tactics.predict import attention_us
from ridgeline.tactics.read.attention import (
    IN_REGION,
    AttentionSite,
    Operand,
    Place,
    read_attention,
)
from ridgeline.tactics.staging import staged_launch

# B batch, H heads, S queries, T keys, D head width; M, N blocks of queries and of keys

TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
MAX_WIDTH = 128
MAX_CONFIGS = 6
# up to here the sizes are constants of the kernel: the loop over the keys is unrolled, its checks fold away
FIXED_KEYS = 256
GRID_LIMIT = 65535
INT32 = 2**31

# cycles, fitted to nothing but the order of candidates: a program's start, a block's latency, and per score
START, STEP, SOFTMAX = 1500.0, 500.0, 0.12
# what of the tensor cores' rate attention reaches; on Hopper and later mma is the slower way to use them
TENSOR_SHARE, MMA_SHARE = 0.85, 0.51


@dataclass(frozen=True)
class CodeTypes:
    """Of q, k and v, and of y, in the form of a kernel's signature."""

    read: str
    made: str


@dataclass(frozen=True)
class Blocks:
    """How a program is shaped; the names are those of a config."""

    queries: int
    keys: int
    warps: int
    stages: int

    def config(self) -> Config:
        return asdict(self)

    @staticmethod
    def of(config: Config) -> Blocks:
        return Blocks(*(int(config[part.name]) for part in fields(Blocks)))


class TritonAttention(KernelTactic):
    """y = softmax(scale · q kᵀ + mask) v in one kernel."""

    name = "triton.attention"

    def offer(self, site: Site) -> Offer:
        self.require_kernels(site, of_tiles=True)
        attention = read_attention(site)
        require_addressable(attention)
        return Offer(
            [blocks.config() for blocks in rank_blocks(attention, site.target)],
            bind=lambda config, weights: self._bind(site, attention, Blocks.of(config)),
            kernels=lambda config: [kernel_of(attention, Blocks.of(config), site.target)],
            footprint=lambda config: Footprint(writes_out=True),
            extents=lambda config: extents(attention, len(site.body.inputs)),
            predict_us=partial(predict_attention_us, attention),
            compiles=True,
        )

    def _bind(self, site: Site, attention: AttentionSite, blocks: Blocks) -> Launch:
        kernel = kernel_of(attention, blocks, site.target)
        launcher, grid = launcher_of(kernel, site, self.store), grid_of(attention, blocks)
        slots = {operand.slot for operand in (*attention.operands, attention.mask) if operand is not None}

        def freeze(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], object]:
            return launcher.freeze(grid, arguments(attention, inputs, outputs))

        return staged_launch(freeze, site, slots)


def require_addressable(attention: AttentionSite) -> None:
    """Refuse what the kernel cannot read or write where it lies."""
    if attention.dtype not in TYPES:
        raise RefusedError(f"dtype is {attention.dtype}, want {', '.join(TYPES)}")
    for width in (attention.width, attention.value_width):
        if width % 8 or width > MAX_WIDTH:
            raise RefusedError(f"heads are {width} wide, want a multiple of 8 up to {MAX_WIDTH}")
    batch, heads, queries, keys = attention.scores
    if max(batch, heads) > GRID_LIMIT:
        raise RefusedError(f"{max(batch, heads)} batches or heads, a grid has {GRID_LIMIT}")
    for operand, name in zip(attention.operands, "qkv", strict=True):
        if operand.place is None:
            raise RefusedError(f"the views that make {name} move its elements")
    if isinstance(attention.guard, Operand):
        raise RefusedError("what stands for NaN is made outside the region")
    if attention.result_place is None:
        raise RefusedError("the views after the Attention move its elements")
    places = [_place(operand) for operand in attention.operands] + [attention.result_place]
    if any(abs(place.strides[2]) * max(queries, keys) >= INT32 for place in places):
        raise RefusedError("rows of a head lie more than 2**31 elements apart")
    if attention.mask is not None and keys > 1 and _place(attention.mask).strides[3] != 1:
        raise RefusedError("the mask's keys do not lie side by side")


def _place(operand: Operand) -> Place:
    assert operand.place is not None, "a site whose views move elements was refused"
    return operand.place


def grid_of(attention: AttentionSite, blocks: Blocks) -> tuple[int, int, int]:
    batch, heads, queries, _ = attention.scores
    return math.ceil(queries / blocks.queries), heads, batch


@dataclass(frozen=True)
class _Strides:
    """Strides as the kernel takes them: outer ones in units, so that it knows how rows are aligned."""

    unit: int
    mask_unit: int
    places: dict[str, Place]  # q, k, v, y

    @staticmethod
    def of(attention: AttentionSite) -> _Strides:
        assert attention.result_place is not None, "a site whose views move elements was refused"
        places = {name: _place(o) for name, o in zip("qkv", attention.operands, strict=True)}
        places["y"] = attention.result_place
        outer = [stride for place in places.values() for stride in place.strides[:2]]
        mask_outer = _place(attention.mask).strides[:3] if attention.mask else ()
        unit = math.gcd(_per_16_bytes(attention.dtype), *outer)
        mask_unit = math.gcd(_per_16_bytes(attention.mask_dtype or "bool"), *mask_outer)
        return _Strides(unit, mask_unit, places)

    def outer(self, name: str) -> tuple[int, int]:
        batch, head = self.places[name].strides[:2]
        return batch // self.unit, head // self.unit


def _per_16_bytes(dtype: str) -> int:
    return 128 // ITEM_BITS[dtype]


def arguments(
    attention: AttentionSite, inputs: Sequence[Any], outputs: Sequence[Tensor], scales: Tensor | None = None
) -> list[Tensor | int]:
    """What a launch passes: tensors where the operands begin, sizes unless fixed, outer strides."""
    strides = _Strides.of(attention)
    args: list[Tensor | int] = [_place(o).of(inputs[o.slot], o.shape) for o in attention.operands]
    if attention.mask is not None:
        args.append(inputs[attention.mask.slot])
    args.append(strides.places["y"].of(outputs[0], attention.result_shape))
    args += [] if scales is None else [scales]
    if not has_fixed_sizes(attention):
        args += attention.scores[2:]
    args += [stride for name in "qkv" for stride in strides.outer(name)]
    if attention.mask is not None:
        args += [stride // strides.mask_unit for stride in _place(attention.mask).strides[:3]]
    return [*args, *strides.outer("y")]


def extents(attention: AttentionSite, inputs: int) -> dict[int, int]:
    """Bytes that the kernel touches, by argument: the region's inputs, then its output."""
    found: dict[int, int] = {}
    masks = [] if attention.mask is None else [(attention.mask, attention.mask_dtype)]
    for operand, dtype in [*((o, attention.dtype) for o in attention.operands), *masks]:
        size = _place(operand).past(operand.shape) * ITEM_BITS[dtype] // 8
        found[operand.slot] = max(found.get(operand.slot, 0), size)
    result = _Strides.of(attention).places["y"].past(attention.result_shape)
    return found | {inputs: result * ITEM_BITS[attention.dtype] // 8}


def has_fixed_sizes(attention: AttentionSite) -> bool:
    return max(attention.scores[2:]) <= FIXED_KEYS


def kernel_of(
    attention: AttentionSite, blocks: Blocks, target: Target, codes: CodeTypes | None = None
) -> Kernel:
    """The kernel for one shape of programs, as a description; of codes, with their types."""
    kind, strides = TYPES[attention.dtype], _Strides.of(attention)
    read, made = (kind, kind) if codes is None else (codes.read, codes.made)
    mask_kind = {"": "constexpr", "bool": "*i1"}.get(attention.mask_dtype, f"*{kind}")
    size_kind = "constexpr" if has_fixed_sizes(attention) else "i32"
    constants = _constants(attention, blocks, strides) | {"PDL": target.has_dependent_launch}
    signature: list[tuple[str, Any]] = [
        *((f"{name}_ptr", f"*{read}") for name in "qkv"),
        ("mask_ptr", mask_kind), ("y_ptr", f"*{made}"), ("scales_ptr", "*fp32" if codes else "constexpr"),
        ("S", size_kind), ("T", size_kind),
        *((f"{name}_outer", ("i64", "i64")) for name in "qkv"),
        ("mask_outer", ("i64",) * 3 if attention.mask else "constexpr"), ("y_outer", ("i64", "i64")),
        *((name, "constexpr") for name in constants),
    ]  # fmt: skip
    if codes is None:
        constants["scales_ptr"] = None
    elif read != kind:  # tensor cores multiply at least 32 codes
        constants |= {"BLOCK_D": max(32, constants["BLOCK_D"])}
    if attention.mask is None:
        constants |= {"mask_ptr": None, "mask_outer": None}
    if has_fixed_sizes(attention):
        constants |= dict(zip("ST", attention.scores[2:], strict=True))
    number = ITEM_BITS[attention.dtype] // 8
    sizes = dict.fromkeys("qkv", number if read == kind else 1) | {"y": number if made == kind else 1}
    return Kernel(
        function="attention_kernel",
        module="ridgeline.kernels.triton.attention",
        signature=tuple(signature),
        constants=tuple(constants.items()),
        num_warps=blocks.warps,
        num_stages=blocks.stages,
        pdl=target.has_dependent_launch,
        unaligned=tuple(f"{n}_ptr" for n, place in strides.places.items() if place.offset * sizes[n] % 16),
    )


def _constants(attention: AttentionSite, blocks: Blocks, strides: _Strides) -> dict[str, Any]:
    keys = attention.scores[3]
    return {
        "SCALE": attention.scale,
        "CAUSAL": attention.is_causal,
        "GROUPS": attention.groups,
        "WIDTH": attention.width,
        "VALUE_WIDTH": attention.value_width,
        "BLOCK_D": _padded(attention.width),
        "BLOCK_V": _padded(attention.value_width),
        **{f"{name.upper()}_INNER": place.strides[2:] for name, place in strides.places.items()},
        "UNIT": strides.unit,
        "MASK_UNIT": strides.mask_unit,
        "MASK": {"": "", "bool": "bool"}.get(attention.mask_dtype, "float"),
        "GUARD": attention.guard is IN_REGION,
        "PER_QUERY": bool(attention.mask and _place(attention.mask).strides[2]),
        "BLOCK_M": blocks.queries,
        "BLOCK_N": blocks.keys,
        "ONE_BLOCK": has_fixed_sizes(attention) and keys <= blocks.keys,
        "PRECISION": attention.math or EXACT,
    }


def _padded(size: int) -> int:
    """A power of two that a matrix instruction takes."""
    return max(16, power_of_two(size))


def rank_blocks(attention: AttentionSite, target: Target) -> list[Blocks]:
    """The few shapes worth timing, best guess first; the two best of them with other warps or stages too."""
    device = device_of(target.arch)
    fitting = [
        b for b in block_shapes(attention, device) if _shared_bytes(attention, b) <= device.shared_bytes
    ]
    chosen: dict[tuple[int, int], list[Blocks]] = {}
    for blocks in sorted(fitting, key=lambda b: estimate_cycles(attention, b, device)):
        chosen.setdefault((blocks.queries, blocks.keys), []).append(blocks)
    firsts = [alike[0] for alike in chosen.values()]
    seconds = [blocks for alike in list(chosen.values())[:2] for blocks in alike[1:2]]
    return [*firsts[: MAX_CONFIGS - len(seconds)], *seconds]


def block_shapes(attention: AttentionSite, device: Device) -> Iterable[Blocks]:
    """Every shape that suits the sizes and should not spill, whatever it costs."""
    _, _, queries, keys = attention.scores
    for m, n in product((16, 32, 64, 128), (32, 64, 128, 256)):
        # the smaller block covers as much
        if (m > 16 and m >= 2 * queries) or (n > 32 and n >= 2 * keys):
            continue
        is_one_block = has_fixed_sizes(attention) and keys <= n
        # 256 keys only to take all of a short sequence at once
        if n == 256 and not is_one_block:
            continue
        fitting = [warps for warps in (4, 8) if _fits_registers(attention, m, n, warps, device)]
        for warps in fitting if m == 128 else fitting[:1]:
            for stages in (1,) if is_one_block else (2, 3):
                yield Blocks(m, n, warps, stages)


def _fits_registers(attention: AttentionSite, m: int, n: int, warps: int, device: Device) -> bool:
    """Whether scores and sums fit beside the rest, by what was seen to spill when compiled."""
    is_one_block = has_fixed_sizes(attention) and attention.scores[3] <= n
    sums = 0 if is_one_block else _padded(attention.value_width)
    per_thread = m * (n + sums) / (32 * warps)
    if attention.dtype == "float32":
        return per_thread <= 64 if attention.math == TF32 else per_thread <= 24 and n <= 64
    if not device.has_warpgroups:
        return per_thread < 96
    return per_thread <= 128 if is_one_block or warps == 8 else per_thread < 128


def _shared_bytes(attention: AttentionSite, blocks: Blocks) -> int:
    """Keys and values of every stage, and the queries."""
    width, value_width = _padded(attention.width), _padded(attention.value_width)
    elements = blocks.queries * width + blocks.stages * blocks.keys * (width + value_width)
    return elements * ITEM_BITS[attention.dtype] // 8


def predict_attention_us(attention: AttentionSite, config: Config, device: Device) -> float:
    return attention_us(estimate_cycles(attention, Blocks.of(config), device), device)


def estimate_cycles(attention: AttentionSite, blocks: Blocks, device: Device) -> float:
    """Programs in waves: the latency of each wave, and the arithmetic of all."""
    batch, heads, queries, keys = attention.scores
    rows, steps = math.ceil(queries / blocks.queries), math.ceil(keys / blocks.keys)
    if attention.is_causal:
        seen = [min(keys, (row + 1) * blocks.queries) for row in range(rows)]
        steps = max(1, round(sum(math.ceil(n / blocks.keys) for n in seen) / rows))
    programs = batch * heads * rows
    width = _padded(attention.width) + _padded(attention.value_width)
    at_once = _programs_at_once(attention, blocks, device)
    is_fast = blocks.queries >= 64 or not device.has_warpgroups
    rate = (TENSOR_SHARE if is_fast else MMA_SHARE) * device.flops_per_cycle
    if attention.dtype == "float32":
        rate = rate / 2 if attention.math == TF32 else device.plain_flops_per_cycle
    per_score = 2 * width / rate + SOFTMAX
    waves = math.ceil(programs / (device.sms * at_once))
    work = math.ceil(programs / device.sms) * steps * blocks.queries * blocks.keys * per_score
    return waves * (START + steps * STEP) + work


def _programs_at_once(attention: AttentionSite, blocks: Blocks, device: Device) -> int:
    """How many programs one processor holds, by registers and by shared memory."""
    threads = 32 * blocks.warps
    registers = 60 + 1.3 * blocks.queries * (blocks.keys + _padded(attention.value_width)) / threads
    by_shared = device.shared_bytes / _shared_bytes(attention, blocks)
    return max(1, int(min(REGISTERS / (registers * threads), by_shared)))
