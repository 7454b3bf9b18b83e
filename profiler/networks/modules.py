"""The part of a block as a PyTorch module: its parameters are those of its equations, by their
names and shapes, and a function of this file computes its rows.

The functions correspond to costmodel.networks.parts and experts. Each executes the operations of
the part's equations, for all of which the counter of dispatched operations has rules. Their
arguments: `p` has the parameters of the part as attributes, `x` is its rows (b, s, d), and `other`
or `given` is what the part reads besides, if anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from costmodel.language.macros.norms import LAYER_EPS, RMS_EPS as MIXERS_EPS
from costmodel.language.nodes import Constant
from costmodel.mixers.self_attention import BASE
from costmodel.networks.architectures.equations.streams import LEAST
from costmodel.networks.blocks import Use, of_first_row
from costmodel.networks.experts import SCALE
from costmodel.networks.parts import ALPHA, CAP, INVERSE, LIMIT, MULTIPLIER, QUANTILE, REST, RMS_EPS
from costmodel.program.dependence import reads
from costmodel.program.losses import SMOOTHING
from profiler.modules.attention import dense_attention
from profiler.modules.base import fan_in
from profiler.modules.norms import rms_norm as normed

Made = Mapping[str, Any]
"""`device` and `dtype` of parameters and buffers, as keyword arguments."""

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
}

OFFSETS = ("b", "offset", "moved")
"""How the names of parameters begin that are zeros before training."""

GAINS = ("gain", "gain_F", "gain_L", "gain_M", "gain_P", "gain_R", "factor", "w_Q", "w_K", "w_x")
"""Names of parameters that are ones before training."""


class TwinError(ValueError):
    """A request that the network cannot serve; the message says what to do instead."""


def no_module(use: Use) -> TwinError:
    """The error for a part that no function here computes, and no module of a mixer."""
    known = ", ".join(COMPUTED)
    return TwinError(
        f"{use.name}: no module computes the part '{use.mixer.name}': expected one of {known}"
    )


def _fill(value: nn.Parameter, name: str, zeros: tuple[str, ...], *, table: bool) -> None:
    """Write the numbers before training into a parameter: 0 if its name begins as one of `zeros`, 1
    if it is a gain, else normal ones with standard deviation 1/sqrt(n), for sums of n products
    (`table`: rows of n entries are looked up). Nothing on the meta device, which has no numbers."""
    if value.is_meta:
        return
    if name.startswith(zeros):
        nn.init.zeros_(value)
    elif name in GAINS:
        nn.init.ones_(value)
    else:
        # a matrix for each expert (E, d, f) sums over d; a table's rows have d entries
        terms = value.shape[-2] if value.dim() > 2 else fan_in(value.shape)
        nn.init.normal_(value, std=(value.shape[-1] if table else terms) ** -0.5)


class Part(nn.Module):
    """A part beside the mixers: rows (b, s, ...) to rows (b, s, ...)."""

    def __init__(
        self, use: Use, sizes: Mapping[str, int], shared: dict[str, nn.Parameter],
        names: Collection[str], made: Made,
    ) -> None:  # fmt: skip
        """Make the parameters and buffers of the part `use`, at all `sizes` of the network; `made`
        has their device and dtype. Parameters are drawn at random but for offsets (zeros) and gains
        (ones). `names` are those that several parts share, such as E of an embedding and a head:
        the first part adds them to `shared`, from which later ones take them. TwinError for a part
        that no function here computes."""
        super().__init__()
        if use.mixer.name not in COMPUTED:
            raise no_module(use)
        self.compute, self.arguments = COMPUTED[use.mixer.name], dict(use.mixer.made_with)
        self.part, self.of_first_row = use.mixer.name, of_first_row(use)
        number = use.sizes.get("c")
        self.chosen = 0 if number is None else number.at(sizes)
        """How many experts a row goes through."""
        self.own = {x: poly.at(sizes) for x, poly in use.sizes.items()}
        """Letter -> size of the part's own."""
        # a step of training changes no parameter that no equation reads
        form = use.mixer.forms[use.form or use.mixer.default_form]
        read = {found.ref.array.name for equation in form.equations for found in reads(equation)}
        zeros = (*OFFSETS, *(("gain",) if self.arguments.get("gain") == "1 + w" else ()))
        for array in use.mixer.arrays.values():
            shape = [extent.substitute(use.parameter_sizes).at(sizes) for extent in array.shape]
            # P: a table of sines of the positions; moved: a bias of experts that training moves
            if array.role == "buffer" and array.name in ("P", "moved"):
                P = array.name == "P"
                table = sinusoids(shape[0], shape[1], made) if P else torch.zeros(shape, **made)
                self.register_buffer(array.name, table, persistent=array.name == "moved")
            if array.role != "parameter":
                continue
            made_before = array.name in shared
            if made_before and (array.name in use.shared or (use.table and array.name in names)):
                self.register_parameter(array.name, shared[array.name])
                continue
            value = nn.Parameter(torch.empty(shape, **made), requires_grad=array.name in read)
            _fill(value, array.name, zeros, table=use.table)
            self.register_parameter(array.name, value)
            if array.name in names:
                shared[array.name] = value

    def forward(self, x: Tensor, other: Any = None) -> Tensor:
        """The part's rows of x; `other` is what the part reads besides: the position of the first
        row, from 0, the segments, or the second term of a residual sum."""
        found: Tensor = self.compute(self, x, other, **self.arguments)
        return found


