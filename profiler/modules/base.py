"""The base classes of mixer modules: sizes, checks, and the state kept between tokens."""

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
    """The device has no kernel for an operation in a dtype; the message names both."""


def require_sizes(**sizes: int) -> None:
    """Raise a ValueError unless every size, given by its letter, is a positive integer."""
    for letter, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size {letter} must be a positive integer and is {size!r}")


def head_width(d: int, n: int, v: int = 1) -> int:
    """v*d/n, the width of a head that is v times as wide as h = d/n; raises a ValueError unless n
    divides v*d: heads of d = 7 and n = 3 are 7 wide for v = 3, and refused for v = 1."""
    require_sizes(n=n, v=v)
    if v * d % n:
        wide, at = ("d", "") if v == 1 else ("v*d", f"v = {v}, ")
        raise ValueError(f"{wide} must be divisible by n: {at}d = {d} and n = {n}")
    return v * d // n


def fan_in(shape: torch.Size) -> int:
    """The number of terms that one output of a weight sums, at least 1.

    The last axis of a weight is its output axis, (in, out), (lag, in, out) or (lag, channel);
    a weight of one axis is a list of terms.

    >>> [fan_in(torch.Size(shape)) for shape in ([7, 3, 3], [7, 3], [7], [0])]
    [21, 7, 7, 1]
    """
    return max(1, math.prod(shape[:-1]) if len(shape) > 1 else math.prod(shape))


