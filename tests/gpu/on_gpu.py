"""Cases of the interpreter's tests on a GPU: bound through their tactics, between guards, run twice."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import torch
from cpp_cases import dtype_name
from product_cases import BiasRelu
from torch import Tensor
from triton_cases import evaluate
from triton_cases import make_site as codegen_site

from offers import offered, stages_of, why_not
from ridgeline.base.spec import EPSILON, Config, Site, Target, TensorSpec
from ridgeline.kernels.elements import fill, on_device
from ridgeline.kernels.triton.compiler import Compiled, CompileError, compile_kernels
from ridgeline.kernels.triton.driver import Launcher
from ridgeline.kernels.triton.products import TYPES, Problem, Tile
from ridgeline.kernels.triton.source import Kernel
from ridgeline.runtime.device import current_device
from ridgeline.runtime.device_memory import reach
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.instance import place
from ridgeline.tactics.base import Launch, Tactic
from ridgeline.tactics.cuda.triton_attention import TritonAttention, arguments, grid_of
from ridgeline.tactics.cuda.triton_codegen import GeneratedTriton, bind_stages
from ridgeline.tactics.cuda.triton_product import TritonProduct
from ridgeline.tactics.offer import require_offer
from ridgeline.tactics.read.attention import read_attention
from ridgeline.tactics.staging import staged_launch

Patch = tuple[Any, str, Any]  # module, name, what stands there on a GPU
GUARD = 512  # bytes around every tensor: NaN to whoever reads them, and nobody writes them
GUARD_BYTE = 0xFF
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# exponentials and divisions of the device are good to a few units in the last place of float32
DEVICE_UNITS = 8 * 2.0**-23


@dataclass
class Wanted:
    """Kernels that cases ask for while they do not run."""

    is_asking: bool = False
    kernels: list[Kernel] = field(default_factory=list)


WANTED = Wanted()


@contextmanager
def asking() -> Iterator[None]:
    WANTED.is_asking = True
    try:
        yield
    finally:
        WANTED.is_asking = False


def compile_wanted() -> None:
    """All at once on all cores; what fails, fails again where it is used."""
    compile_kernels(WANTED.kernels, arch())
    WANTED.kernels.clear()


def apply(patch: Any, patches: Sequence[Patch], half_type: torch.dtype | None) -> None:
    for module, name, value in patches:
        patch.setattr(module, name, value)
        if half_type is not None:
            patch.setattr(module, "HALF", half_type)


def tests_of(module: Any, names: str) -> dict[str, Any]:
    """Tests of another module by the words of their names, to be collected where they are put."""
    suffix = module.__name__.removeprefix("test_triton_")
    return {f"test_{name}_{suffix}": getattr(module, f"test_{name}") for name in names.split()}


def check_offered(tactic: TritonProduct, site: Site, check: Callable[[Tile], object]) -> None:
    """Every cut that is offered; one may be refused by what the compiler made of it."""
    offer = require_offer(tactic, here(site))
    if WANTED.is_asking:
        WANTED.kernels += [kernel for config in offer.configs for kernel in offer.kernels(config)]
        return
    for config in offer.configs:
        try:
            check(tactic.cut_of(tactic.product(here(site)).reading.problem, config))
        except CompileError as error:
            if "spills" not in str(error):
                raise


def require_joined(engine: Engine, tactic: Tactic) -> None:
    """Whole pairs were taken, and the engine is right."""
    assert engine.report.verified
    joined = [step for step in engine.plan.steps if step.tactic == tactic.name]
    assert joined
    assert all(len(step.regions) == 2 for step in joined)


def arch() -> str:
    return current_device().arch


def here(site: Site) -> Site:
    """The same site on this machine's GPU."""
    return replace(site, target=Target("cuda", arch()))


def driver_free_bytes() -> int:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


# tensors between guards


@dataclass
class Guarded:
    """A tensor in the middle of a buffer whose ends must not change."""

    spec: TensorSpec
    buffer: Tensor = field(init=False)
    tensor: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.buffer = torch.empty(self.spec.nbytes + 2 * GUARD, dtype=torch.uint8, device="cuda")
        self.tensor = place(self.buffer, GUARD, self.spec)
        self.poison()

    def poison(self) -> None:
        """NaN in every float type, -1 in whole numbers."""
        self.buffer.fill_(GUARD_BYTE)

    def require_whole(self) -> None:
        end = GUARD + self.spec.nbytes
        assert (self.buffer[:GUARD] == GUARD_BYTE).all(), "something was written before the tensor"
        assert (self.buffer[end:] == GUARD_BYTE).all(), "something was written behind the tensor"

    def bits(self) -> Tensor:
        return self.buffer[GUARD : GUARD + self.spec.nbytes].clone()


def guarded_copy(tensor: Tensor, spec: TensorSpec) -> Guarded:
    made = Guarded(spec)
    fill(made.tensor, on_device(tensor, "cuda"))
    return made