def float_of(constant: Constant) -> float:
    """The value of a constant that has no sizes and is no root (half_power 2: the base itself)."""
    value = constant.base.constant()
    assert value is not None
    return math.pow(value, constant.half_power / 2)


def linear(p: Any, x: Tensor, W: str, b: str) -> Tensor:
    """x W + b, for the parameters of these names; without b if the part has none."""
    y: Tensor = x @ getattr(p, W)
    return y + getattr(p, b) if hasattr(p, b) else y


def look_up(p: Any, tokens: Tensor, other: None, scaled: bool) -> Tensor:
    """Rows (b, s, d) of tokens (b, s); `scaled`: times sqrt(d)."""
    rows: Tensor = p.E[tokens]
    return rows * p.E.shape[1] ** 0.5 if scaled else rows


def one_hot(p: Any, tokens: Tensor, other: None, scaled: bool) -> Tensor:
    """The rows of `look_up`, as the product of one-hot rows with E."""
    zeros = p.E.new_zeros(*tokens.shape, len(p.E))
    rows: Tensor = zeros.scatter(-1, tokens.unsqueeze(-1), 1.0) @ p.E
    return rows * p.E.shape[1] ** 0.5 if scaled else rows


def positions(p: Any, x: Tensor, first: int, kind: str, product: bool, scaled: bool,
              offset: int) -> Tensor:  # fmt: skip
    """The rows x (b, s, d), the first at position `first`, plus the rows of the table P at their
    positions plus `offset` (2 in OPT); `product`: as the product of one-hot rows with P; `scaled`:
    times sqrt(d). Both kinds of P, learned and sinusoidal, are read alike."""
    at = slice(first + offset, first + offset + x.shape[1])
    rows: Tensor = (
        torch.eye(len(p.P), dtype=x.dtype, device=x.device)[at] @ p.P if product else p.P[at]
    )
    return x + (rows * x.shape[-1] ** 0.5 if scaled else rows)


def segments(p: Any, x: Tensor, which: Tensor | None, kinds: int) -> Tensor:
    """The rows x plus the rows of their segments (b, s); None: all are in the first one."""
    if which is None:
        which = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
    rows: Tensor = x + p.S[which]
    return rows


def appended(p: Any, x: Tensor, which: Tensor | None, kinds: int) -> Tensor:
    """The rows x (b, s, d) with those of T that `which` (b, s) names appended, (b, s, d + r), as in
    RoCBert, where T has how tokens sound; None: the first row for all."""
    if which is None:
        which = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
    return torch.cat([x, p.T[which]], -1)


