"""From a float32 model to an engine whose products may round to TF32: decide, mark, build, judge.

No type says TF32, so the lowered graph is the float32 graph. Every float32 product in it may round, except
those that are marked to keep float32 (`ridgeline.keep`); `passes/tf32.py` reads the marks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import onnx_ir as ir

from ridgeline.base.spec import TF32, Target
from ridgeline.errors import BuildError
from ridgeline.frontend.torch_export import as_source
from ridgeline.ir.body import node_sources
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.ir.provenance import KEEP
from ridgeline.passes.tf32 import is_float32_product
from ridgeline.precision.decide import Decision
from ridgeline.precision.emulate import Tf32Operands
from ridgeline.precision.half_build import EMULATED, LoweredBuild, typed_options
from ridgeline.precision.lower import value_key, widen
from ridgeline.precision.search import Found, raise_nodes
from ridgeline.runtime.engine import Engine

NO_PRODUCTS = "the model has no product of float32 numbers: nothing rounds to TF32"


def build_tf32(task: LoweredBuild) -> Engine:
    """An engine whose products round where that keeps the budget; in float32 on a machine without TF32."""
    target = task.machine.target
    if not target.has_tf32:
        task.check_data()
        return task.left_in_float32(task.build_wide(), without_tf32(target))
    wide = task.model.clone()
    widen(wide)
    rounding = Tf32Build(task.original, task.options, task.sample, task.build, quantised=wide)
    if rounding.products:
        return rounding.run()
    task.check_data()
    return task.left_in_float32(task.build_wide(), NO_PRODUCTS)


def without_tf32(target: Target) -> str:
    first = target.traits.tf32_from
    since = f", which begins with sm_{first}" if first else ""
    return f"{target} has no TF32 arithmetic{since}: products are computed in float32, as with precision fp32"


@dataclass
class Tf32Build(LoweredBuild):
    """A model on its way to an engine that rounds in its products and nowhere else."""

    counted: ClassVar[str] = "products"

    def run(self) -> Engine:
        return self._finish(self.decide(TF32))

    @property
    def products(self) -> list[str]:
        return [value_key(node) for node in self.model.graph if is_float32_product(node)]

    def decide(
        self,
        half: str,
        *,
        keep: Mapping[str, str] | None = None,
        saved_us: Mapping[str, float] | None = None,
        budget: float | None = None,
    ) -> Decision:
        """All products that the user does not keep; fewer if their emulation is over the budget."""
        lowering, limit = self.lowering, self.options.budget_or_default if budget is None else budget
        lowering.asked = replace(lowering.asked, budget=limit)
        kept = {node: "asked for" for node in self.products if node in lowering.user_kept} | dict(keep or {})
        free = [node for node in self.products if node not in kept]
        rows = list(islice(iter(self.original.samples[0]), EMULATED))
        error_of = lowering.error_of(TF32, Tf32Operands(), rows)
        found = Found(frozenset(), error_of(frozenset(free)), {})
        if found.error > limit:
            found = raise_nodes(free, error_of, limit, saved_us, lowering.tell_node)
        kept |= found.reasons
        lowered = frozenset(free) - found.raised
        return Decision(half, lowered, kept, lowering.names, found.error, alone=found.alone)

    def _lowered(self, decision: Decision) -> ir.Model:
        """The same graph, with what stays in float32 marked."""
        model = self.model.clone()
        kept = {*decision.kept, *self.lowering.user_kept}
        for node in model.graph:
            if value_key(node) in kept:
                node.metadata_props[KEEP] = "float32"
        return self.whole(model)

    def build_model(self, model: ir.Model) -> Engine:
        products = [node for node in model.graph if is_float32_product(node)]
        kept = {name for n in products if KEEP in n.metadata_props for name in node_sources(n)}
        # a node of the model that was written out as several may be kept in part
        kept -= {name for n in products if KEEP not in n.metadata_props for name in node_sources(n)}
        self.options.tell("engine", 0, 0, TF32)
        with as_source(model) as source:
            options = replace(typed_options(self.options), precision=TF32)
            engine = self.build(source, options, self.sample)
        require_exact(engine, kept)
        return engine

    def _counts(self, decision: Decision) -> dict[str, int]:
        return Counter(TF32 if node in decision.lowered else "fp32" for node in self.products)


def require_exact(engine: Engine, names: Collection[str]) -> None:
    """Raise if a product of these names rounds in the finished engine: a fusion lost its mark."""
    wrong = []
    for region in engine.program.regions:
        products = [op for op in region.body.ops if is_a(op, Kind.PRODUCT)]
        found = sorted(set(region.sources) & set(names))
        if found and products and all(op.math == TF32 for op in products):
            wrong.append(f"{', '.join(found)}: rounds in {region.name}")
    if wrong:
        raise BuildError(
            "products that were to stay in float32 did not",
            rows=wrong,
            help="keep their neighbours as well, or leave them out of --keep (in Python keep=)",
        )
