"""The operations and the saved tensors of a fused recurrent layer or cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from profiler.counting.operations import (
    FUNCTIONS,
    NOTHING,
    Operations,
    named_operation,
    operations_of_steps,
)
from profiler.tracing.meta_run.fused_call import FusedCall, dense_layout
from profiler.tracing.meta_run.target import TraceError


@dataclass(frozen=True)
class Cell:
    """A recurrent cell: its numbers of gates and states, and its operations per unit (entry of the
    state), step and sequence without the linear maps."""

    gates: int
    forward: Operations
    backward: Operations
    states: int = 1


SIGMOID = FUNCTIONS["sigmoid"]
TANH = named_operation("tanh")

CELLS: Mapping[str, Cell] = {
    # h = tanh(a), a the sum of both maps; dh (1 - h * h)
    "rnn_tanh": Cell(1, Operations(add=1) + TANH, operations_of_steps(("mul", "add", "mul"))),
    "rnn_relu": Cell(1, operations_of_steps(("add", "compare")), operations_of_steps(("compare",))),
    # four sums of both maps, i, f, o sigmoids, g tanh; c = f c + i g; h = o tanh(c).
    # Backward: do = dh t, dc = dh o (1 - t t) + dc'; di = dc g, df = dc c', dg = dc i, dc f;
    # times (1 - y) y for i, f, o and (1 - g g): 16 mul, 6 add; t = tanh(c) again.
    "lstm": Cell(
        4,
        Operations(add=4) + SIGMOID * 3 + TANH * 2 + Operations(mul=3, add=1),
        Operations(mul=16, add=6) + TANH,
        states=2,
    ),
    # r, z sums of both maps; n = tanh(a + r b); h = (1 - z) n + z h'.
    # Backward: dz = dh (h' - n) (1 - z) z, dn = dh (1 - z) (1 - n n), dh z, dr = dn b (1 - r) r,
    # db = dn r: 11 mul, 4 add; dh' = dh z + W^T (...): 1 add.
    "gru": Cell(
        3,
        Operations(add=2) + SIGMOID * 2 + Operations(mul=1, add=1) + TANH
        + Operations(mul=2, add=2),
        Operations(mul=11, add=5),
    ),
}  # fmt: skip
"""Per unit, step and sequence: the equations in the documentation of torch.nn.RNN, LSTM and GRU,
and their derivatives as the kernels of the fused cells compute them."""


@dataclass(frozen=True)
class _Layers:
    """The arithmetic of all layers of a call: per layer, direction and step, the products of the
    gates with input and state, and the cell's own operations; and dropout between layers."""

    cell: Cell
    maps: Sequence[int]
    """The width of the input, per layer and direction: d, d, 2h, 2h for two layers both ways."""
    sides: int
    """The number of directions."""
    rows: int
    """The tokens of all sequences."""
    units: int
    """The entries of a state, and of each gate."""
    biased: bool
    dropped: bool
    """Whether dropout acts on the input of every layer but the first."""

    def forward(self) -> Operations:
        """The operations of the forward pass."""
        gates, total = self.cell.gates * self.units, NOTHING
        for place, inputs in enumerate(self.maps):
            add = inputs - 1 + self.units - 1 + (2 if self.biased else 0)
            total += Operations(mul=gates * (inputs + self.units), add=gates * add) * self.rows
            total += self.cell.forward * (self.rows * self.units)
            if self.dropped and place >= self.sides and place % self.sides == 0:
                total += (named_operation("random") + Operations(mul=1)) * (self.rows * inputs)
        return total

    def backward(self, wanted: Sequence[bool]) -> Operations:
        """The operations of the backward pass; `wanted[0]`: the input requires a gradient."""
        rows, units, gates, total = self.rows, self.units, self.cell.gates * self.units, NOTHING
        for place, inputs in enumerate(self.maps):
            # the cells; dh of this step's result plus that of the next step
            total += self.cell.backward * (rows * units) + Operations(add=rows * units)
            if place >= self.sides or wanted[0]:  # the gradient of the layer's input
                total += Operations(mul=gates * inputs, add=(gates - 1) * inputs) * rows
                if place % self.sides:  # added to the other direction's
                    total += Operations(add=rows * inputs)
            # the gradients of the state, of both weights, and of both biases
            total += Operations(mul=gates * units, add=(gates - 1) * units) * rows
            total += Operations(mul=rows, add=rows - 1) * (gates * (inputs + units))
            total += Operations(add=2 * gates * (rows - 1) if self.biased else 0)
            if self.dropped and place >= self.sides and place % self.sides == 0:
                total += Operations(mul=rows * inputs)
        return total