def dense(p: Any, x: Tensor, other: None, activation: str, bias: bool) -> Tensor:
    """The activation of a linear map of rows x (b, s, d): (b, s, f)."""
    return ACTIVATIONS[activation](linear(p, x, "W", "b"))


def sinusoids(l: int, d: int, made: Made) -> Tensor:
    """Sinusoidal position embeddings (l, d), Vaswani et al. 2017, section 3.5: sines in even
    channels (from 0) and cosines in odd ones, a frequency for each two channels."""
    position = torch.arange(l, dtype=torch.float64).unsqueeze(1)
    channel = torch.arange(d, dtype=torch.float64)
    angle = position / 10_000 ** ((channel - channel % 2) / d)
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos()).to(**made)


def layer_norm(
    p: Any, x: Tensor, other: None, bias: bool, eps: bool, gain: str, repeated: bool
) -> Tensor:
    """Rows of mean 0 and variance 1, times the gain (w, 1 + w, or none for ""), plus the offset if
    `bias`; `eps`: with a constant under the root; `repeated`: with parameters of other names, by
    which two norms of a layer share them."""
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    y = centred / (variance + float(LAYER_EPS) if eps else variance).sqrt()
    if gain:
        weight = p.gain_R if repeated else p.gain
        y = y * (weight if gain == "w" else 1 + weight)
    return y + (p.offset_R if repeated else p.offset) if bias else y


def rms_norm(p: Any, x: Tensor, other: None, gain: str) -> Tensor:
    """Rows of mean square 1, times the gain: w, 1 + w, or none for ""."""
    eps = float(RMS_EPS)
    if not gain:
        return x / ((x * x).mean(-1, keepdim=True) + eps).sqrt()
    return normed(x, p.gain if gain == "w" else 1 + p.gain, eps)


def residual(p: Any, x: Tensor, other: Tensor, scaled: str, gated: bool) -> Tensor:
    """The sum of rows and of the output of a sublayer. `scaled`: constants multiply the "output" or
    "both"; `gated`: tanh of a parameter multiplies the output."""
    if gated:
        return x + torch.tanh(p.gate) * other
    rows = float_of(REST) * x if scaled == "both" else x
    return rows + (float_of(MULTIPLIER) * other if scaled else other)


def ffn(p: Any, x: Tensor, other: None, activation: str, bias: bool, squared: bool) -> Tensor:
    """Two linear maps of rows x (b, s, d), with the activation or its square between them."""
    mapped = linear(p, x, "W_1", "b_1")
    hidden = xielu(p, mapped) if activation == "xielu" else ACTIVATIONS[activation](mapped)
    return linear(p, hidden * hidden if squared else hidden, "W_2", "b_2")


def xielu(p: Any, x: Tensor) -> Tensor:
    """The activation xielu of rows, with the parameters of the part."""
    above, below = x.clamp(min=0), x.clamp(max=0)
    grown = F.softplus(p.alpha_p) * above * above
    return grown + (F.softplus(p.alpha_n) + 0.5) * (below.exp() - 1 - below) + 0.5 * x


def bounded_gates(gate: Tensor, up: Tensor) -> Tensor:
    """The hidden rows of an FFN as in gpt-oss: (1 + up) gate sigmoid(ALPHA gate), both bounded."""
    gate = gate.clamp(max=LIMIT)
    return (1 + up.clamp(-LIMIT, LIMIT)) * gate * torch.sigmoid(float_of(ALPHA) * gate)


