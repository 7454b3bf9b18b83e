"""What do all mixer modules share: sizes, checks, and the state kept between tokens?"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class Unsupported(ValueError):
    """An operation that the device does not have in this dtype; the message says which and why."""


def require_sizes(**sizes: int) -> None:
    """Raise a ValueError unless every size is a positive integer."""
    for letter, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size {letter} must be a positive integer and is {size!r}")


def head_width(d: int, n: int) -> int:
    """h = d/n; raises a ValueError unless n divides d."""
    require_sizes(n=n)
    if d % n:
        raise ValueError(f"d must be divisible by n: d = {d} and n = {n}")
    return d // n


def fan_in(shape: torch.Size) -> int:
    """Number of terms that one output of a weight of this shape sums.

    The last axis of a weight is its output axis, (in, out), (lag, in, out) or (lag, channel);
    a weight of one axis is a list of terms.

    >>> fan_in(torch.Size([7, 3, 3])), fan_in(torch.Size([7, 3])), fan_in(torch.Size([7]))
    (21, 7, 7)
    """
    return math.prod(shape[:-1]) if len(shape) > 1 else math.prod(shape)


@dataclass
class State:
    """What a mixer holds after `position` tokens: the arrays that later tokens read.

    `arrays` maps an array's name in the equations to a preallocated tensor (b, ..., capacity,
    width), one row per token. Rows fill from the front, or from the end where `newest_first`, so
    that the held rows are always one view: oldest token first, or newest first. The first array has
    room for all tokens unless `sliding`. Another one may have less, and the first too where
    sliding: only the latest rows are held, a new one replaces the oldest. The state of a recurrence
    is one row, replaced by each token.
    """

    arrays: dict[str, Tensor]
    position: int = 0
    newest_first: bool = False
    sliding: bool = False

    @property
    def batch(self) -> int:
        """Number of samples."""
        return self._shape[0]

    @property
    def capacity(self) -> int:
        """Number of rows that fit into the first array."""
        return self._shape[-2]

    @property
    def _shape(self) -> torch.Size:
        """The shape of the first array; all have the same samples."""
        for array in self.arrays.values():
            return array.shape
        raise ValueError(
            "State({}) holds no array, so that it has neither a batch nor a capacity: name the "
            "arrays that later tokens read"
        )

    def rows(self, name: str) -> int:
        """Number of tokens whose rows an array holds: all, or the latest that fit."""
        return min(self.position, self.arrays[name].shape[-2])

    @property
    def elements(self) -> int:
        """Number of held entries per sample, over all arrays."""
        return sum(self.held(name)[0].numel() for name in self.arrays)

    def held(self, name: str) -> Tensor:
        """The rows of the tokens held, a view (b, ..., rows, width)."""
        array, rows = self.arrays[name], self.rows(name)
        return array.narrow(-2, array.shape[-2] - rows if self.newest_first else 0, rows)

    def append(self, **rows: Tensor) -> None:
        """Write one token's row (b, ..., width) into each array, in place."""
        if rows.keys() != self.arrays.keys():
            raise ValueError(f"a token's rows are {sorted(self.arrays)} and came as {sorted(rows)}")
        self.require_room()
        for name, row in rows.items():
            self._write(self.arrays[name], row)
        self.position += 1

    def _write(self, array: Tensor, row: Tensor) -> None:
        """Write a row; in a full array every row but the oldest moves by one, over the oldest."""
        last = array.shape[-2] - 1
        if 0 < last < self.position:
            to, since = (1, 0) if self.newest_first else (0, 1)
            array.narrow(-2, to, last).copy_(array.narrow(-2, since, last).clone())
        if last >= 0:
            at = min(self.position, last)
            array.select(-2, last - at if self.newest_first else at).copy_(row)

    def require_room(self) -> None:
        """Raise a ValueError when no further token fits."""
        if self.arrays and self.position >= self.capacity and not self.sliding:
            raise ValueError(
                f"the state is full, it holds {self.position} tokens of at most {self.capacity}: "
                "ask initial_state for a greater length"
            )


class PreparedState(State):
    """A state beside which stands what is computed from the parameters alone, before the first
    token."""

    prepared: Tensor


_making: ContextVar[tuple[torch.device | str | None, torch.dtype | None]] = ContextVar(
    "making", default=(None, None)
)
"""The device and the dtype of mixers that say none; torch's own where these are None."""


@contextmanager
def made_in(device: torch.device | str, dtype: torch.dtype) -> Iterator[None]:
    """Mixers that are made inside have their parameters on this device and in this dtype."""
    before = _making.set((device, dtype))
    try:
        yield
    finally:
        _making.reset(before)