@dataclass
class State:
    """The state of a mixer after `position` tokens: the arrays that later tokens read.

    `arrays` maps an array's name in the equations to a preallocated tensor (b, ..., capacity,
    width), one row per token. The held rows are one view: they fill from the front, oldest token
    first, or with `newest_first` from the end, newest token first. An array with fewer rows than
    tokens holds the rows of the first `sinks` tokens and the latest ones, as in a sliding window.
    The first array must have room for all tokens unless `sliding`. An array named in `carried` has
    any shape (b, ...) without an axis of tokens, and each token replaces the whole array.

    Examples: a KV cache has K and V with l rows each; a sliding window of w tokens has w rows and
    `sliding`, with s attention sinks s + w rows, `sliding` and `sinks=s`; a recurrence has one row,
    which each token replaces, and `sliding`.
    """

    arrays: dict[str, Tensor]
    position: int = 0
    newest_first: bool = False
    sliding: bool = False
    carried: tuple[str, ...] = ()
    sinks: int = 0

    @property
    def batch(self) -> int:
        """Number of samples."""
        return self._shape[0]

    @property
    def capacity(self) -> int:
        """Number of rows of the first array outside `carried`; if there is none, the extent of axis
        -2 of the first array."""
        rows = [array for name, array in self.arrays.items() if name not in self.carried]
        return rows[0].shape[-2] if rows else self._shape[-2]

    @property
    def _shape(self) -> torch.Size:
        """The shape of the state's first array, from which its batch and capacity are read;
        ValueError without an array."""
        for array in self.arrays.values():
            return array.shape
        raise ValueError(
            "State({}) holds no array, from whose shape batch and capacity are read: give the "
            "arrays that later tokens read"
        )

    def rows(self, name: str) -> int:
        """Number of rows that an array holds: one per token, at most its capacity. ValueError for
        an array of one axis."""
        shape = self.arrays[name].shape
        if len(shape) < 2:
            raise ValueError(
                f"{name} is {tuple(shape)}, without an axis of tokens: say "
                f"State(..., carried=('{name}',))"
            )
        return min(self.position, shape[-2])

    @property
    def elements(self) -> int:
        """Number of held entries per sample, over all arrays."""
        return sum(array[0].numel() for array in self.in_use.values())

    @property
    def in_use(self) -> dict[str, Tensor]:
        """The held rows of every array, and the arrays in `carried` from the first token on."""
        begun = [name for name in self.arrays if self.position or name not in self.carried]
        return {name: self.held(name) for name in begun}

    def held(self, name: str) -> Tensor:
        """The held rows of an array, a view (b, ..., rows, width); an array in `carried` whole."""
        if name in self.carried:
            return self.arrays[name]
        array, rows = self.arrays[name], self.rows(name)
        return array.narrow(-2, array.shape[-2] - rows if self.newest_first else 0, rows)

    def append(self, **rows: Tensor) -> None:
        """Write one token into the state: its row (b, ..., width) into each array by name; an array
        in `carried` is written whole. Rows are written in place, or, if gradients are recorded,
        into a copy that replaces the array, so that every step can be trained through.

        Raises:
            ValueError: rows for another set of arrays, a row of another shape than its array has
                without axis -2 (with all axes if in `carried`), or a full state. The state is then
                as before.
        """
        if rows.keys() != self.arrays.keys():
            said = f"a token's rows are {sorted(self.arrays)} and came as {sorted(rows)}"
            if own := tuple(sorted(rows.keys() - self.arrays.keys())):
                said += (
                    f": give State a tensor for {', '.join(own)}; an array that each token "
                    f"replaces whole, as a recurrence does, is named in carried={own}"
                )
            raise ValueError(said)
        self.require_room()
        for name, row in rows.items():
            self._require_row(name, row)
        for name, row in rows.items():
            if name in self.carried:
                self._writable(name).copy_(row)
            else:
                self._write(self._writable(name), row)
        self.position += 1

    def _require_row(self, name: str, row: Tensor) -> None:
        """Raise a ValueError unless a row has the shape of the array `name` without axis -2, or, if
        the array is in `carried`, the array's whole shape. An array of one axis takes no row."""
        array = self.arrays[name]
        if name in self.carried:
            if row.shape == array.shape:
                return
            raise ValueError(
                f"each token replaces {name} as a whole: {name} is {tuple(array.shape)} and came "
                f"as {tuple(row.shape)}"
            )
        wanted = (*array.shape[:-2], *array.shape[-1:])
        if row.shape == wanted and row.ndim < array.ndim:
            return
        came = f"a row came as {tuple(row.shape)}"
        remedies = []
        if row.shape == (*array.shape[:-2], 1, *array.shape[-1:]):
            remedies.append(f"pass {name}=row.squeeze(-2)")
        if row.shape == array.shape:
            remedies.append(
                "an array that each token replaces whole is named in "
                f"State(..., carried=('{name}',))"
            )
        said = f"{name} is {tuple(array.shape)} with the rows of tokens on axis -2"
        if array.ndim > 2:
            said += f", so that a row of {name} has shape {wanted}, without the axis of tokens"
        raise ValueError(f"{said}, and {came}{': ' * bool(remedies)}{'; '.join(remedies)}")

    def _writable(self, name: str) -> Tensor:
        """The tensor of an array, for a write: if gradients are recorded a copy, which replaces the
        tensor in the state, since the backward pass of a query needs the keys that a step has read,
        even if no gradient of the keys is taken."""
        if torch.is_grad_enabled():
            self.arrays[name] = self.arrays[name].clone()
        return self.arrays[name]

    def _write(self, array: Tensor, row: Tensor) -> None:
        """Write a row (b, ..., width) into an array (b, ..., capacity, width); in a full array the
        rows behind the sinks are first shifted by one, over the oldest of these. Nothing if all
        rows are sinks and written, or the capacity is 0."""
        last = array.shape[-2] - 1
        moved = last - self.sinks
        if moved > 0 and last < self.position:
            to, since = (1, 0) if self.newest_first else (self.sinks, self.sinks + 1)
            array.narrow(-2, to, moved).copy_(array.narrow(-2, since, moved).clone())
        if moved >= 0 or self.position <= last:
            at = min(self.position, last)
            array.select(-2, last - at if self.newest_first else at).copy_(row)

    @property
    def _bounded(self) -> bool:
        """Whether the number of tokens is limited: some array holds a row for every token."""
        return not self.sliding and any(name not in self.carried for name in self.arrays)

    def require_room(self) -> None:
        """Raise a ValueError if the state is full."""
        if self._bounded and self.position >= self.capacity:
            raise ValueError(
                f"the state is full, with {self.position} tokens of at most {self.capacity}: ask "
                "initial_state for a greater length"
            )


