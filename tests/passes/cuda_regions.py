"""The regions of a text graph for a GPU, checked to compute the same."""

from __future__ import annotations

from text_graphs import assert_same, random_feeds, run, with_weights

from ridgeline.base.spec import Target, TensorSpec
from ridgeline.ir.body import read_program
from ridgeline.ir.infer import infer
from ridgeline.passes.partition import partition

CUDA = Target("cuda", "sm_90")


def regions(body: str, *weights: str, target: Target = CUDA, image: str = "") -> list[str]:
    """The ops of each region, after a check of what they compute. `image` lies channels last."""
    model = with_weights(body, *weights)
    feeds = random_feeds(model)
    before = run(model, feeds)
    specs = {
        str(v.name): TensorSpec(str(v.dtype.numpy()), tuple(v.shape.numpy())) for v in model.graph.inputs
    }
    arrays = {str(n): v.const_value.numpy() for n, v in model.graph.initializers.items()}
    held = {n: TensorSpec(str(a.dtype), a.shape) for n, a in arrays.items()}
    state = infer(read_program(model), specs, held, {n: a for n, a in arrays.items() if a.size <= 64})
    if image:
        state.specs[image] = TensorSpec("float32", state.specs[image].shape, "channels_last")
    partition(model, state, target=target)
    assert_same(before, run(model, feeds))
    listed = []
    for node in model.graph:
        function = model.functions.get(node.op_identifier())
        inner = [n.op_type for n in function] if function is not None else [node.op_type]
        listed.append(" ".join(op for op in inner if op != "Constant"))
    return [ops for ops in listed if ops]
