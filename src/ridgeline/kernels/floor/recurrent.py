"""LSTM, GRU and RNN over whole sequences.

Torch's fused layers take the common form; a loop over steps takes clips, peepholes, odd activations and
sequences of different lengths. S steps, B batch, H hidden size, N directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.kernels.floor.activation import hard_sigmoid
from ridgeline.kernels.floor.registry import floor

Activation = Callable[[Tensor], Tensor]
Step = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]

_PLAIN: dict[str, Activation] = {
    "relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "softsign": F.softsign,
    "softplus": F.softplus,
}  # fmt: skip


def _affine(x: Tensor, *, alpha: float, beta: float) -> Tensor:
    return alpha * x + beta


def _scaled_tanh(x: Tensor, *, alpha: float, beta: float) -> Tensor:
    return alpha * torch.tanh(beta * x)


def _thresholded(x: Tensor, *, alpha: float, beta: float) -> Tensor:
    return torch.where(x >= alpha, x, 0)


def _leaky(x: Tensor, *, alpha: float, beta: float) -> Tensor:
    return F.leaky_relu(x, alpha)


def _elu(x: Tensor, *, alpha: float, beta: float) -> Tensor:
    return F.elu(x, alpha)


# name -> function, default alpha, default beta
_WITH_PARAMETERS: dict[str, tuple[Callable[..., Tensor], float, float]] = {
    "affine": (_affine, 1.0, 0.0), "leakyrelu": (_leaky, 0.01, 0.0), "elu": (_elu, 1.0, 0.0),
    "thresholdedrelu": (_thresholded, 1.0, 0.0), "scaledtanh": (_scaled_tanh, 1.0, 1.0),
    "hardsigmoid": (hard_sigmoid, 0.2, 0.5),
}  # fmt: skip


# what ONNX names when a node names none, for one direction
DEFAULTS: dict[str, tuple[str, ...]] = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",),
}  # fmt: skip


def parametrised(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[tuple[str, float, float]]:
    """Name in lower case, alpha and beta. They are handed out in order to the activations that take them."""
    left_alphas, left_betas = list(alphas or ()), list(betas or ())
    made: list[tuple[str, float, float]] = []
    for name in names:
        key, alpha, beta = name.lower(), 0.0, 0.0
        if key in _WITH_PARAMETERS:
            _, alpha, beta = _WITH_PARAMETERS[key]
            alpha = left_alphas.pop(0) if left_alphas else alpha
            beta = left_betas.pop(0) if left_betas else beta
        made.append((key, alpha, beta))
    return made


def _activations(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None, clip: float | None
) -> list[Activation]:
    made: list[Activation] = []
    for key, alpha, beta in parametrised(names, alphas, betas):
        plain = _PLAIN.get(key)
        activation = plain or partial(_WITH_PARAMETERS[key][0], alpha=alpha, beta=beta)
        made.append(activation if clip is None else _clipped(activation, clip))
    return made


def _clipped(activation: Activation, clip: float) -> Activation:
    return lambda x: activation(x.clamp(-clip, clip))


def _regate(x: Tensor, order: Sequence[int]) -> Tensor:
    """Reorder the blocks that the gates have in axis 0."""
    parts = x.chunk(len(order))
    return torch.cat([parts[i] for i in order])


def _fused(
    run: Callable[..., Any],
    x: Tensor,
    states: Any,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    *,
    order: Sequence[int],
    reverse: bool,
) -> Any:
    flat: list[Tensor] = []
    for i in range(w.shape[0]):
        flat += [_regate(w[i], order), _regate(r[i], order)]
        if b is not None:
            flat += [_regate(half, order) for half in b[i].chunk(2)]
    source = x.flip(0) if reverse else x
    return run(source, states, flat, b is not None, 1, 0.0, False, w.shape[0] == 2, False)


def _scan(
    x: Tensor, states: tuple[Tensor, ...], step: Step, *, lengths: Tensor | None, reverse: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One direction, step by step. A sequence past its end yields zeros and keeps its state.

    One of length 0 ends in zeros, not in the state it was given: ONNX is silent, ONNX Runtime has it so.
    """
    rows: list[Tensor] = []
    for t in reversed(range(x.shape[0])) if reverse else range(x.shape[0]):
        new = step(x[t], states)
        shown = new[0]
        if lengths is not None:
            is_live = (t < lengths)[:, None]
            shown = torch.where(is_live, shown, 0)
            new = tuple(torch.where(is_live, a, b) for a, b in zip(new, states, strict=True))
        states = new
        rows.append(shown)
    if lengths is not None:
        states = tuple(torch.where((lengths > 0)[:, None], state, 0) for state in states)
    if not rows:
        return x.new_zeros(0, *states[0].shape), states
    return torch.stack(rows[::-1] if reverse else rows), states