def gated_ffn(
    p: Any, x: Tensor, other: None, activation: str, bias: bool, sparse: bool, normed: bool,
    clamped: bool,
) -> Tensor:  # fmt: skip
    """The activation of the gate x W_gate times x W_up, mapped by W_down to (b, s, d). `sparse`: of
    the gate what exceeds a row's mean by `QUANTILE` standard deviations, as in Gemma 3n; `normed`:
    the activation squared, the product normed, as in BitNet; `clamped`: `bounded_gates`, as in
    gpt-oss, whatever the other options. Biases are those that `p` has, whatever `bias`."""
    gate = linear(p, x, "W_gate", "b_gate")
    if clamped:
        hidden = bounded_gates(gate, linear(p, x, "W_up", "b_up"))
        return linear(p, hidden, "W_down", "b_down")
    if sparse:
        centred = gate - gate.mean(-1, keepdim=True)
        deviation = (centred * centred).mean(-1, keepdim=True).sqrt()
        gate = torch.relu(centred - float_of(QUANTILE) * deviation)
    gate = ACTIVATIONS[activation](gate)
    hidden = (gate * gate if normed else gate) * linear(p, x, "W_up", "b_up")
    if normed:
        hidden = F.rms_norm(hidden, hidden.shape[-1:], p.gain_F, float(RMS_EPS))
    return linear(p, hidden, "W_down", "b_down")


def head(p: Any, x: Tensor, other: None, tied: bool, bias: bool, cap: bool, scale: str) -> Tensor:
    """Scores (b, s, u) of rows x (b, s, d), by the part's own map W or, `tied`, by the embedding E;
    then `cap` bounds the scores by a tanh. By `scale` a constant divides the scores ("divided") or
    the rows before ("rows"), or multiplies the scores ("multiplied"). `other` is
    None: a head has no second input."""
    x = x / float_of(MULTIPLIER) if scale == "rows" else x
    score: Tensor = x @ (p.E.t() if tied else p.W)
    score = score + p.b if bias else score
    score = CAP * torch.tanh(score / CAP) if cap else score
    score = score * float_of(INVERSE) if scale == "multiplied" else score
    return score / float_of(MULTIPLIER) if scale == "divided" else score


def experts(
    p: Any, x: Tensor, other: Any, *, routing: str, activation: str, clamped: bool, biased: bool,
    squared: bool, shared: str, correction: str | None, apart: bool, offset: bool, idle: bool,
) -> Tensor:  # fmt: skip
    """Mix rows x (b, s, d) by experts, to (b, s, d): each row passes its chosen experts, whose
    weights are gathered for each row, which suits small sizes. If `apart`, the router reads x, and
    experts read the first rows of `other`. If `idle`, the router scores more experts than have
    weights, of which none is chosen. `routing` ("softmax", "chosen-sigmoid", ...): what
    `routed` makes of scores, before or after the choice, in which it adds the bias `moved` of `p`
    that `correction` describes. `biased`: maps have biases, `offset`: so has their sum;
    `clamped`: bounded gates; `squared`: no gate, but the activation squared; `shared`: every row
    passes one more expert, "plain", "biased", "gated" (times a sigmoid), or none, ""."""
    read = x
    if apart:
        read = rms_norm(p, x, None, "") * p.gain / x.shape[-1] ** 0.5
        x = other[0]
    scores = linear(p, read, "W_R", "b_R")
    at, weights = routed(p, scores, routing, p.W_down.shape[0] if idle else None)
    weights = weights * p.factor[at] if apart else weights
    act, rows = ACTIVATIONS[activation], x.unsqueeze(-2).unsqueeze(-2)

    def mapped(name: str, of: Tensor) -> Tensor:
        """The rows (b, s, c, 1, ...) through the map of each row's experts."""
        y: Tensor = of @ getattr(p, f"W_{name}")[at]
        return y + getattr(p, f"b_{name}")[at].unsqueeze(-2) if biased else y

    up = mapped("up", rows)
    if clamped:
        hidden = bounded_gates(mapped("gate", rows), up)
    elif squared:
        hidden = act(up) * act(up)
    else:
        hidden = act(mapped("gate", rows)) * up
    y: Tensor = (weights.unsqueeze(-1) * mapped("down", hidden).squeeze(-2)).sum(-2)
    y = y + p.b_out if offset else y
    return y + _shared_expert(p, x, act, shared, clamped, squared) if shared else y


