"""Bindings for shapes that are new to a context: planned at once, in the background, or padded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from ridgeline.base.spec import TensorSpec
from ridgeline.runtime.cuda_instance import CudaInstance
from ridgeline.runtime.device import foreseen_parts, gpu_errors, require_here, require_memory
from ridgeline.runtime.forking import PerProcess
from ridgeline.runtime.io import AnyBinding, IoBinding
from ridgeline.runtime.padded import PaddedBinding, pad_to_profile
from ridgeline.runtime.pending_shape import PendingShape
from ridgeline.runtime.planner import Planner
from ridgeline.runtime.profiles import Profiles
from ridgeline.runtime.real_shapes import RealShapes


class Bindings:
    """Makes the binding between a caller and an instance of the right profile."""

    def __init__(
        self, profiles: Profiles, planner: Planner, own: PerProcess, real_shapes: RealShapes
    ) -> None:
        self._profiles, self._planner, self._own = profiles, planner, own
        self._real_shapes = real_shapes

    def uncompiled(self, specs: dict[str, TensorSpec]) -> AnyBinding:
        """With no kernel compiled for these shapes."""
        return IoBinding(self._profiles.at(specs).executable.instance(specs, compiles=False))

    def planned(self, specs: dict[str, TensorSpec]) -> AnyBinding:
        """With every kernel that the plan wants at these shapes."""
        if self._is_padded(specs):
            larger, cuts = pad_to_profile(self._profiles, self._planner.padded_cuts, specs)
            return PaddedBinding(self.planned(larger), specs, larger, cuts)
        return IoBinding(self._profiles.at(specs).executable.instance(specs))

    def served(self, specs: dict[str, TensorSpec]) -> AnyBinding:
        """Planned where the plan was made for these shapes; others run without compiling until theirs is."""
        if self._is_padded(specs) or specs == self._profiles.at(specs).plan.planned_shapes:
            return self.planned(specs)
        planned = partial(self.planned, specs)
        if not self._real_shapes.is_open:
            return PendingShape(partial(self.uncompiled, specs), partial(self._own.submit, planned))
        self._real_shapes.met(specs)
        untuned = partial(self._own.submit, self._real_shapes.bound, specs, planned)
        return PendingShape(partial(self.uncompiled, specs), untuned)

    def gpu_instance(
        self, specs: Mapping[str, TensorSpec], given: Mapping[str, Tensor] | None
    ) -> CudaInstance:
        variant = self._profiles.at(specs)
        require_here(variant.plan.target)
        if not variant.executable.launches:  # the first instance is refused where its plan needs too much
            with gpu_errors():
                require_memory(foreseen_parts(variant.plan.memory))
        instance = variant.executable.instance(specs, given=given)
        assert isinstance(instance, CudaInstance), "only asked on a GPU"
        return instance

    def _is_padded(self, specs: dict[str, TensorSpec]) -> bool:
        return self._profiles.plan.pads and self._profiles.signature.find(specs) is None