def _run_directions(
    x: Tensor,
    states: tuple[Tensor, ...],
    steps: Sequence[Step],
    *,
    direction: str,
    lengths: Tensor | None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """[S, N, B, H] and the last states, [N, B, H] each."""
    rows, ends = [], []
    for i, step in enumerate(steps):
        reverse = direction == "reverse" or i == 1
        made, end = _scan(x, tuple(s[i] for s in states), step, lengths=lengths, reverse=reverse)
        rows.append(made)
        ends.append(end)
    return torch.stack(rows, 1), tuple(torch.stack(parts) for parts in zip(*ends, strict=True))


def _biases(b: Tensor | None, index: int) -> tuple[Tensor | None, Tensor | None]:
    if b is None:
        return None, None
    first, second = b[index].chunk(2)
    return first, second


def _start(given: Tensor | None, x: Tensor, n: int, hidden: int, layout: int) -> Tensor:
    if given is None:
        return x.new_zeros(n, x.shape[1], hidden)
    return given.transpose(0, 1).contiguous() if layout else given


def _uneven(lengths: Tensor | None, x: Tensor) -> Tensor | None:
    """Lengths that matter: None when every sequence is as long as the tensor."""
    return None if lengths is None or bool((lengths == x.shape[0]).all()) else lengths


def _arranged(y: Tensor, ends: Sequence[Tensor], layout: int) -> tuple[Tensor, ...]:
    if layout:
        return y.permute(2, 0, 1, 3), *(end.transpose(0, 1) for end in ends)
    return y, *ends


def _is_default(activations: Sequence[str] | None, default: Sequence[str], n: int) -> bool:
    return activations is None or [a.lower() for a in activations] == [d.lower() for d in default] * n


def _split_directions(y: Tensor, n: int, reverse: bool) -> Tensor:
    """Torch's [S, B, N * H] as ONNX's [S, N, B, H]."""
    parts = y.reshape(*y.shape[:2], n, -1).transpose(1, 2)
    return parts.flip(0) if reverse else parts


@floor("LSTM")
def lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    p: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    x = x.transpose(0, 1) if layout else x
    n, hidden = w.shape[0], r.shape[2]
    h, c = _start(initial_h, x, n, hidden, layout), _start(initial_c, x, n, hidden, layout)
    lengths = _uneven(sequence_lens, x)
    default = DEFAULTS["LSTM"]
    # torch's own refuse a sequence of no steps, or no rows
    is_plain = x.numel() > 0 and lengths is None and p is None and clip is None and not input_forget
    if is_plain and _is_default(activations, default, n):
        reverse = direction == "reverse"
        # ONNX has the gates as i o f c, torch as i f g o
        y, h, c = _fused(torch._VF.lstm, x, (h, c), w, r, b, order=(0, 2, 3, 1), reverse=reverse)
        return _arranged(_split_directions(y, n, reverse), (h, c), layout)
    names = activations or default * n
    gate_acts = _activations(names, activation_alpha, activation_beta, clip)
    # ONNX Runtime clips what enters the gates, not the cell on its way out
    cell_acts = _activations(names, activation_alpha, activation_beta, None)

    def step_for(i: int) -> Step:
        bias_w, bias_r = _biases(b, i)
        f_act, g_act, h_act = *gate_acts[3 * i : 3 * i + 2], cell_acts[3 * i + 2]
        peep_i, peep_o, peep_f = (0, 0, 0) if p is None else p[i].chunk(3)

        def step(x_t: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            h_t, c_t = states
            gates = F.linear(x_t, w[i], bias_w) + F.linear(h_t, r[i], bias_r)
            i_t, o_t, f_t, g_t = gates.chunk(4, -1)
            i_t = f_act(i_t + peep_i * c_t)
            f_t = 1 - i_t if input_forget else f_act(f_t + peep_f * c_t)
            c_t = f_t * c_t + i_t * g_act(g_t)
            return f_act(o_t + peep_o * c_t) * h_act(c_t), c_t

        return step

    y, ends = _run_directions(
        x, (h, c), [step_for(i) for i in range(n)], direction=direction, lengths=lengths
    )
    return _arranged(y, ends, layout)


@floor("GRU")
def gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Tensor, ...]:
    x = x.transpose(0, 1) if layout else x
    n, hidden = w.shape[0], r.shape[2]
    h = _start(initial_h, x, n, hidden, layout)
    lengths = _uneven(sequence_lens, x)
    default = DEFAULTS["GRU"]
    is_plain = x.numel() > 0 and lengths is None and clip is None and bool(linear_before_reset)
    if is_plain and _is_default(activations, default, n):
        reverse = direction == "reverse"
        # ONNX has the gates as z r h, torch as r z n
        y, h = _fused(torch._VF.gru, x, h, w, r, b, order=(1, 0, 2), reverse=reverse)
        return _arranged(_split_directions(y, n, reverse), (h,), layout)
    acts = _activations(activations or default * n, activation_alpha, activation_beta, clip)

    def step_for(i: int) -> Step:
        bias_w, bias_r = _biases(b, i)
        f_act, g_act = acts[2 * i : 2 * i + 2]
        r_zr, r_h = r[i].split_with_sizes([2 * hidden, hidden])
        b_zr, b_h = (None, None) if bias_r is None else bias_r.split_with_sizes([2 * hidden, hidden])

        def step(x_t: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            h_t = states[0]
            x_zr, x_h = F.linear(x_t, w[i], bias_w).split_with_sizes([2 * hidden, hidden], -1)
            z, reset = f_act(x_zr + F.linear(h_t, r_zr, b_zr)).chunk(2, -1)
            if linear_before_reset:
                new = g_act(x_h + reset * F.linear(h_t, r_h, b_h))
            else:
                new = g_act(x_h + F.linear(reset * h_t, r_h, b_h))
            return ((1 - z) * new + z * h_t,)

        return step

    y, ends = _run_directions(x, (h,), [step_for(i) for i in range(n)], direction=direction, lengths=lengths)
    return _arranged(y, ends, layout)


@floor("RNN")
def rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    x = x.transpose(0, 1) if layout else x
    n, hidden = w.shape[0], r.shape[2]
    h = _start(initial_h, x, n, hidden, layout)
    acts = _activations(activations or DEFAULTS["RNN"] * n, activation_alpha, activation_beta, clip)

    def step_for(i: int) -> Step:
        bias_w, bias_r = _biases(b, i)

        def step(x_t: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (acts[i](F.linear(x_t, w[i], bias_w) + F.linear(states[0], r[i], bias_r)),)

        return step

    steps = [step_for(i) for i in range(n)]
    y, ends = _run_directions(x, (h,), steps, direction=direction, lengths=_uneven(sequence_lens, x))
    return _arranged(y, ends, layout)