def _shared_expert(
    p: Any, x: Tensor, act: Callable[[Tensor], Tensor], kind: str, clamped: bool, squared: bool
) -> Tensor:
    """The rows x (b, s, d) after the expert that every row passes, (b, s, d), times a sigmoid of x
    if `kind` is "gated". `clamped`: bounded gates; `squared`: no gate, but `act` squared."""
    inner = linear(p, x, "V_up", "bias_up")
    if squared:
        inner = act(inner) * act(inner)
    else:
        gate = linear(p, x, "V_gate", "bias_gate")
        inner = bounded_gates(gate, inner) if clamped else act(gate) * inner
    every = linear(p, inner, "V_down", "bias_down")
    return every * torch.sigmoid(x @ p.v).unsqueeze(-1) if kind == "gated" else every


def routed(
    p: Any, scores: Tensor, routing: str, choices: int | None = None
) -> tuple[Tensor, Tensor]:
    """Choose c of E experts for each row by scores (b, s, E): (the experts' numbers, from 0, their
    weights), (b, s, c) each. Only the first `choices` experts may be chosen (None: all); those
    behind them are scored and have no parameters. `routing`, a name in `ROUTINGS`: whether softmax
    or sigmoid is taken of all scores, or of the chosen ones ("chosen-sigmoid"), and whether weights
    are divided by their sum ("-normalised"). A sigmoid of all scores is multiplied by `SCALE`, 2.5.
    `p.moved`, if there is one, is added to what the choice compares, and changes no weight."""
    if routing.startswith("chosen"):
        best = scores[..., :choices]
        at = (best + p.moved if hasattr(p, "moved") else best).topk(p.chosen, -1).indices
        chosen = scores.gather(-1, at)
        if routing == "chosen-softmax":
            return at, torch.softmax(chosen, -1)
        shares = torch.sigmoid(chosen)
        total = shares.sum(-1, keepdim=True)
        return at, shares / total if routing.endswith("-normalised") else shares
    sigmoid = routing.startswith("sigmoid")
    shares = torch.sigmoid(scores) if sigmoid else torch.softmax(scores, -1)
    best = shares[..., :choices]
    best = best + p.moved if hasattr(p, "moved") else best
    at = best.topk(p.chosen, -1).indices
    weights: Tensor = shares.gather(-1, at)
    if routing.endswith("-normalised"):
        weights = weights / weights.sum(-1, keepdim=True)
    return at, float_of(SCALE) * weights if sigmoid else weights


def in_heads(p: Any, x: Tensor, letter: str) -> Tensor:
    """Rows x (b, s, d) through W and the bias of a letter, as heads (b, s, g, K)."""
    rows = linear(p, x, f"W_{letter}", f"b_{letter}")
    heads: Tensor = rows.view(*rows.shape[:2], p.own["g"], p.own["K"])
    return heads


def turned(heads: Tensor, gain: Tensor, first: int) -> Tensor:
    """Heads (b, s, ..., K) after an RMS norm with this gain (K,) and a rotary embedding by their
    positions: `first` (from 0), `first` + 1, ..."""
    rows = F.rms_norm(heads, heads.shape[-1:], gain, float(MIXERS_EPS))
    half = heads.shape[-1] // 2
    pair = torch.arange(half, dtype=torch.float64, device=heads.device) / half
    row = torch.arange(first, first + heads.shape[1], dtype=torch.float64, device=heads.device)
    angles = (row.unsqueeze(1) * BASE**-pair).repeat(1, 2)
    axes = (heads.shape[1], *(1 for _ in heads.shape[2:-1]), heads.shape[-1])
    cos, sin = (table.to(heads.dtype).view(axes) for table in (angles.cos(), angles.sin()))
    one, other = rows.chunk(2, dim=-1)
    return rows * cos + torch.cat([-other, one], -1) * sin


def keys(p: Any, x: Tensor, first: int, bias: bool) -> Tensor:
    """Keys (b, s, g, K) of rows x (b, s, d), normed and turned by their positions."""
    return turned(in_heads(p, x, "K"), p.w_K, first)


