"""How do the recurrent layers run in PyTorch: the tanh RNN, the LSTM and the GRU?

The product of W with all rows is one operation; the rest is done row by row. A class combines one
layer with a way to do that: separate operations, or PyTorch's own layer, which adds two biases,
starts from a row of zeros and multiplies it, and so implements only mixers with `+two-biases`.

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
    """A layer in which every row reads the state left by the row before.

    With several gates W and U are (gates, d, d) and b (gates, d), with one (d, d) and (d,); b_U has
    the shape of b and exists where the option `two-biases` is chosen. `STATE` names the arrays of
    the state, the output first.
    """

    GATES: ClassVar[int] = 1
    STATE: ClassVar[tuple[str, ...]] = ("y",)

    def __init__(self, *, d: int, l: int, options: Sequence[str] = ()) -> None:
        super().__init__(d=d, l=l)
        self.options = tuple(options)
        packed = (self.GATES,) if self.GATES > 1 else ()
        self.W: nn.Parameter = self.weight(*packed, d, d)
        self.U: nn.Parameter = self.weight(*packed, d, d)
        self.b: nn.Parameter = self.weight(*packed, d)
        if "two-biases" in self.options:
            self.b_U: nn.Parameter = self.weight(*packed, d)

    def initial_state(self, batch: int, length: int | None = None) -> State:
        """Room for one row, (batch, 1, d) of each array of the state; any length has room."""
        require_sizes(length=self.l if length is None else length)
        return State({name: self._rows(batch, 1, self.d) for name in self.STATE}, sliding=True)


class Explicit(Recurrence):
    """Row by row in separate operations; the first row has no product with a row before it, and no
    gate that would multiply that row alone.

    `ORDER` holds the numbers of the gates as they stand beside each other: first that which the
    first row may lack, last the candidate.
    """

    ORDER: ClassVar[tuple[int, ...]] = (0,)

    @property
    def lacking(self) -> int:
        """How many of the gates, in order, the first row lacks."""
        return 0

    @abstractmethod
    def row(self, own: Tensor, before: Held | None, U: Tensor) -> Held:
        """The state after a row, from W x + b (b, gates*d) of the gates that it has, the state
        before it, and U (d, gates*d)."""

    def beside(self, packed: Tensor, gates: slice = slice(None)) -> Tensor:
        """What is packed for some gates, (gates, ..., d), in order along the last axis, (...,
        gates*d); what belongs to a single gate is not packed."""
        if self.GATES == 1:
            return packed
        apart = packed.unbind(0)
        return torch.cat([apart[gate] for gate in self.ORDER[gates]], dim=-1)

    def of_input(self, x: Tensor, gates: slice) -> Tensor:
        """W x + b of some gates, (..., gates*d), of rows (..., d)."""
        return x @ self.beside(self.W, gates) + self.beside(self.b, gates)

    def mix(self, x: Tensor) -> Tensor:
        """W x + b of all rows, then y (b, s, d) row by row."""
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
        """One row from the held state."""
        before = tuple(state.held(name).squeeze(-2) for name in self.STATE)
        own = self.of_input(x_t, slice(0 if state.position else self.lacking, None))
        held = self.row(own, before if state.position else None, self.beside(self.U))
        state.append(**dict(zip(self.STATE, held, strict=True)))
        return held[0]

    def of_state(
        self, state: Tensor | None, U: Tensor, columns: slice = slice(None)
    ) -> Tensor | None:
        """U h + b_U of a state h (b, d), for all columns or some; without a state b_U for the gates
        of the first row among these, or None without b_U."""
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
        """The state after a row."""
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
        """The output and the cell after a row."""
        inside = plus_optional(own, self.of_state(None if before is None else before[0], U))
        *forget, i, o = torch.sigmoid(inside[:, : -self.d]).chunk(3 - (before is None), dim=1)
        c = i * torch.tanh(inside[:, -self.d :])
        c = c if before is None else forget[0] * before[1] + c
        return o * torch.tanh(c), c


def printed_update(z: Tensor, n: Tensor, h: Tensor | None) -> Tensor:
    """z h + (1 - z) n, (b, d) each; None stands for the zero row before the first."""
    return (1 - z) * n if h is None else z * h + (1 - z) * n


def interpolated_update(z: Tensor, n: Tensor, h: Tensor | None) -> Tensor:
    """n + z (h - n)."""
    return n - z * n if h is None else n + z * (h - n)


UPDATES: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "recurrent": printed_update,
    "interpolated": interpolated_update,
}
"""Form -> the new row from update gate, candidate and the row before."""


class Gru(Explicit):
    """A GRU in one of its forms: reset gate, update gate, candidate, new row."""

    GATES = 3
    ORDER = (0, 1, 2)
    KERNELS: ClassVar[Mapping[str, str]] = dict.fromkeys("RZN", "contraction") | {
        "y": "elementwise"
    }
    form: ClassVar[str]

    def row(self, own: Tensor, before: Held | None, U: Tensor) -> Held:
        """The state after a row."""
        h = None if before is None else before[0]
        carried, gates = self.carried(h, U), slice(None, own.shape[-1] - self.d)
        inside = plus_optional(own[:, gates], None if carried is None else carried[..., gates])
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
        """What the candidate reads of the row before through the reset gate, (b, d), which a first
        row may lack."""


class ResetAfter(Gru):
    """The reset gate multiplies U h."""

    @property
    def lacking(self) -> int:
        """The reset gate, where there is no b_U that it multiplies."""
        return int("two-biases" not in self.options)

    def carried(self, h: Tensor | None, U: Tensor) -> Tensor | None:
        """For both gates and the candidate."""
        return self.of_state(h, U)

    def reset(
        self, r: Tensor | None, h: Tensor | None, carried: Tensor | None, U: Tensor
    ) -> Tensor | None:
        """r (U h)."""
        return None if r is None or carried is None else r * carried[..., 2 * self.d :]


class ResetBefore(Gru):
    """The reset gate multiplies h before the product with U."""

    KERNELS: ClassVar[Mapping[str, str]] = {**Gru.KERNELS, "H": "elementwise"}

    @property
    def lacking(self) -> int:
        """The reset gate."""
        return 1

    def carried(self, h: Tensor | None, U: Tensor) -> Tensor | None:
        """For the two gates alone."""
        return self.of_state(h, U, slice(None, 2 * self.d))

    def reset(
        self, r: Tensor | None, h: Tensor | None, carried: Tensor | None, U: Tensor
    ) -> Tensor | None:
        """U (r h)."""
        return self.of_state(None if r is None or h is None else r * h, U, slice(2 * self.d, None))


_Class = TypeVar("_Class", bound=type[Gru])


def updating(form: str, mixer: str, name: str) -> Callable[[_Class], _Class]:
    """Give the decorated class its form, and register it as an implementation."""

    def register(layer: _Class) -> _Class:
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
    """The new row as printed."""


@updating("interpolated", "gru", "interpolated")
class GruInterpolated(ResetAfter):
    """The new row with one product."""


@updating("recurrent", "gru+reset-before", "explicit")
class ResetBeforeExplicit(ResetBefore):
    """The new row as printed."""


@updating("interpolated", "gru+reset-before", "interpolated")
class ResetBeforeInterpolated(ResetBefore):
    """The new row with one product."""


@contextmanager
def without_onednn() -> Iterator[None]:
    """Inside, a CPU runs PyTorch's own operations in every dtype."""
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
        """W and U as (gates*d, d), (out, in) each, and b and b_U as (gates*d,)."""
        return [self._in_order(p) for p in (self.W, self.U, self.b, self.b_U)]

    def _in_order(self, packed: Tensor) -> Tensor:
        gates = (packed,) if self.GATES == 1 else packed.unbind(0)
        ordered = torch.stack([gates[k] for k in self.ORDER])
        return (ordered.transpose(1, 2) if ordered.dim() == 3 else ordered).flatten(0, 1)

    def mix(self, x: Tensor) -> Tensor:
        """One call for all rows."""
        zeros = x.new_zeros(1, x.shape[0], self.d)
        with without_onednn():
            return self.layer(x, zeros)

    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """One call of the cell."""
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
    """Register the decorated class: its form, and the arrays that the call computes."""
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
