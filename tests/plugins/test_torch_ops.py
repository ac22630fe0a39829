"""A `torch.library` op in an exported module is the plugin op of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from plugin_models import haar, haar_shapes
from torch import Tensor, nn

import ridgeline
from ridgeline.errors import UnsupportedError
from ridgeline.plugins import Schema, Spec, register_op, unregister


@pytest.fixture(scope="module", autouse=True)
def _torch_op() -> Iterator[None]:
    with torch.library._scoped_library("acme_signal", "DEF") as library:
        library.define(
            "haar(Tensor x, Tensor? bias, float scale, int[] sizes, bool deep=True) -> (Tensor, Tensor)"
        )
        library.impl("haar", _haar, "CPU")
        torch.library.register_fake("acme_signal::haar", _fake, lib=library)
        yield


def _haar(x: Tensor, bias: Tensor | None, scale: float, sizes: list[int], deep: bool = True) -> Any:
    return haar(x, scale=scale * len(sizes) if deep else scale)


def _fake(x: Tensor, bias: Tensor | None, scale: float, sizes: list[int], deep: bool = True) -> Any:
    half = (*x.shape[:-1], x.shape[-1] // 2)
    return x.new_empty(half), x.new_empty(half)


class Wavelet(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        low, high = torch.ops.acme_signal.haar(x, None, 0.25, [4, 5])
        return low * high


def register() -> None:
    def shapes(x: Spec, bias: Spec | None, **attrs: Any) -> Any:
        return haar_shapes(x, scale=1.0)

    register_op(
        Schema(
            "acme_signal::haar",
            inputs={"x": "T", "bias?": "T"},
            outputs={"low": "T", "high": "T"},
            attributes={"scale": float, "sizes": list[int], "deep": True},
            types={"T": ("float32",)},
        ),
        shapes=shapes,
        reference=torch.ops.acme_signal.haar,
    )


def test_a_module_with_a_custom_op_becomes_an_engine() -> None:
    register()
    module, x = Wavelet().eval(), torch.randn(2, 16)
    engine = ridgeline.build(module, example_inputs=x, level=0, threads=1)
    assert any("haar" in step.op_types for step in engine.plan.steps)
    node = next(node for node in engine.model.graph if node.op_type == "haar")
    assert (node.domain, node.attributes["sizes"].value) == ("acme_signal", (4, 5))
    made = engine.run(engine.example_inputs() | {engine.inputs[0].name: x.numpy()})
    torch.testing.assert_close(torch.tensor(next(iter(made.values()))), module(x))


def test_a_compiled_module_runs_it() -> None:
    register()
    module, x = Wavelet().eval(), torch.randn(2, 16)
    torch.testing.assert_close(ridgeline.compile(module, level=0, threads=1)(x), module(x))


def test_without_the_plugin_the_export_says_which_op() -> None:
    with pytest.raises(UnsupportedError, match="acme_signal") as caught:
        ridgeline.build(Wavelet().eval(), example_inputs=torch.randn(2, 16), level=0)
    assert "a plugin" in caught.value.help


def test_lists_of_tensors_and_later_versions_are_written_and_lacking_attributes_are_named() -> None:
    def joined(tensors: list[Tensor], dim: int) -> Tensor:
        return torch.cat(tensors, dim)

    class Join(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.acme_signal.join([x, x + 1], 0)

    def rows(*parts: Spec, **attrs: int) -> Spec:
        return parts[0].resized(sum(part.shape[0] for part in parts), 16)

    def reference(*parts: Tensor, **attrs: int) -> Tensor:
        return torch.cat(parts)

    def schema(**attributes: Any) -> Schema:
        return Schema("acme_signal::join", {"xs*": "float32"}, {"y": "float32"}, attributes, version=2)

    x = torch.randn(2, 16)
    with torch.library._scoped_library("acme_signal", "FRAGMENT") as library:
        library.define("join(Tensor[] tensors, int dim) -> Tensor")
        library.impl("join", joined, "CPU")
        torch.library.register_fake("acme_signal::join", joined, lib=library)
        op = register_op(schema(dim=int), shapes=rows, reference=reference)
        engine = ridgeline.build(Join().eval(), example_inputs=x, level=0, threads=1)
        made = engine.run({engine.inputs[0].name: x.numpy()})
        torch.testing.assert_close(torch.tensor(next(iter(made.values()))), torch.cat([x, x + 1]))
        unregister(op.plugin.name)
        register_op(schema(), shapes=rows, reference=reference)
        with pytest.raises(UnsupportedError, match=r"acme_signal::join lacks the attributes \['dim'\]"):
            ridgeline.build(Join().eval(), example_inputs=x, level=0, threads=1)