def values(p: Any, x: Tensor, first: int, bias: bool) -> Tensor:
    """Values (b, s, g, K) of rows x (b, s, d), after an RMS norm without a gain."""
    heads = in_heads(p, x, "V")
    return F.rms_norm(heads, heads.shape[-1:], None, float(MIXERS_EPS))


def given_attention(p: Any, x: Tensor, given: Any, window: bool, bias: bool) -> Tensor:
    """Attention of rows x (b, s, d) to `given`: keys and values (b, t, g, K) and the position of
    the first row; s is t, or 1 for a new token, which reads the last w of t if there is a window.
    Each K and V serves several heads of queries."""
    k, v, first = given
    d, g, wide = p.W_Q.shape
    queries = x @ p.W_Q.view(d, -1)
    queries = queries + p.b_Q.flatten() if bias else queries
    q = turned(queries.view(*x.shape[:2], -1, p.own["K"]), p.w_Q, first)
    q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
    whole, w = q.shape[2] == k.shape[2], p.own.get("w")
    if w is not None and not whole:
        k, v = k[:, :, -w:], v[:, :, -w:]
    out = dense_attention(q, k, v, by=1, causal=whole, window=w, scaled=False)
    rows: Tensor = out.transpose(1, 2).flatten(2) @ p.W_out.view(g * wide, d)
    return rows + p.b_out if bias else rows


def layer_look_up(p: Any, tokens: Tensor, first: int) -> Tensor:
    """Rows (b, s, f) of tokens (b, s), times sqrt(f)."""
    rows: Tensor = p.E_layer[tokens] * p.E_layer.shape[1] ** 0.5
    return rows


def layer_input(p: Any, x: Tensor, given: Any, activation: str, streams: bool) -> Tensor:
    """What a layer of Gemma 3n adds, (b, s, d), for rows x (b, s, d): a gate of x times what the
    layer reads of each token anew. `given`: embedded tokens (b, s, d), their rows of the layer's
    own table (b, s, f), and a position; `streams`: x is (b, s, S, d), of which one is read."""
    z, own, _ = given
    x = active(p, x) * p.w_x if streams else x
    mapped = normed(z @ p.W_P / x.shape[-1] ** 0.5, p.gain_P, float(RMS_EPS))
    hidden = ACTIVATIONS[activation](x @ p.W_gate) * ((mapped + own) / 2**0.5)
    y: Tensor = hidden @ p.W_down
    return y


def active(p: Any, x: Tensor, other: Any = None) -> Tensor:
    """The rows (b, s, d) of the active one of S streams x (b, s, S, d): in Gemma 3n each token has
    S rows, of which one runs through the sublayers of a layer, and the others are predicted."""
    return x[:, :, p.own["A"] - 1]


def modalities(p: Any, x: Tensor, other: Any) -> Tensor:
    """S numbers for each of the rows x (b, s, d), the modalities, of which maps are coefficients in
    `predicted` and `corrected`."""
    mapped: Tensor = normed(x, p.gain_M, float(RMS_EPS)) / x.shape[-1] @ p.W_M
    return torch.tanh(mapped)


def predicted(p: Any, x: Tensor, given: Any) -> Tensor:
    """The streams (b, s, S, d) before a layer runs: x plus sums of x over streams, with the
    coefficients that the modalities in `given` have for each row."""
    mixing = (given[0] @ p.W_C).unflatten(-1, (x.shape[2], x.shape[2]))
    y: Tensor = mixing @ x + x
    return y


def corrected(p: Any, x: Tensor, given: Any) -> Tensor:
    """The streams (b, s, S, d) after a layer: the predicted x, each plus a share of what the layer
    changed in the active one; `given` has the layer's rows, and modalities that set the shares."""
    z, seen, _ = given
    share = (seen @ p.W_K + 1).unsqueeze(-1)
    y: Tensor = (z - active(p, x)).unsqueeze(2) * share + x
    return y


