"""Recurrent layers in PyTorch: the tanh RNN, the LSTM and the GRU.

Zaremba et al. 2014, Cho et al. 2014 and Chung et al. 2014, with the choices stated in
costmodel.mixers.recurrent. Rows are (b, s, d), the arrays of the state (b, d). The product of W
with all rows is one operation; the rest is done row by row. A class combines one layer with
separate operations, or with PyTorch's own layer, which adds two biases, starts from a row of zeros
and multiplies it, and so implements only mixers with `+two-biases`.

On a CPU, PyTorch's layers dispatch matrix products and elementwise operations, except that in some
dtypes its LSTM is one operation of oneDNN: oneDNN is switched off here, so that the same operations
run in every dtype. On a GPU they are one operation of cuDNN, which has no counting rule.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from profiler.modules.base import Mixer, State, require_sizes
from profiler.modules.registry import implementation

Held = tuple[Tensor, ...]
"""The arrays that the next row reads, (b, d) each, the output row first."""


def plus_optional(one: Tensor, two: Tensor | None) -> Tensor:
    """one + two; `one` where `two` is None."""
    return one if two is None else one + two


class Recurrence(Mixer):
    """A layer in which every row x_i reads the state h after the row before: gates are functions of
    W x_i + b + U h (+ b_U with the option `two-biases`).

    With several gates (GRU: r, z, n; LSTM: i, f, o, g) W and U are (gates, d, d), b and b_U (gates,
    d); with one gate (d, d) and (d,). `STATE` names the arrays of the state, the output first.
    """

    GATES: ClassVar[int] = 1
    STATE: ClassVar[tuple[str, ...]] = ("y",)

    def __init__(self, *, d: int, l: int, options: Sequence[str] = ()) -> None:
        """Declare the weights W, U and biases b of all gates, for rows and states of width d; the
        option `two-biases` adds a bias b_U."""
        super().__init__(d=d, l=l)
        self.options = tuple(options)
        packed = (self.GATES,) if self.GATES > 1 else ()
        self.W: nn.Parameter = self.weight(*packed, d, d)
        self.U: nn.Parameter = self.weight(*packed, d, d)
        self.b: nn.Parameter = self.weight(*packed, d)
        if "two-biases" in self.options:
            self.b_U: nn.Parameter = self.weight(*packed, d)

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state of one row, (batch, 1, d) for each array, and so for any length."""
        require_sizes(length=self.l if length is None else length)
        return State({name: self._rows(batch, 1, self.d) for name in self.STATE}, sliding=True)


class Explicit(Recurrence):
    """Row by row in separate operations. The first row reads no state: it has no product with U,
    and no gate that only multiplies the state, such as a forget gate.

    `ORDER` holds the numbers of the gates in the order in which their columns are concatenated: the
    gate that the first row may lack first, the candidate last.
    """

    ORDER: ClassVar[tuple[int, ...]] = (0,)

    @property
    def lacking(self) -> int:
        """The number of gates, the first ones of `ORDER`, that the first row lacks."""
        return 0

    @abstractmethod
    def row(self, own: Tensor, before: Held | None, U: Tensor) -> Held:
        """The arrays of the state after a row, (b, d) each, the output first.

        Args:
            own: W x + b of the row's gates, (b, gates*d); the first row may lack gates.
            before: the state before the row; None for the first row.
            U: the weights of the state, (d, gates*d).
        """

    def beside(self, packed: Tensor, gates: slice = slice(None)) -> Tensor:
        """The parts of a weight or bias `packed` (all gates, ..., d) that belong to some gates (a
        slice of `ORDER`, their order), concatenated along the last axis: (..., gates*d). With a
        single gate, unchanged: (..., d)."""
        if self.GATES == 1:
            return packed
        apart = packed.unbind(0)
        return torch.cat([apart[gate] for gate in self.ORDER[gates]], dim=-1)

    def of_input(self, x: Tensor, gates: slice) -> Tensor:
        """W x + b for some gates, as numbers of `ORDER`: (..., gates*d) of rows (..., d)."""
        return x @ self.beside(self.W, gates) + self.beside(self.b, gates)

    def mix(self, x: Tensor) -> Tensor:
        """The output y (b, s, d) of x (b, s, d): W x + b of all rows at once, then the recurrence
        row by row. The gates that the first row lacks are computed for the later rows alone."""
        own = [*self.of_input(x, slice(self.lacking, None)).unbind(1)]
        if self.lacking and own[1:]:
            more = self.of_input(x[:, 1:], slice(self.lacking)).unbind(1)
            own[1:] = [torch.cat(both, dim=-1) for both in zip(more, own[1:], strict=True)]
        U, held, rows = self.beside(self.U), None, []
        for of_row in own:
            held = self.row(of_row, held, U)
            rows.append(held[0])
        return torch.stack(rows, dim=1)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """The output y_t (b, d) of one token x_t (b, d): one row of the recurrence, from the state
        before, which `state` holds and replaces."""
        before = tuple(state.held(name).squeeze(-2) for name in self.STATE)
        own = self.of_input(x_t, slice(0 if state.position else self.lacking, None))
        held = self.row(own, before if state.position else None, self.beside(self.U))
        state.append(**dict(zip(self.STATE, held, strict=True)))
        return held[0]

    def of_state(
        self, state: Tensor | None, U: Tensor, columns: slice = slice(None)
    ) -> Tensor | None:
        """U h + b_U of a state h (b, d), for the given columns of U (b_U only if there is one).
        Without a state (None): b_U for those of these columns whose gates the first row has; None
        without b_U."""
        bias = self.beside(self.b_U) if "two-biases" in self.options else None
        if state is not None:
            return plus_optional(state @ U[:, columns], None if bias is None else bias[columns])
        first = slice(columns.start or self.lacking * self.d, columns.stop)
        return None if bias is None else bias[first]