def recurrent_layer_rule(kind: str) -> Callable[..., FusedCall | None]:
    """Make the rule of a whole recurrent layer, a function that returns the record of a call: all
    steps, layers and directions as one operation. The rule has the arguments of torch.lstm,
    torch.gru, ...: an input (l, b, d), (b, l, d) with `batch_first`, or (l, d), and states (layers
    * directions, b, units). It returns None for packed sequences and for projected states, which
    torch's decomposition counts. `kind`: a key of `CELLS`, such as "lstm"."""
    cell = CELLS[kind]

    def rule(
        input: Tensor,
        hx: Any,
        params: Any,
        has_biases: Any = True,
        num_layers: Any = 1,
        dropout: float = 0.0,
        train: bool = False,
        bidirectional: bool = False,
        batch_first: bool = False,
        *more: Any,
    ) -> FusedCall | None:
        """The record of the layer's call (operations, result layouts, saved tensors) for torch's
        arguments; None if the call is left to torch's decomposition. `units`: entries of a state
        and of each gate; `sides`: directions."""
        if isinstance(hx, Tensor) and not isinstance(params, list | tuple):
            return None  # packed sequences of several lengths: torch's decomposition
        states = tuple(hx) if isinstance(hx, list | tuple) else (hx,)
        if isinstance(params, Tensor) or not isinstance(params[0], Tensor):
            return None
        batched = input.dim() == 3
        steps = input.shape[1 if batch_first and batched else 0]
        batch = (input.shape[0 if batch_first else 1]) if batched else 1
        sides = 2 if bidirectional else 1
        width = states[0].shape[-1]
        units = params[0].shape[0] // cell.gates
        if width != units:
            return None  # projected states: torch's decomposition
        maps = [input.shape[-1]] * sides + [sides * units] * ((num_layers - 1) * sides)
        dropped = bool(dropout and train)
        work = _Layers(cell, maps, sides, batch * steps, units, bool(has_biases), dropped)
        order = (1, 0, 2) if batch_first and batched else ()
        result = dense_layout(input, (*input.shape[:-1], sides * units), order)
        # per token: the entries of all gates and, of an LSTM, of c
        kept = work.rows * (cell.gates + cell.states - 1) * units * len(maps)
        return FusedCall(
            f"fused {kind}", (input, *states, *params),
            (result, *(dense_layout(s, s.shape) for s in states)),
            work.forward(), work.backward, keeps=tuple(range(1 + len(states) + len(params))),
            keeps_results=(0,), workspace=(dense_layout(input, (kept,)),),
            orders={0: order} if order else {},
        )  # fmt: skip

    return rule


def recurrent_cell_rule(kind: str) -> Callable[..., FusedCall]:
    """Make the rule of one step of a recurrent cell, a function that returns the record of a call,
    counted as one step of a layer. The rule has the arguments of torch.lstm_cell, ...: an input (b,
    d), states (b, units), weights and biases. The rule raises TraceError for states narrower or
    wider than the gates."""
    layer = recurrent_layer_rule(kind)

    def rule(input: Tensor, hx: Any, *params: Tensor | None) -> FusedCall:
        """The record of the cell's call (operations, result layouts, saved tensors) for torch's
        arguments: that of a recurrent layer of one step. TraceError for states narrower or wider
        than the gates."""
        states = tuple(hx) if isinstance(hx, list | tuple) else (hx,)
        weights = [p for p in params if p is not None]
        row, held = input.unsqueeze(0), [s.unsqueeze(0) for s in states]
        found = layer(row, held, weights, len(weights) > 2, 1)
        if found is None:
            widths = ", ".join(str(s.shape[-1]) for s in states)
            raise TraceError(f"{kind}: expected states as wide as each gate, got width {widths}")
        return FusedCall(
            found.name, (input, *states, *weights), tuple(dense_layout(s, s.shape) for s in states),
            found.forward, found.backward, keeps=found.keeps, keeps_results=(0,),
            workspace=found.workspace,
        )  # fmt: skip

    return rule