def added(p: Any, x: Tensor, given: Any) -> Tensor:
    """Streams x (b, s, S, d), to all of which but the first the rows in `given` are added."""
    return torch.cat([x[:, :, :1], x[:, :, 1:] + given[0].unsqueeze(2)], 2)


def low_rank(p: Any, x: Tensor, other: Any) -> Tensor:
    """The rows x plus the norm of their map of low rank."""
    return x + normed(x @ p.W_left @ p.W_right, p.gain_L, float(RMS_EPS))


def sized(first: Tensor, mapped: Tensor) -> Tensor:
    """The streams `mapped` (b, s, S - 1, d), scaled to the mean square of the rows `first`."""
    wanted = (first * first).mean(-1, keepdim=True).sqrt().unsqueeze(2)
    found = (mapped * mapped).mean(-1, keepdim=True).clamp(min=float_of(LEAST)).sqrt()
    return mapped * wanted / found


def opened(p: Any, x: Tensor) -> Tensor:
    """The S streams (b, s, S, d) that enter the layers: the embedded tokens x (b, s, d), then
    S - 1 maps of x, scaled to its mean square."""
    mapped = (x.unsqueeze(2).unsqueeze(3) @ p.W_S).squeeze(3)
    return torch.cat([x.unsqueeze(2), sized(x, mapped)], 2)


def closed(p: Any, x: Tensor) -> Tensor:
    """The mean (b, s, d) of the first of the streams x and of maps of the others, scaled to the
    first one's mean square."""
    mapped = (x[:, :, 1:].unsqueeze(3) @ p.W_S).squeeze(3)
    first = x[:, :, 0]
    return (first + sized(first, mapped).sum(2)) / x.shape[2]


COMPUTED: Mapping[str, Callable[..., Tensor]] = {
    "look-up": look_up,
    "one-hot": one_hot,
    "positions": positions,
    "unread": lambda p, x, other: x,
    "segments": segments,
    "appended": lambda p, x, other, kinds: appended(p, x, None, kinds),
    "dense": dense,
    "layer-norm": layer_norm,
    "rms-norm": rms_norm,
    "residual": residual,
    "ffn": ffn,
    "gated-ffn": gated_ffn,
    "experts": experts,
    "head": head,
    "keys": keys,
    "values": values,
    "attention-to-given-keys": given_attention,
    "layer-look-up": layer_look_up,
    "layer-input": layer_input,
    "active-stream": active,
    "modalities": modalities,
    "predicted-streams": predicted,
    "corrected-streams": corrected,
    "added-to-streams": added,
    "laurel": low_rank,
    "sum-of-three": lambda p, x, other: (x + other[0] + other[1]) / 2**0.5,
    "opened-streams": lambda p, x, other: opened(p, x),
    "closed-streams": lambda p, x, other: closed(p, x),
    "sum": lambda p, x, other: x + other[0],
    "moved-rows": lambda p, x, other: x + p.z,
    "scale": lambda p, x, other: x / x.shape[-1] ** 0.5,
    "probabilities": lambda p, x, other: torch.softmax(x, -1),
}
"""Name of a part -> the function that computes its rows."""

KEPT = ("keys", "values")
"""Parts whose rows of earlier tokens are read too."""


def at_targets(rows: Tensor, targets: Tensor) -> Tensor:
    """The entry of each row (..., u) at the row's target (...)."""
    return rows.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def loss_of_scores(scores: Tensor, targets: Tensor, *, smoothed: bool) -> Tensor:
    """The mean cross-entropy of scores (..., u) with target numbers (...), with label smoothing if
    `smoothed`."""
    logs = torch.log_softmax(scores, -1)
    row = at_targets(logs, targets)
    if smoothed:
        row = row * float(1 - SMOOTHING) + logs.sum(-1) * (float(SMOOTHING) / logs.shape[-1])
    return -row.mean()


def loss_of_probabilities(probabilities: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of probabilities (..., u)."""
    return -at_targets(probabilities, targets).log().mean()