@implementation(
    "recurrent",
    "explicit",
    form="recurrent",
    kernels={"y": "contraction"},
    step_kernels={"y": "contraction"},
    options=("two-biases",),
)
class RecurrentExplicit(Explicit):
    """h_t = tanh(W x_t + b + U h_{t-1})."""

    def row(self, own: Tensor, before: Held | None, U: Tensor) -> Held:
        """The output h (b, d) after a row."""
        carried = self.of_state(None if before is None else before[0], U)
        return (torch.tanh(plus_optional(own, carried)),)


LSTM_KERNELS = dict.fromkeys("IFOG", "contraction") | dict.fromkeys("Cy", "elementwise")


@implementation(
    "lstm",
    "explicit",
    form="recurrent",
    kernels=LSTM_KERNELS,
    step_kernels=LSTM_KERNELS,
    options=("two-biases",),
)
class LstmExplicit(Explicit):
    """c_t = f_t c_{t-1} + i_t g_t and h_t = o_t tanh(c_t)."""

    GATES = 4
    ORDER = (1, 0, 2, 3)
    STATE = ("y", "C")

    @property
    def lacking(self) -> int:
        """The forget gate."""
        return 1

    def row(self, own: Tensor, before: Held | None, U: Tensor) -> Held:
        """The state of the LSTM after a row, (output h, cell c), (b, d) each, from W x + b of its
        gates (`own`) and the state `before` (None for the first row)."""
        inside = plus_optional(own, self.of_state(None if before is None else before[0], U))
        # the first row has no forget gate, so `forget` is empty
        *forget, i, o = torch.sigmoid(inside[:, : -self.d]).chunk(3 - (before is None), dim=1)
        c = i * torch.tanh(inside[:, -self.d :])
        c = c if before is None else forget[0] * before[1] + c
        return o * torch.tanh(c), c


def printed_update(z: Tensor, n: Tensor, h: Tensor | None) -> Tensor:
    """z h + (1 - z) n, (b, d) each; None stands for the zero row before the first."""
    return (1 - z) * n if h is None else z * h + (1 - z) * n


def interpolated_update(z: Tensor, n: Tensor, h: Tensor | None) -> Tensor:
    """n + z (h - n), which is z h + (1 - z) n, with one product; None for h: zeros."""
    return n - z * n if h is None else n + z * (h - n)


UPDATES: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "recurrent": printed_update,
    "interpolated": interpolated_update,
}
"""Form -> the new row from update gate, candidate and the row before."""


