"""LSTM, GRU and RNN over whole sequences.

Torch's fused layers run the common form. A loop over steps runs clips, peepholes, other activations and
sequences of different lengths. S steps, B batch, H hidden size, N directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

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


# name -> function of x, alpha and beta; default alpha, default beta
_WITH_PARAMETERS: dict[str, tuple[Callable[[Tensor, float, float], Tensor], float, float]] = {
    "affine": (lambda x, alpha, beta: alpha * x + beta, 1.0, 0.0),
    "leakyrelu": (lambda x, alpha, _: F.leaky_relu(x, alpha), 0.01, 0.0),
    "elu": (lambda x, alpha, _: F.elu(x, alpha), 1.0, 0.0),
    "thresholdedrelu": (lambda x, alpha, _: torch.where(x >= alpha, x, 0), 1.0, 0.0),
    "scaledtanh": (lambda x, alpha, beta: alpha * torch.tanh(beta * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, alpha, beta: hard_sigmoid(x, alpha=alpha, beta=beta), 0.2, 0.5),
}


# ONNX's defaults for one direction
DEFAULTS: dict[str, tuple[str, ...]] = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",),
}  # fmt: skip


def parametrised(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None
) -> list[tuple[str, float, float]]:
    """Name in lower case, alpha and beta. Activations that take parameters get the given ones in order."""
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


def _bound(run: Callable[[Tensor, float, float], Tensor], alpha: float, beta: float) -> Activation:
    return lambda x: run(x, alpha, beta)


def _clipped(activation: Activation, clip: float) -> Activation:
    return lambda x: activation(x.clamp(-clip, clip))


def _regate(x: Tensor, order: Sequence[int]) -> Tensor:
    """Reorders the gates, which are blocks of axis 0."""
    parts = x.chunk(len(order))
    return torch.cat([parts[i] for i in order])


def _scan(
    x: Tensor, states: tuple[Tensor, ...], step: Step, *, lengths: Tensor | None, reverse: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Runs one direction step by step. Past its end a sequence yields zeros and keeps its state.

    A sequence of length 0 ends in zeros and not in its initial state, as in ONNX Runtime; ONNX does not say.
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


class LayerAttrs(TypedDict, total=False):
    """Attributes of the three layers. The last two belong to LSTM and to GRU."""

    activation_alpha: Sequence[float] | None
    activation_beta: Sequence[float] | None
    activations: Sequence[str] | None
    clip: float | None
    direction: str
    hidden_size: int | None
    layout: int
    input_forget: int
    linear_before_reset: int


class _Layer:
    """One layer before its arithmetic: the sequence with time first, and the states it starts from."""

    kind: str
    n_states = 1

    def __init__(
        self, x: Tensor, weights: tuple[Tensor, Tensor, Tensor | None], lengths: Tensor | None,
        given: Sequence[Tensor | None], attrs: LayerAttrs,
    ) -> None:  # fmt: skip
        self.w, self.r, self.b = weights
        self.attrs, self.has_batch_first = attrs, bool(attrs.get("layout"))
        self.x = x.transpose(0, 1) if self.has_batch_first else x
        self.n, self.hidden = self.w.shape[0], self.r.shape[2]
        given = (*given, *(None,) * (3 - len(given)))
        self.states = tuple(self._start(state) for state in given[: self.n_states])
        self.peepholes = given[2]
        # lengths matter only if some sequence is shorter than the tensor
        is_even = lengths is None or bool((lengths == self.x.shape[0]).all())
        self.lengths = None if is_even else lengths
        self.is_reverse = attrs.get("direction") == "reverse"
        defaults = DEFAULTS[self.kind] * self.n
        self.names = list(attrs.get("activations") or defaults)
        # torch's own layers refuse a sequence of no steps, or of no rows
        self.is_plain = (
            self.x.numel() > 0 and is_even and attrs.get("clip") is None
            and [name.lower() for name in self.names] == [name.lower() for name in defaults]
        )  # fmt: skip
        self.acts = self._activations(attrs.get("clip"))

    def _start(self, given: Tensor | None) -> Tensor:
        if given is None:
            return self.x.new_zeros(self.n, self.x.shape[1], self.hidden)
        return given.transpose(0, 1).contiguous() if self.has_batch_first else given

    def _activations(self, clip: float | None) -> list[Activation]:
        made: list[Activation] = []
        alphas, betas = self.attrs.get("activation_alpha"), self.attrs.get("activation_beta")
        for key, alpha, beta in parametrised(self.names, alphas, betas):
            activation = _PLAIN.get(key) or _bound(_WITH_PARAMETERS[key][0], alpha, beta)
            made.append(activation if clip is None else _clipped(activation, clip))
        return made

    def biases(self, index: int) -> tuple[Tensor | None, Tensor | None]:
        if self.b is None:
            return None, None
        first, second = self.b[index].chunk(2)
        return first, second

    def run(self) -> tuple[Tensor, ...]:
        return self.scanned()

    def step_for(self, i: int) -> Step:
        """The arithmetic of one step in direction `i`."""
        raise NotImplementedError

    def fused(self, run: Callable[..., Any], order: Sequence[int]) -> tuple[Tensor, ...]:
        """Runs torch's own layer, whose gates stand in another order."""
        flat: list[Tensor] = []
        for i in range(self.n):
            flat += [_regate(self.w[i], order), _regate(self.r[i], order)]
            if self.b is not None:
                flat += [_regate(half, order) for half in self.b[i].chunk(2)]
        source = self.x.flip(0) if self.is_reverse else self.x
        states = self.states if len(self.states) > 1 else self.states[0]
        y, *ends = run(source, states, flat, self.b is not None, 1, 0.0, False, self.n == 2, False)
        # torch has [S, B, N * H], ONNX [S, N, B, H]
        y = y.reshape(*y.shape[:2], self.n, -1).transpose(1, 2)
        return self._arranged(y.flip(0) if self.is_reverse else y, ends)

    def scanned(self) -> tuple[Tensor, ...]:
        """Runs step by step, one direction after the other."""
        rows, ends = [], []
        for i in range(self.n):
            states = tuple(state[i] for state in self.states)
            reverse = self.is_reverse or i == 1
            made, end = _scan(self.x, states, self.step_for(i), lengths=self.lengths, reverse=reverse)
            rows.append(made)
            ends.append(end)
        return self._arranged(torch.stack(rows, 1), [torch.stack(parts) for parts in zip(*ends, strict=True)])

    def _arranged(self, y: Tensor, ends: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if self.has_batch_first:
            return y.permute(2, 0, 1, 3), *(end.transpose(0, 1) for end in ends)
        return y, *ends


class _LSTM(_Layer):
    kind = "LSTM"
    n_states = 2

    def run(self) -> tuple[Tensor, ...]:
        if self.is_plain and self.peepholes is None and not self.attrs.get("input_forget"):
            # ONNX has the gates as i o f c, torch as i f g o
            return self.fused(torch._VF.lstm, (0, 2, 3, 1))
        return self.scanned()

    def step_for(self, i: int) -> Step:
        bias_w, bias_r = self.biases(i)
        # ONNX Runtime clips what enters the gates, but not what leaves the cell
        f_act, g_act, h_act = *self.acts[3 * i : 3 * i + 2], self._activations(None)[3 * i + 2]
        peep_i, peep_o, peep_f = (0, 0, 0) if self.peepholes is None else self.peepholes[i].chunk(3)

        def step(x_t: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            h_t, c_t = states
            gates = F.linear(x_t, self.w[i], bias_w) + F.linear(h_t, self.r[i], bias_r)
            i_t, o_t, f_t, g_t = gates.chunk(4, -1)
            i_t = f_act(i_t + peep_i * c_t)
            f_t = 1 - i_t if self.attrs.get("input_forget") else f_act(f_t + peep_f * c_t)
            c_t = f_t * c_t + i_t * g_act(g_t)
            return f_act(o_t + peep_o * c_t) * h_act(c_t), c_t

        return step


class _GRU(_Layer):
    kind = "GRU"

    def run(self) -> tuple[Tensor, ...]:
        # ONNX has the gates as z r h, torch as r z n
        is_fused = self.is_plain and self.attrs.get("linear_before_reset")
        return self.fused(torch._VF.gru, (1, 0, 2)) if is_fused else self.scanned()

    def step_for(self, i: int) -> Step:
        bias_w, bias_r = self.biases(i)
        f_act, g_act = self.acts[2 * i : 2 * i + 2]
        sizes = [2 * self.hidden, self.hidden]
        r_zr, r_h = self.r[i].split_with_sizes(sizes)
        b_zr, b_h = (None, None) if bias_r is None else bias_r.split_with_sizes(sizes)

        def step(x_t: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            h_t = states[0]
            x_zr, x_h = F.linear(x_t, self.w[i], bias_w).split_with_sizes(sizes, -1)
            z, reset = f_act(x_zr + F.linear(h_t, r_zr, b_zr)).chunk(2, -1)
            if self.attrs.get("linear_before_reset"):
                new = g_act(x_h + reset * F.linear(h_t, r_h, b_h))
            else:
                new = g_act(x_h + F.linear(reset * h_t, r_h, b_h))
            return ((1 - z) * new + z * h_t,)

        return step


class _RNN(_Layer):
    kind = "RNN"

    def step_for(self, i: int) -> Step:
        bias_w, bias_r = self.biases(i)

        def step(x_t: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (self.acts[i](F.linear(x_t, self.w[i], bias_w) + F.linear(states[0], self.r[i], bias_r)),)

        return step


def _recurrent(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    *given: Tensor | None,
    layer: type[_Layer],
    **attrs: Unpack[LayerAttrs],
) -> tuple[Tensor, ...]:
    """`given` are the states that the sequence starts from, then the peepholes of an LSTM."""
    return layer(x, (w, r, b), lengths, given, attrs).run()


for _layer in (_LSTM, _GRU, _RNN):
    floor(_layer.kind)(partial(_recurrent, layer=_layer))