class SequenceMixer(nn.Module, ABC):
    """A mixer of width d for whole sequences: x (b, s, d) to y (b, s, d).

    A subclass declares its parameters with `weight`, named and shaped as in its equations, and
    writes `mix`; sizes and dtypes are checked here. It has no `step`: where no form of the
    equations is causal, one token has no output of its own. A causal mixer is a `Mixer`.
    """

    bounded = False
    """Whether a parameter has extent l, so that no sequence may be longer."""

    like: Tensor
    """An empty tensor on the device and in the dtype of the parameters, for modules that have
    none."""

    def __init__(
        self,
        *,
        d: int,
        l: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_sizes(d=d, l=l)
        self.d, self.l = d, l
        place, kind = _making.get()
        like = torch.empty(0, device=device or place, dtype=dtype or kind)
        self.register_buffer("like", like, persistent=False)

    def weight(self, *shape: int) -> nn.Parameter:
        """A parameter of this shape, normal with standard deviation 1/sqrt(fan-in)."""
        made = nn.Parameter(self.like.new_empty(shape))
        nn.init.normal_(made, std=fan_in(made.shape) ** -0.5)
        return made

    def untrained(self, name: str, *shape: int) -> None:
        """Register a buffer of this shape, normal numbers, drawn alike on every device and in every
        dtype where no weight is declared before it."""
        made = self.like.new_empty(shape)
        self.register_buffer(name, made.copy_(torch.randn(shape, dtype=torch.float64)))

    def forward(self, x: Tensor) -> Tensor:
        """Mix whole sequences: x (b, s, d) to y (b, s, d), s at most l where a parameter has extent
        l.

        Raises ValueError on a wrong shape or dtype, Unsupported where the device lacks an
        operation in this dtype.
        """
        self._require_sequence(x)
        try:
            return self.mix(x)
        except RuntimeError as error:
            self._require_kernel(x, error)
            raise

    @abstractmethod
    def mix(self, x: Tensor) -> Tensor:
        """The whole sequence, shapes checked: (b, s, d) to (b, s, d)."""

    def _require_sequence(self, x: Tensor) -> None:
        shape = tuple(int(size) for size in x.shape)
        if len(shape) != 3 or shape[2] != self.d or shape[1] < 1:
            raise ValueError(f"x must be (batch, length, {self.d}) and is {shape}")
        if self.bounded and shape[1] > self.l:
            raise ValueError(
                f"the sequence has {shape[1]} tokens and the weights end at l = {self.l}: "
                "shorten it or build the module with a greater l"
            )
        self._require_dtype(x)

    def _require_dtype(self, x: Tensor) -> None:
        if x.dtype != self.like.dtype:
            raise ValueError(
                f"x is {x.dtype} and the parameters are {self.like.dtype}: convert one of them"
            )

    def _require_kernel(self, x: Tensor, error: RuntimeError) -> None:
        """Raise Unsupported where `error` says that the device has no kernel for the dtype."""
        if "not implemented for" in str(error):
            raise Unsupported(
                f"{type(self).__name__} on {x.device.type} in {x.dtype}: {error}"
            ) from error


class Headed(SequenceMixer):
    """A mixer of n heads, each of width h = d/n; a subclass declares its weights in `declare`."""

    def __init__(self, *, d: int, l: int, n: int) -> None:
        """Raises ValueError where n does not divide d."""
        super().__init__(d=d, l=l)
        self.n, self.h = n, head_width(d, n)
        self.declare()

    @abstractmethod
    def declare(self) -> None:
        """Declare the parameters, in the order of the equations."""

    def heads(self, rows: Tensor) -> Tensor:
        """Rows of all heads side by side, (..., s, n*w), as (..., n, s, w)."""
        return self.split(rows).transpose(-3, -2)

    def split(self, rows: Tensor) -> Tensor:
        """Rows of all heads side by side, (..., n*w), as (..., n, w)."""
        return rows.view(*rows.shape[:-1], self.n, -1)


class Mixer(SequenceMixer):
    """A causal mixer of width d: x (b, s, d) to y (b, s, d), or one token at a time.

    A subclass also writes `advance` and `initial_state`; the room in the state is checked here.
    """

    @torch.no_grad()
    def step(self, x_t: Tensor, state: State) -> Tensor:
        """Mix one further token: x_t (b, d) to y_t (b, d), writing the token into `state`.

        Does the work of this token only and records no gradient. Raises as `forward`, and a
        ValueError when the state is full; a call refused for shape, dtype or room changes nothing.
        """
        self._require_token(x_t, state)
        try:
            return self.advance(x_t, state)
        except RuntimeError as error:
            self._require_kernel(x_t, error)
            raise

    @abstractmethod
    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """One token, shapes and room checked: (b, d) to (b, d)."""

    @abstractmethod
    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state for `batch` samples and at most `length` tokens, l unless given."""

    def _rows(self, batch: int, length: int | None, *inner: int) -> Tensor:
        """Zeros (batch, *inner[:-1], length, inner[-1]), device and dtype the parameters'."""
        length = self.l if length is None else length
        require_sizes(batch=batch, length=length)
        if self.bounded and length > self.l:
            raise ValueError(f"length {length} is greater than l = {self.l}, where the weights end")
        return self.like.new_zeros((batch, *inner[:-1], length, inner[-1]))

    def _require_token(self, x_t: Tensor, state: State) -> None:
        if x_t.shape != (state.batch, self.d):
            raise ValueError(
                f"x_t must be ({state.batch}, {self.d}), one token for each sample of the state, "
                f"and is {tuple(x_t.shape)}"
            )
        self._require_dtype(x_t)
        state.require_room()