class Gru(Explicit):
    """A GRU with update gate z, reset gate r and candidate n: the new row is z h + (1 - z) n, by
    the formula of its form in `UPDATES`."""

    GATES = 3
    ORDER = (0, 1, 2)
    KERNELS: ClassVar[Mapping[str, str]] = dict.fromkeys("RZN", "contraction") | {
        "y": "elementwise"
    }
    form: ClassVar[str]

    def row(self, own: Tensor, before: Held | None, U: Tensor) -> Held:
        """The state of the GRU after a row, its output (b, d) in a tuple, from W x + b of reset
        gate, update gate and candidate (`own`, (b, 3d); (b, 2d) for a first row without a reset
        gate) and the state `before`, such a tuple (None for the first row)."""
        h = None if before is None else before[0]
        carried, gates = self.carried(h, U), slice(None, own.shape[-1] - self.d)
        inside = plus_optional(own[:, gates], None if carried is None else carried[..., gates])
        # a first row that lacks the reset gate has z alone
        *reset, z = torch.sigmoid(inside).chunk(inside.shape[1] // self.d, dim=1)
        read = self.reset(reset[0] if reset else None, h, carried, U)
        n = torch.tanh(plus_optional(own[:, -self.d :], read))
        return (UPDATES[self.form](z, n, h),)

    @abstractmethod
    def carried(self, h: Tensor | None, U: Tensor) -> Tensor | None:
        """U h (+ b_U) for at least the two gates, (b, 2d or 3d); None without h and b_U."""

    @abstractmethod
    def reset(
        self, r: Tensor | None, h: Tensor | None, carried: Tensor | None, U: Tensor
    ) -> Tensor | None:
        """The term of the candidate that reads the row before through the reset gate, (b, d); None
        without that row or a bias that takes its place.

        Args:
            r: the reset gate (b, d); None if the first row lacks it.
            h: the row before; None for the first row.
            carried: U h + b_U of the row before, for the gates and, in one form, the candidate;
                None for the first row without b_U.
            U: the weights of the state, (d, 3d).
        """


class ResetAfter(Gru):
    """The reset gate multiplies U h."""

    @property
    def lacking(self) -> int:
        """1, the reset gate, unless there is a b_U that it multiplies."""
        return int("two-biases" not in self.options)

    def carried(self, h: Tensor | None, U: Tensor) -> Tensor | None:
        """U h (+ b_U) for both gates and the candidate, (b, 3d)."""
        return self.of_state(h, U)

    def reset(
        self, r: Tensor | None, h: Tensor | None, carried: Tensor | None, U: Tensor
    ) -> Tensor | None:
        """r (U h + b_U); None without r or `carried`."""
        return None if r is None or carried is None else r * carried[..., 2 * self.d :]


class ResetBefore(Gru):
    """The reset gate multiplies h before the product with U."""

    KERNELS: ClassVar[Mapping[str, str]] = {**Gru.KERNELS, "H": "elementwise"}

    @property
    def lacking(self) -> int:
        """The reset gate."""
        return 1

    def carried(self, h: Tensor | None, U: Tensor) -> Tensor | None:
        """U h (+ b_U) for the two gates alone, (b, 2d)."""
        return self.of_state(h, U, slice(None, 2 * self.d))

    def reset(
        self, r: Tensor | None, h: Tensor | None, carried: Tensor | None, U: Tensor
    ) -> Tensor | None:
        """U (r h) + b_U; b_U alone for the first row, None without b_U."""
        return self.of_state(None if r is None or h is None else r * h, U, slice(2 * self.d, None))


_Class = TypeVar("_Class", bound=type[Gru])


def updating(form: str, mixer: str, name: str) -> Callable[[_Class], _Class]:
    """Return a decorator that registers a class as an implementation of `mixer` with this name,
    which updates the state by the equations of this `form`."""

    def register(layer: _Class) -> _Class:
        """Set the class's `form`, and register the class as implementation `name` of `mixer`."""
        layer.form = form
        return implementation(
            mixer,
            name,
            form=form,
            kernels=layer.KERNELS,
            step_kernels=layer.KERNELS,
            options=("two-biases",),
        )(layer)

    return register


@updating("recurrent", "gru", "explicit")
class GruExplicit(ResetAfter):
    """The GRU whose new row is z h + (1 - z) n."""


@updating("interpolated", "gru", "interpolated")
class GruInterpolated(ResetAfter):
    """The GRU whose new row is n + z (h - n)."""


@updating("recurrent", "gru+reset-before", "explicit")
class ResetBeforeExplicit(ResetBefore):
    """The GRU with the reset before the product, whose new row is z h + (1 - z) n."""


@updating("interpolated", "gru+reset-before", "interpolated")
class ResetBeforeInterpolated(ResetBefore):
    """The GRU with the reset before the product, whose new row is n + z (h - n)."""


@contextmanager
def without_onednn() -> Iterator[None]:
    """A context without oneDNN, so that a CPU runs PyTorch's own operations in every dtype."""
    backend = torch.backends.mkldnn
    before = backend.enabled
    backend.enabled = False  # type: ignore[assignment]  # a property that torch leaves untyped
    try:
        yield
    finally:
        backend.enabled = before


class TorchLayer(Recurrence):
    """PyTorch's layer on whole sequences, its cell on one token: two biases, and an initial row of
    zeros.

    `ORDER` holds, for each of PyTorch's gates in turn, its number in the equations.
    """

    ORDER: ClassVar[tuple[int, ...]] = (0,)

    def weights(self) -> list[Tensor]:
        """W and U as (gates*d, d), (out, in) each, and b and b_U as (gates*d,), in the order of
        PyTorch's gates."""
        return [self._in_order(p) for p in (self.W, self.U, self.b, self.b_U)]

    def _in_order(self, packed: Tensor) -> Tensor:
        """A weight (gates, in, out) or bias (gates, out) as PyTorch's layer takes it: contiguous,
        as cuDNN asks."""
        gates = (packed,) if self.GATES == 1 else packed.unbind(0)
        ordered = torch.stack([gates[k] for k in self.ORDER])
        return (ordered.mT if ordered.dim() == 3 else ordered).flatten(0, 1).contiguous()

    def mix(self, x: Tensor) -> Tensor:
        """y (b, s, d) by one call for all rows."""
        zeros = x.new_zeros(1, x.shape[0], self.d)
        with without_onednn():
            return self.layer(x, zeros)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """y_t (b, d) by one call of PyTorch's cell; the first row reads the state's zeros."""
        before = tuple(state.arrays[name].squeeze(-2) for name in self.STATE)
        held = self.cell(x_t, before)
        state.append(**dict(zip(self.STATE, held, strict=True)))
        return held[0]

    @abstractmethod
    def layer(self, x: Tensor, zeros: Tensor) -> Tensor:
        """y (b, s, d) of x (b, s, d), from zeros (1, b, d)."""

    @abstractmethod
    def cell(self, x_t: Tensor, before: Held) -> Held:
        """The state after a row x_t (b, d)."""


LAYER = (1, 0.0, False, False, True)
"""One layer, no dropout, not training, one direction, batch first."""


def torch_layer(mixer: str, form: str, arrays: str) -> Callable[[type], type]:
    """Return a decorator that registers a class as an implementation of `mixer` by PyTorch's own
    layer; `arrays` are the names, one letter each, of the arrays that the one call computes."""
    return implementation(
        mixer,
        "torch",
        form=form,
        rewrites=("zero-state",),
        kernels=dict.fromkeys(arrays, "recurrent-layer"),
        step_kernels=dict.fromkeys(arrays, "contraction"),
    )


@torch_layer("recurrent+two-biases", "recurrent", "y")
class RecurrentTorch(TorchLayer):
    """torch.rnn_tanh, which torch.nn.RNN calls."""

    def layer(self, x: Tensor, zeros: Tensor) -> Tensor:
        """y (b, s, d)."""
        return torch.rnn_tanh(x, zeros, self.weights(), True, *LAYER)[0]

    def cell(self, x_t: Tensor, before: Held) -> Held:
        """The state after a row."""
        return (torch.rnn_tanh_cell(x_t, *before, *self.weights()),)


@torch_layer("lstm+two-biases", "recurrent", "IFOGCy")
class LstmTorch(TorchLayer):
    """torch.lstm, which torch.nn.LSTM calls; its candidate comes before its output gate."""

    GATES = 4
    STATE = ("y", "C")
    ORDER = (0, 1, 3, 2)

    def layer(self, x: Tensor, zeros: Tensor) -> Tensor:
        """y (b, s, d)."""
        return torch.lstm(x, (zeros, zeros), self.weights(), True, *LAYER)[0]

    def cell(self, x_t: Tensor, before: Held) -> Held:
        """The output and the cell after a row."""
        return torch.lstm_cell(x_t, before, *self.weights())


@torch_layer("gru+two-biases", "interpolated", "RZNy")
class GruTorch(TorchLayer):
    """torch.gru, which torch.nn.GRU calls."""

    GATES = 3
    ORDER = (0, 1, 2)

    def layer(self, x: Tensor, zeros: Tensor) -> Tensor:
        """y (b, s, d)."""
        return torch.gru(x, zeros, self.weights(), True, *LAYER)[0]

    def cell(self, x_t: Tensor, before: Held) -> Held:
        """The state after a row."""
        return (torch.gru_cell(x_t, *before, *self.weights()),)
