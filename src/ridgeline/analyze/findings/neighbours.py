"""Regions beside one another: who alone reads a result, and two of them as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.analyze.findings.changes import with_ops
from ridgeline.analyze.findings.subject import Place, Subject
from ridgeline.base.spec import Body
from ridgeline.ir.body import Region
from ridgeline.ir.sites import make_site, merge


def only_reader(subject: Subject, place: Place) -> Place | None:
    """The one region that reads the place's only result, if it is no output of the model."""
    if len(place.region.outputs) != 1 or place.region.outputs[0] in subject.program.outputs:
        return None
    readers = subject.readers.get(place.region.outputs[0], [])
    return readers[0] if len(readers) == 1 else None


def joined(subject: Subject, places: Sequence[Place], *, keep: Sequence[str]) -> Place | None:
    """These regions as one that makes only the values of `keep`; None if nothing would be left."""
    region = merge(subject.program, [place.region for place in places])
    body: Body | None = with_ops(region.body, region.body.ops, keep)
    if body is None:
        return None
    whole = Region(region.name, "joined", body, body.inputs, tuple(keep), region.sources)
    site = make_site(subject.program, whole, subject.inferred, subject.plan.target)
    return replace(places[0], region=whole, site=site)