def run_launch(
    launch: Launch, site: Site, tensors: Mapping[str, Tensor], *, has_counters: bool = True
) -> list[Tensor]:
    """What a launch makes, on the host: twice the same bits, nothing else written, counters left at zero."""
    guarded = [guarded_copy(tensors[n], site.specs[n]) for n in site.body.inputs]
    before = [each.bits() for each in guarded]
    inputs = [each.tensor for each in guarded]
    with torch.inference_mode():
        if not launch.writes_out:
            made, again = (launch.call(inputs, ()) for _ in range(2))
            assert made is not None
            assert again is not None
            for one, other in zip(made, again, strict=True):
                assert torch.equal(one.nan_to_num(), other.nan_to_num()), "a second run differs"
            return [t.cpu() for t in made]
        outputs = [Guarded(spec) for spec in site.outputs]
        bound = [item for item in reach([launch.call]) if isinstance(item, Tensor)]  # packed weights and sums
        call = launch.frozen(inputs, [out.tensor for out in outputs])
        call()
        first = [out.bits() for out in outputs]
        for out in outputs:
            out.poison()
        call()
    for out, bits in zip(outputs, first, strict=True):
        assert torch.equal(out.bits(), bits), "a second run differs"
        out.require_whole()
    for each, kept in zip(guarded, before, strict=True):
        assert torch.equal(each.bits(), kept), "an input was written to"
    if has_counters:
        require_counters_at_zero(call, [*inputs, *bound, *(out.tensor for out in outputs)])
    return [out.tensor.cpu() for out in outputs]


# elements of the smallest part of a sum; a counter counts many of them
LEAST_PART = 256


def require_counters_at_zero(call: Callable[[], object], known: Sequence[Tensor]) -> None:
    """Split sums count their parts in whole numbers of the call's own.

    Parts of integer sums are whole numbers too, and many more than their counters.
    """
    places = {t.untyped_storage().data_ptr() for t in known}
    found = [
        item
        for item in reach([call])
        if isinstance(item, Tensor) and item.dtype == torch.int32 and item.is_cuda
        and item.untyped_storage().data_ptr() not in places
    ]  # fmt: skip
    fewest = min((item.numel() for item in found), default=0)
    for item in found:
        if item.numel() < LEAST_PART * fewest:
            assert not item.any(), "a counter was left behind"


def near(got: Tensor, plain: Tensor, exact: Tensor) -> None:
    """Within twice the error of torch at the type, and what the device's functions may be off."""
    assert got.shape == exact.shape
    if not got.is_floating_point():
        assert torch.equal(got, plain)
        return
    want = exact.to(got.dtype)
    odd = ~want.isfinite()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got[odd].nan_to_num(), want[odd].nan_to_num())
    if odd.all():
        return
    x, y, z = (t[~odd].double() for t in (got, plain, exact))
    scale = z.abs().max()
    bound = 2 * (y - z).abs().max() + (2 * EPSILON[dtype_name(got)] + DEVICE_UNITS) * scale
    off = (x - z).abs().max()
    assert off <= bound, f"{dtype_name(got)}: off by {off:.3g}, allowed {bound:.3g} at a scale of {scale:.3g}"


# generated kernels


def check_generated(
    tactic: GeneratedTriton, site: Site, inputs: Mapping[str, Tensor], configs: Sequence[Config] = ()
) -> None:
    """As `triton_cases.check`, on the GPU and in every float type; half types in the first cut."""
    for dtype in FLOATS if any(t.is_floating_point() for t in inputs.values()) else FLOATS[:1]:
        typed = with_floats(site, inputs, dtype)
        if typed is None:
            continue
        typed_site, given = typed
        reason = why_not(tactic, typed_site)
        assert reason is None or dtype != torch.float32, reason
        if reason is not None:
            continue
        chosen = list(configs or offered(tactic, typed_site).configs)
        for config in chosen if dtype == torch.float32 else chosen[:1]:
            _check_generated(tactic, typed_site, given, config)


def _check_generated(
    tactic: GeneratedTriton, site: Site, inputs: Mapping[str, Tensor], config: Config
) -> None:
    if WANTED.is_asking:
        WANTED.kernels += [stage.kernel for stage in stages_of(tactic, site, config).launches]
        return
    # words that programs of a launch tell one another stay until the launch after
    has_words = bool(stages_of(tactic, site, config).word_items)
    outputs = run_launch(bind_generated(tactic, site, config), site, inputs, has_counters=not has_words)
    plain = evaluate(site.body, inputs)
    exact = evaluate(site.body, {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()})
    for name, got in zip(site.body.outputs, outputs, strict=True):
        near(got, plain[name], exact[name])


def bind_generated(tactic: GeneratedTriton, site: Site, config: Config) -> Launch:
    """Through the tactic; a cut that spills is refused there, and still must compute what it should."""
    try:
        return offered(tactic, site).bind(config, {})
    except CompileError as error:
        if "spills" not in str(error):
            raise
    stages = stages_of(tactic, site, config)
    made = compile_kernels([stage.kernel for stage in stages.launches], arch())
    freeze = bind_stages(stages, [Launcher(required(compiled)) for compiled in made])
    return staged_launch(freeze, site, stages.pointers.inputs)


