"""From steps to sites: the regions a step covers as one region, and its site at settled shapes."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.base.spec import Body, Site, Target
from ridgeline.ir.body import Program, Region
from ridgeline.ir.infer import Inferred
from ridgeline.ir.quant import are_powers_of_two, levels_and_scales
from ridgeline.ir.validate import validate

# a float this short is a scale or a bound that decides how a region runs; a longer one is data
KNOWN_FLOATS = 4


def merge(program: Program, regions: Sequence[Region]) -> Region:
    """Neighbouring regions as one, in main-graph names. Its outputs are what others need."""
    if len(regions) == 1:
        return regions[0]
    ops, constants = program.flat_ops(regions)
    inside = {region.name for region in regions}
    wanted = set(program.outputs)
    wanted.update(n for region in program.regions if region.name not in inside for n in region.inputs)
    made = [name for region in regions for name in region.outputs]
    outputs = tuple(name for name in made if name in wanted)
    body = Body(inputs=(), outputs=outputs, ops=ops, constants=constants)
    inputs = body.free_names()
    return Region(
        name=f"{regions[0].name}…{regions[-1].name}",
        function="span",
        body=Body(inputs=inputs, outputs=outputs, ops=ops, constants=constants),
        inputs=inputs,
        outputs=outputs,
        sources=tuple(dict.fromkeys(s for region in regions for s in region.sources)),
    )


def make_site(program: Program, region: Region, inferred: Inferred, target: Target) -> Site:
    """Everything that decides how the region may run at these shapes."""
    names = [n for op in region.body.ops for n in (*op.inputs, *op.outputs) if n]
    names += [*region.body.inputs, *region.body.constants]
    outer = {name: region.outer(name) for name in names if name}
    specs = {name: inferred.specs[out] for name, out in outer.items() if out in inferred.specs}
    weights = frozenset(n for n in region.body.inputs if outer.get(n) in program.weights)
    values, quantized, powers = {}, levels_and_scales(region.body), set()
    for name in region.body.inputs:
        array = inferred.values.get(outer.get(name, ""))
        if name in quantized:
            powers |= {name} if array is not None and are_powers_of_two(array) else set()
        elif array is not None and (array.dtype.kind != "f" or array.size <= KNOWN_FLOATS):
            values[name] = array
    non_tensor = {
        name: kind for name, out in outer.items() if (kind := inferred.non_tensor_kind(out)) is not None
    }
    site = Site(region.body, specs, weights, values, target, region.name, non_tensor, frozenset(powers))
    validate(site)
    return site
