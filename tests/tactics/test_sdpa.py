from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from library_cases import check, make_site, node

from offers import why_not
from ridgeline.base.spec import Op, Target
from ridgeline.tactics.cpu.sdpa import AttentionBmm, Sdpa

TACTICS = {tactic.name: tactic for tactic in (Sdpa(), AttentionBmm())}
S, T, H, D = 7, 11, 3, 8


@pytest.fixture(params=TACTICS)
def tactic(request):
    return TACTICS[request.param]


def joined(batch, *, keys=T, kv_heads=H, mask=None, **attrs):
    """The 3-D form: heads side by side in the last axis."""
    inputs = {"q": (batch, S, H * D), "k": (batch, keys, kv_heads * D), "v": (batch, keys, kv_heads * D)}
    if mask is not None:
        inputs["m"] = mask
    names = " ".join(inputs)
    op = node("Attention", names, "y", q_num_heads=H, kv_num_heads=kv_heads, **attrs)
    return make_site(inputs, [op])


def bool_mask(*shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[..., 0] = True
    return mask


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("attrs", [{}, {"scale": 0.3}, {"is_causal": 1}], ids=["plain", "scale", "causal"])
def test_joined_heads(tactic, batch, attrs):
    check(tactic, *joined(batch, **attrs))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize("shape", [(S, T), (H, S, T), (1, 1, 1, T), (1, H, S, T)], ids=str)
def test_added_masks(tactic, shape, is_causal, batch):
    check(tactic, *joined(batch, mask=shape, is_causal=is_causal))


@pytest.mark.parametrize("shape", [(S, T), (2, 1, 1, T), (2, 1, S, T)], ids=str)
@pytest.mark.parametrize("is_causal", [0, 1])
def test_bool_masks(shape, is_causal):
    site, tensors = joined(2, mask=bool_mask(*shape), is_causal=is_causal)
    check(TACTICS["aten.sdpa"], site, tensors)
    assert why_not(TACTICS["aten.attention"], site) == "the mask is bool, not added"


@pytest.mark.parametrize("batch", [1, 2])
def test_split_heads(tactic, batch):
    shapes = {"q": (batch, H, S, D), "k": (batch, H, T, D), "v": (batch, H, T, D + 2)}
    check(tactic, *make_site(shapes, [node("Attention", "q k v", "y")]))


@pytest.mark.parametrize("mask", [None, (S, T)], ids=["no mask", "mask"])
def test_shared_key_heads(mask):
    site, tensors = joined(2, kv_heads=1, mask=mask)
    check(TACTICS["aten.sdpa"], site, tensors)
    assert why_not(TACTICS["aten.attention"], site) == "3 query heads share one key head"


@pytest.mark.parametrize("batch", [1, 2])
def test_views_around(tactic, batch):
    ops = []
    for name, length in (("q", S), ("k", T), ("v", T)):
        ops += [
            node("Reshape", f"{name}x", f"{name}r", to=(batch, length, H, D)),
            node("Transpose", f"{name}r", name, perm=(0, 2, 1, 3)),
        ]
    ops += [
        node("Attention", "q k v", "a"),
        node("Transpose", "a", "t", perm=(0, 2, 1, 3)),
        node("Reshape", "t", "y", to=(batch, S, H * D)),
    ]
    shapes = {"qx": (batch, S, H * D), "kx": (batch, T, H * D), "vx": (batch, T, H * D)}
    check(tactic, *make_site(shapes, ops))


def test_one_head_and_one_query(tactic):
    shapes = {"q": (1, 1, 1, D), "k": (1, 1, T, D), "v": (1, 1, T, D)}
    check(tactic, *make_site(shapes, [node("Attention", "q k v", "y")]))


def test_refusals(tactic):
    site, _ = joined(1)
    attention = site.body.ops[0]
    past = Op("Attention", (*attention.inputs, "", "pk", "pv"), ("y",), attention.attrs)
    present = Op("Attention", attention.inputs, ("y", "nk", "nv"), attention.attrs)
    for op, reason in ((past, "come in"), (present, "go out")):
        specs = {**site.specs, **dict.fromkeys(("pk", "pv", "nk", "nv"), site.specs["k"])}
        changed = replace(site, body=replace(site.body, ops=(op,)), specs=specs)
        assert reason in str(why_not(tactic, changed))
    assert why_not(tactic, joined(1, softcap=2.0)[0]) == "softcap is 2.0"
    site, _ = joined(1, mask=(S, T))
    short = replace(site.specs["m"], shape=(S, T - 2))
    assert (
        why_not(tactic, replace(site, specs={**site.specs, "m": short})) == f"mask covers {T - 2} of {T} keys"
    )
    on_gpu, _ = make_site({"q": (1, H, S, D)}, [node("Attention", "q q q", "y")], target=Target("cuda"))
    assert "target is cuda" in str(why_not(tactic, on_gpu))
    scaled = [node("Relu", "x", "q"), node("Attention", "q q q", "y")]
    site, _ = make_site({"x": (1, H, S, D)}, scaled)
    assert why_not(tactic, site) == "Relu feeds the Attention inside the region"
    then = [node("Attention", "q q q", "a"), node("Relu", "a", "y")]
    site, _ = make_site({"q": (1, H, S, D)}, then)
    assert why_not(tactic, site) == "Relu follows the Attention inside the region"