def required(made: Compiled | CompileError) -> Compiled:
    if isinstance(made, CompileError):
        raise made
    return made


def with_floats(
    site: Site, inputs: Mapping[str, Tensor], dtype: torch.dtype
) -> tuple[Site, dict[str, Tensor]] | None:
    """The case with all its floats of one type; None where the floor has nothing to compare with."""
    given = {n: t.to(dtype) if t.is_floating_point() else t for n, t in inputs.items()}
    constants = {n: as_floats(np.asarray(a), dtype) for n, a in site.body.constants.items()}
    if any(a.dtype == ml_dtypes.bfloat16 for a in constants.values()):
        return None  # the floor's own cases hold no such constants
    last = [n for n, spec in site.specs.items() if spec.layout == "channels_last"]
    try:
        made = codegen_site(
            site.body.ops, given, site.body.outputs, last=last, constants=constants,
            weights=tuple(site.weights), target=Target("cuda", arch()),
        )  # fmt: skip
    except (RuntimeError, TypeError):
        if dtype == torch.float32:
            raise
        return None
    return made, given


def as_floats(array: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    if array.dtype.kind != "f":
        return array
    name = dtype_name(torch.empty(0, dtype=dtype))
    return array.astype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


# products and convolutions


def run_product(tactic: TritonProduct, site: Site, config: Config, tensors: Mapping[str, Tensor]) -> Tensor:
    """As `product_cases.run_tactic`, through the tactic's own launch."""
    site = here(site)
    configs = [config, offered(tactic, site).configs[0]]
    if WANTED.is_asking:
        WANTED.kernels += [kernel for each in configs for kernel in offered(tactic, site).kernels(each)]
        return torch.zeros(site.outputs[0].shape)
    weights = {name: tensors[name].cuda() for name in site.weights & set(tensors)}
    try:
        launch = offered(tactic, site).bind(config, weights)
    except CompileError as error:  # offered, and refused by what the compiler made of it
        if "spills" not in str(error):
            raise
        launch = offered(tactic, site).bind(configs[-1], weights)
    (y,) = run_launch(launch, site, tensors)
    return y


def run_problem(problem: Problem, cut: Any, x: Tensor, packed: Tensor, bias: Tensor, y: Tensor) -> None:
    """As `product_cases.run_twice`: one cut, launched as it is."""
    kernel = problem.describe(cut, BiasRelu(y.shape[-1], TYPES[dtype_name(x)]), pdl=True)
    if WANTED.is_asking:
        WANTED.kernels.append(kernel)
        return
    (compiled,) = compile_kernels([kernel], arch())
    scratch = problem.scratch(cut, "cuda")
    out = Guarded(TensorSpec(dtype_name(y), tuple(y.shape)))
    given = [x.cuda(), packed.cuda(), *scratch, bias.cuda(), out.tensor, problem.extent]
    call = Launcher(required(compiled)).freeze(problem.grid(cut), given)
    seen = []
    for _ in range(2):
        out.poison()
        for parts in scratch[:1]:
            parts.fill_(torch.nan)
        call()
        assert not any(counters.any() for counters in scratch[1:]), "a counter was left behind"
        seen.append(out.bits())
    assert torch.equal(*seen), "a second run differs"
    out.require_whole()
    y.copy_(out.tensor)


def is_close(*_: Any, **__: Any) -> None:
    """Stands for a comparison while cases only say what they want."""


def compare_with(compare: Callable[..., None]) -> Callable[..., None]:
    def compared(*args: Any, **kwargs: Any) -> None:
        (is_close if WANTED.is_asking else compare)(*args, **kwargs)

    return compared


# attention


def run_attention(site: Site, tensors: Mapping[str, Tensor], blocks: Any) -> Tensor:
    """The attention kernel in blocks of a given shape, whether or not the tactic would offer it."""
    site = here(site)
    (kernel,) = offered(TritonAttention(), site).kernels(blocks.config())
    if WANTED.is_asking:
        WANTED.kernels.append(kernel)
        return torch.zeros(site.outputs[0].shape)
    (compiled,) = compile_kernels([kernel], arch())
    attention, launcher = read_attention(site), Launcher(required(compiled))

    def freeze(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], object]:
        return launcher.freeze(grid_of(attention, blocks), arguments(attention, inputs, outputs))

    (y,) = run_launch(Launch(lambda *_: None, writes_out=True, freeze=freeze), site, tensors)
    return y


def run_tactic(tactic: Tactic, config: Config) -> Callable[..., Tensor]:
    """A stand-in for `run_attention` that binds some other tactic."""

    def run(site: Site, tensors: Mapping[str, Tensor], _: Any = None) -> Tensor:
        site = here(site)
        (y,) = run_launch(offered(tactic, site).bind(config, {}), site, tensors)
        return y

    return run
