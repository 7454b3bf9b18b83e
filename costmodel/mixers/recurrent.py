"""What are the equations of the recurrent layers: the tanh RNN, the LSTM and the GRU?

A row of the output is the state h that the next row reads; all widths are d. The state before the
first row is zero, so the first row has no product with the state, and a gate that multiplies
nothing but the state has no first row. The papers print no bias or one; here one bias is added to
W x_t, so that a single addition stands between the rows. `two-biases` adds a second bias to
U h_{t-1}.

W and U hold the matrices of all gates, (in, out) each: input gate, forget gate, output gate and
candidate of the LSTM; reset gate, update gate and candidate of the GRU.

Read from the papers: the LSTM has a forget gate and no peepholes. The GRU's reset gate multiplies
the product of h_{t-1} and U, as in the first version of Cho et al. and in torch; `reset-before`
has it multiply h_{t-1}, as in the third. The update gate z weights the row before: the form
`recurrent` is z h_{t-1} + (1 - z) n, as printed, `interpolated` is n + z (h_{t-1} - n).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index
from costmodel.language.nodes import Array, Node
from costmodel.language.options import Chosen, offering
from costmodel.language.writing import function, sum_

CHUNG = "Chung et al. 2014, arXiv 1412.3555, section 2"
VASWANI = "Vaswani et al. 2017, arXiv 1706.03762, Table 1"
ZAREMBA = "Zaremba et al. 2014, arXiv 1409.2329, section 3"
CHO = "Cho et al. 2014, arXiv 1406.1078"

TWO_BIASES = {"two-biases": "b_U, a second bias on what comes from the row before, as in torch.nn"}
RESET_BEFORE = {"reset-before": "the reset gate multiplies the row before, not its product with U"}

LSTM_GATES: Mapping[str, str] = {"I": "sigmoid", "F": "sigmoid", "O": "sigmoid", "G": "tanh"}
"""Array -> function, in the order of the packed matrices."""

State = Callable[[Index], Node]
"""Called with a channel: the entry of the state before a row at this channel."""


@dataclass(frozen=True)
class Gates:
    """The affine maps of the gates: W x_t + b of the input, U h (+ b_U) of the state."""

    x: Array
    W: Array
    U: Array
    b: Array
    b_U: Array | None

    def of_input(self, f: Form, row: int | Index, *gate: int) -> Node:
        """W x + b at channel b of a row."""
        a, b = _channels(f)
        return sum_(self.x[row, a] * self.W[(*gate, a, b)], over=a) + self.b[(*gate, b)]

    def of_state(self, f: Form, state: State | None, *gate: int) -> Node | None:
        """The expression of U h + b_U at channel b for a state h, with U's matrix number `gate`
        (none: the only one). Before the first row there is no state (None): b_U alone, or None if
        there is no b_U."""
        a, b = _channels(f)
        bias = None if self.b_U is None else self.b_U[(*gate, b)]
        if state is None:
            return bias
        product = sum_(state(a) * self.U[(*gate, a, b)], over=a)
        return product if bias is None else product + bias


def _channels(f: Form) -> tuple[Index, Index]:
    d = f.mixer.role("input").shape[1]
    return f.index("a", 1, d), f.index("b", 1, d)


def _first_and_later_rows(f: Form, state: Array) -> tuple[tuple[int, None], tuple[Index, State]]:
    """Two pairs (row, state before it): row 1 with None, since no state is before it, and the index
    of rows 2..l with a function of the channel."""
    i = f.index("i", 2, f.mixer.role("input").shape[0])
    return (1, None), (i, lambda a: state[i - 1, a])


def _plus_optional(one: Node, two: Node | None) -> Node:
    return one if two is None else one + two


def _layer(mixer: Mixer, number: int, chosen: Chosen) -> tuple[Gates, Array]:
    """Declare x, y and the parameters of a layer with `number` gates; returns its maps and y. W and
    U are (number, d, d), b is (number, d); a single map has no first axis. `two-biases` adds
    b_U."""
    l, d = mixer.sizes("l d")
    x, y = mixer.input("x", l, d), mixer.output("y", l, d)
    packed = (number,) if number > 1 else ()
    W, U = (mixer.parameter(name, *packed, d, d) for name in "WU")
    b = mixer.parameter("b", *packed, d)
    second = mixer.parameter("b_U", *packed, d) if "two-biases" in chosen else None
    return Gates(x, W, U, b, second), y


def _gate(
    f: Form, gates: Gates, y: Array, name: str, kind: str, gate: int, *, first: bool = True
) -> Array:
    """Define and return an array `name` (l, d): the function `kind` of W x_t + b + U h_{t-1}, with
    the matrices number `gate`. Unless `first`, row 1 is left out, for a gate of the state alone."""
    found, b = f.array(name, *y.shape), _channels(f)[1]
    for row, before in _first_and_later_rows(f, y)[not first :]:
        inside = _plus_optional(gates.of_input(f, row, gate), gates.of_state(f, before, gate))
        found[row, b] = function(kind, inside)
    return found


@offering(TWO_BIASES)
def recurrent(chosen: Chosen) -> Mixer:
    """The tanh RNN, a mixer: h_t = tanh(W x_t + b + U h_{t-1} (+ b_U with `two-biases`))."""
    m = Mixer(
        "recurrent",
        title="Recurrent (tanh)",
        idea="a row of tanh is carried from token to token",
        source=f"{CHUNG}; {VASWANI}",
        group="recurrent",
        aliases=("rnn",),
        references=("torch.nn.RNN",),
    )
    gates, y = _layer(m, 1, chosen)
    with m.form("recurrent") as f:
        b = _channels(f)[1]
        for row, before in _first_and_later_rows(f, y):
            y[row, b] = function(
                "tanh", _plus_optional(gates.of_input(f, row), gates.of_state(f, before))
            )
    return m


@offering(TWO_BIASES)
def lstm(chosen: Chosen) -> Mixer:
    """The mixer of the LSTM: c_t = f_t c_{t-1} + i_t g_t and h_t = o_t tanh(c_t), where i, f, o are
    sigmoid gates and g is tanh, each of W x_t + b + U h_{t-1}."""
    m = Mixer(
        "lstm",
        title="LSTM",
        idea="a carried row, with gates for what comes in and what stays",
        source=ZAREMBA,
        group="recurrent",
        references=("torch.nn.LSTM",),
    )
    gates, y = _layer(m, len(LSTM_GATES), chosen)
    with m.form("recurrent") as f:
        b = _channels(f)[1]
        I, F, O, G = (
            _gate(f, gates, y, name, kind, gate, first=name != "F")
            for gate, (name, kind) in enumerate(LSTM_GATES.items(), 1)
        )
        C = f.array("C", *y.shape)
        for row, before in _first_and_later_rows(f, C):
            new = I[row, b] * G[row, b]
            C[row, b] = new if before is None else F[row, b] * before(b) + new
            y[row, b] = O[row, b] * function("tanh", C[row, b])
    return m


@offering(TWO_BIASES | RESET_BEFORE)
def gru(chosen: Chosen) -> Mixer:
    """The mixer of the GRU: n_t = tanh(W x_t + b + r_t U h_{t-1}), where r and z are sigmoid gates;
    with `reset-before` U (r_t h_{t-1}) in place of r_t U h_{t-1}. Form `recurrent`: h_t = z_t
    h_{t-1} + (1 - z_t) n_t; form `interpolated`: h_t = n_t + z_t (h_{t-1} - n_t)."""
    before_product = "reset-before" in chosen
    m = Mixer(
        "gru",
        title="GRU",
        idea="a carried row is mixed with a new one by a gate",
        source=f"{CHO}{'v3' if before_product else 'v1'}, section 2.3",
        group="recurrent",
        references=() if before_product else ("torch.nn.GRU",),
    )
    gates, y = _layer(m, 3, chosen)
    candidate = _reset_before if before_product else _reset_after
    for form in ("recurrent", "interpolated"):
        with m.form(form) as f:
            b = _channels(f)[1]
            # in row 1 the reset gate multiplies b_U alone, if there is one
            of_bias = gates.b_U is not None and not before_product
            R = _gate(f, gates, y, "R", "sigmoid", 1, first=of_bias)
            Z = _gate(f, gates, y, "Z", "sigmoid", 2)
            N = candidate(f, gates, y, R)
            for row, before in _first_and_later_rows(f, y):
                kept = None if before is None else before(b)
                y[row, b] = UPDATES[form](Z[row, b], N[row, b], kept)
    return m


def _reset_after(f: Form, gates: Gates, y: Array, R: Array) -> Array:
    """Define and return the candidate N (l, d): tanh(W x_t + b + r_t (U h_{t-1} + b_U)), r_t row t
    of the reset gate R (l, d); in row 1 U h is left out, and r_t too if there is no b_U."""
    N, b = f.array("N", *y.shape), _channels(f)[1]
    for row, before in _first_and_later_rows(f, y):
        carried = gates.of_state(f, before, 3)
        reset = None if carried is None else R[row, b] * carried
        N[row, b] = function("tanh", _plus_optional(gates.of_input(f, row, 3), reset))
    return N


def _reset_before(f: Form, gates: Gates, y: Array, R: Array) -> Array:
    """Define and return the candidate N (l, d): tanh(W x_t + b + U H + b_U), where H is h_{t-1}
    times row t of the reset gate R (l, d), entry by entry; in row 1 U H is left out."""
    N, H, b = f.array("N", *y.shape), f.array("H", *y.shape), _channels(f)[1]
    (first, _), (i, before) = _first_and_later_rows(f, y)
    H[i, b] = R[i, b] * before(b)
    N[first, b] = function(
        "tanh", _plus_optional(gates.of_input(f, first, 3), gates.of_state(f, None, 3))
    )
    reset = gates.of_state(f, lambda a: H[i, a], 3)
    N[i, b] = function("tanh", _plus_optional(gates.of_input(f, i, 3), reset))
    return N


def _printed(z: Node, n: Node, h: Node | None) -> Node:
    return (1 - z) * n if h is None else z * h + (1 - z) * n


def _interpolated(z: Node, n: Node, h: Node | None) -> Node:
    return n - z * n if h is None else n + z * (h - n)


UPDATES: Mapping[str, Callable[[Node, Node, Node | None], Node]] = {
    "recurrent": _printed,
    "interpolated": _interpolated,
}
"""Form -> the new row from the update gate, the candidate and the row before."""