class PreparedState(State):
    """A state with `prepared`, a tensor of parameters alone, computed before the first token."""

    prepared: Tensor


_making: ContextVar[tuple[torch.device | str | None, torch.dtype | None]] = ContextVar(
    "making", default=(None, None)
)
"""The default device and dtype of new mixers; None stands for torch's default."""


PERIOD = 1_000_003
"""How many numbers of a new weight are drawn inside `made_in`; a prime, so that the rows of a
matrix differ."""


@contextmanager
def made_in(device: torch.device | str, dtype: torch.dtype) -> Iterator[None]:
    """A context in which mixers that are constructed get this device and dtype by default."""
    before = _making.set((device, dtype))
    try:
        yield
    finally:
        _making.reset(before)


class SequenceMixer(nn.Module, ABC):
    """A mixer of width d for whole sequences: x (b, s, d) to y (b, s, d).

    A subclass declares its parameters with `weight`, named and shaped as in its equations, and
    defines `mix`; this class checks sizes and dtypes. It has no `step`, since without a causal form
    one token has no output. A causal mixer is a `Mixer`.
    """

    bounded = False
    """Whether a parameter has extent l, which limits the length of sequences."""

    like: Tensor
    """An empty tensor with the device and dtype of the module, even if it has no parameters."""

    def __init__(
        self,
        *,
        d: int,
        l: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Set up a mixer of rows of width d for l tokens; its parameters get, by default, the
        device and dtype that the context around the call sets, else torch's. ValueError for a size
        that is not positive."""
        super().__init__()
        require_sizes(d=d, l=l)
        self.d, self.l = d, l
        place, kind = _making.get()
        like = torch.empty(0, device=device or place, dtype=dtype or kind)
        self.register_buffer("like", like, persistent=False)

    def weight(self, *shape: int) -> nn.Parameter:
        """A parameter of normal random numbers with standard deviation 1/sqrt(fan-in, the product
        of all extents but the last), on the meta device a shape alone. Inside `made_in`, whose user
        may draw all parameters anew, the first `PERIOD` numbers repeat."""
        made = nn.Parameter(self.like.new_empty(shape))
        if not made.is_meta:
            inside, flat = _making.get()[0] is not None, made.detach().view(-1)
            first = flat[:PERIOD] if inside else flat
            nn.init.normal_(first, std=fan_in(made.shape) ** -0.5)
            for start in range(len(first), len(flat), PERIOD):
                flat[start : start + PERIOD] = first[: len(flat) - start]
        return made

    def untrained(self, name: str, *shape: int) -> None:
        """Register a buffer of standard normal numbers. Declared before all weights, the buffer has
        the same values on every device and in every dtype."""
        made = self.like.new_empty(shape)
        self.register_buffer(name, made.copy_(torch.randn(shape, dtype=torch.float64)))

    def forward(self, x: Tensor) -> Tensor:
        """Mix whole sequences: x (b, s, d) to y (b, s, d); s at most l if weights have extent l.

        Raises:
            ValueError: a wrong shape or dtype.
            Unsupported: the device has no kernel for an operation in this dtype.
        """
        self._require_sequence(x)
        try:
            return self.mix(x)
        except RuntimeError as error:
            self._require_kernel(x, error)
            raise

    @abstractmethod
    def mix(self, x: Tensor) -> Tensor:
        """Mix whole sequences of checked shape: (b, s, d) to (b, s, d)."""

    def _require_sequence(self, x: Tensor) -> None:
        """Raise a ValueError unless x is (b, s, d) with s >= 1, at most l if `bounded`, in the
        dtype of the module."""
        shape = tuple(int(size) for size in x.shape)
        if len(shape) != 3 or shape[2] != self.d or shape[1] < 1:
            raise ValueError(f"x must be (batch, length, {self.d}) and is {shape}")
        if self.bounded and shape[1] > self.l:
            raise ValueError(
                f"the sequence has {shape[1]} tokens and the weights end at l = {self.l}: shorten "
                "x or build the module with a greater l"
            )
        self._require_dtype(x)

    def _require_dtype(self, x: Tensor) -> None:
        """Raise a ValueError unless x has the dtype of the module."""
        if x.dtype != self.like.dtype:
            raise ValueError(f"x is {x.dtype} and the parameters are {self.like.dtype}: convert x")

    def _require_kernel(self, x: Tensor, error: RuntimeError) -> None:
        """Raise Unsupported if `error` says that the device has no kernel for the dtype."""
        if "not implemented for" in str(error):
            raise Unsupported(
                f"{type(self).__name__} on {x.device.type} in {x.dtype}: {error}"
            ) from error


class Headed(SequenceMixer):
    """A mixer with n heads of width h = d/n; a subclass declares its weights in `declare`."""

    def __init__(self, *, d: int, l: int, n: int) -> None:
        """Raises ValueError unless n divides d."""
        super().__init__(d=d, l=l)
        self.n, self.h = n, head_width(d, n)
        self.declare()

    @abstractmethod
    def declare(self) -> None:
        """Declare the parameters, in the order of the equations."""

    def heads(self, rows: Tensor) -> Tensor:
        """Reshape concatenated heads (..., s, n*w) to (..., n, s, w)."""
        return self.split(rows).transpose(-3, -2)

    def split(self, rows: Tensor) -> Tensor:
        """Reshape concatenated heads (..., n*w) to (..., n, w)."""
        return rows.view(*rows.shape[:-1], self.n, -1)


class Mixer(SequenceMixer):
    """A causal mixer of width d: x (b, s, d) to y (b, s, d), or one token at a time.

    A subclass also defines `advance` and `initial_state`; this class checks the state's capacity.
    """

    @torch.no_grad()
    def step(self, x_t: Tensor, state: State) -> Tensor:
        """Mix the next token: x_t (b, d) to y_t (b, d), and write the token into `state`.

        Only this token's work is done, without gradients. A call that is refused for shape, dtype
        or room leaves the state unchanged.

        Raises:
            ValueError: a wrong shape or dtype, a full state, or weights that end at token l.
            Unsupported: the device has no kernel for an operation in this dtype.
        """
        self._require_token(x_t, state)
        try:
            return self.advance(x_t, state)
        except RuntimeError as error:
            self._require_kernel(x_t, error)
            raise

    @abstractmethod
    def advance(self, x_t: Tensor, state: State) -> Tensor:
        """Mix one token of checked shape, with room in the state: (b, d) to (b, d)."""

    @abstractmethod
    def initial_state(self, batch: int, length: int | None = None) -> State:
        """An empty state for `batch` samples and at most `length` tokens (default: l)."""

    def _rows(self, batch: int, length: int | None, *inner: int) -> Tensor:
        """Zeros (batch, *inner[:-1], length, inner[-1]) with the device and dtype of `like`."""
        length = self._tokens(batch, length)
        return self.like.new_zeros((batch, *inner[:-1], length, inner[-1]))

    def _tokens(self, batch: int, length: int | None) -> int:
        """The number of tokens that a state is to hold, l if `length` is None; a ValueError unless
        it is positive and, if `bounded`, at most l."""
        length = self.l if length is None else length
        require_sizes(batch=batch, length=length)
        if self.bounded and length > self.l:
            raise ValueError(
                f"length {length} is greater than l = {self.l}, where the weights end: ask for "
                "fewer tokens, or build the module with a greater l"
            )
        return length

    def _require_token(self, x_t: Tensor, state: State) -> None:
        """Raise a ValueError unless x_t is (b, d) with the state's batch and the module's dtype,
        the state has room and, if a weight has extent l (`bounded`), fewer than l tokens before."""
        if x_t.shape != (state.batch, self.d):
            raise ValueError(
                f"x_t must be ({state.batch}, {self.d}), one token for each sample of the state, "
                f"and is {tuple(x_t.shape)}"
            )
        self._require_dtype(x_t)
        state.require_room()
        if self.bounded and state.position >= self.l:
            raise ValueError(
                f"token {state.position + 1} lies behind l = {self.l}, where the weights end: "
                "build the module with a greater l"
            )
