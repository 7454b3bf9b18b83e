"""Which tensor do the entries of every storage come from, and when is the storage alive?

A value is what an operation computed, or an input. The entries of a storage into which an operation
only moved entries come from the source of the move. Constants written without any computation
(zeros to start from) come from nowhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any
from weakref import ref

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from profiler.counting.backward_rules import TRACED_RULES
from profiler.counting.call import is_arithmetic, tensors_in
from profiler.counting.forward_rules import conversion, free, rule_for, truth
from profiler.counting.promotion import joined
from profiler.counting.saved_tensors import StorageKey, storage_key
from profiler.tracing.meta_run.accumulation import ADD, Accumulation

MOVES = (free, conversion, joined, truth)
"""Rules of operations that compute nothing new."""

WRITTEN_DOWN = frozenset(
    f"aten::{stem}"
    for stem in (
        "arange", "empty", "empty_like", "empty_permuted", "empty_strided", "eye", "full",
        "full_like", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones",
        "ones_like", "scalar_tensor", "zeros", "zeros_like",
    )
)  # fmt: skip
"""Operations that make numbers from no other tensor."""

CHOICE = "aten::where"
"""The operation that takes each entry of its result from one of two tensors."""

JOINING = ("aten::cat", "aten::stack")
"""Operations that concatenate tensors."""

RUNNING = ("aten::cumsum", "aten::cumprod")
"""Operations whose first row is a copy of their operand's first row; the argument `dim` follows the
tensor."""

VALUE, PARAMETER, MASK, CONSTANT = "value", "parameter", "mask", "constant"
"""Kinds of origins; a mask is any tensor of integers or booleans, positions included."""


@dataclass(frozen=True)
class EntryOrigin:
    """Where the entries of a storage come from.

    `root` numbers the value or parameter; `own` is the size in bytes of the storage in which it was
    first held. In a running sum the first `moved` bytes equal those of the value `begins`. `chosen`
    are the roots from which a `where` took entries, `joined` the roots concatenated into it.
    `beside` marks every result of an operation but the first.
    """

    kind: str
    root: int
    own: int
    begins: int = 0
    moved: int = 0
    chosen: frozenset[int] = frozenset()
    joined: frozenset[int] = frozenset()
    beside: bool = False


@dataclass
class HeldPiece:
    """The bytes of one storage, as long as their origin does not change.

    `made` and `released` are numbers of events, `released` None for what outlives the call; `first`
    and `last` are the numbers of the operations that wrote the bytes and that last read them.
    """

    size: int
    origin: EntryOrigin
    made: int
    first: int
    last: int
    released: int | None = None
    called: tuple[int, int] = (0, 0)
    """The call in the program that ran the operation: a frame and the position in it."""
    overwritten: int | None = None
    """The event at which autograd would have written a sum over these bytes, were no mode
    active."""


@dataclass
class OriginTracker(TorchDispatchMode):
    """Follows the origin of every storage, and when each is alive.

    Args:
        parameters: parameters and buffers.
        inputs: what is given to the call. Neither counts as alive: both were there before.
    """

    parameters: Iterable[Tensor] = ()
    inputs: Iterable[Tensor] = ()
    origin: dict[StorageKey, EntryOrigin] = field(default_factory=dict)
    pieces: list[HeldPiece] = field(default_factory=list)
    computed_from: set[int] = field(default_factory=set)
    """Roots from which something was computed."""
    before: set[int] = field(default_factory=set)
    """Roots of what existed before the call."""
    read_from: set[int] = field(default_factory=set)
    """Roots that an operation read, if only to move entries."""
    values: int = 0
    operations: int = 0
    events: int = 0
    """Pieces made and released so far."""

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.known: dict[int, tuple[Any, HeldPiece]] = {}
        self.accumulation = Accumulation()
        self.parameter_keys = {storage_key(t.untyped_storage()) for t in self.parameters}
        for tensor in self.parameters:
            self.there(tensor, PARAMETER)
        for tensor in self.inputs:
            self.there(tensor)

    def new(self, size: int, kind: str = VALUE, **known: Any) -> EntryOrigin:
        """A new origin, with the fields given."""
        self.values += 1
        return EntryOrigin(kind, self.values, size, **known)

    def there(self, tensor: Tensor, kind: str = VALUE) -> EntryOrigin:
        """A new origin for a storage that existed before the call."""
        storage = tensor.untyped_storage()
        found = self.new(storage.nbytes(), kind if is_arithmetic(tensor.dtype) else MASK)
        self.origin[storage_key(storage)] = found
        self.before.add(found.root)
        return found

    def of(self, tensor: Tensor) -> EntryOrigin:
        """The origin of a tensor's storage."""
        return self.origin.get(storage_key(tensor.untyped_storage())) or self.there(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        overwrites = self.accumulation.in_place(func, args) or self.biased(func, args)
        rule = rule_for(name, TRACED_RULES)
        if rule is None:
            with self:
                parts = func.decompose(*args, **kwargs)
                if parts is not NotImplemented:
                    return parts
        given = list(tensors_in([*args, *kwargs.values()]))
        before = {storage_key(t.untyped_storage()) for t in given}
        self.operations += not func.is_view
        result = func(*args, **kwargs)
        moves = rule in MOVES or func.is_view
        if not func.is_view:
            self.read(given)
        if not moves:
            self.computed_from.update(self.of(t).root for t in given if is_arithmetic(t.dtype))
        for k, tensor in enumerate(tensors_in(result)):
            place = storage_key(tensor.untyped_storage())
            if place not in before:
                self.made(
                    tensor, self.origin_of(name, tensor, given, args, moves=moves, beside=k > 0)
                )
            elif func._schema.is_mutable and not func.is_view:
                self.written(tensor, name, given, moves=moves)
        if overwrites and (term := self.known.get(id(args[0].untyped_storage()))):
            term[1].overwritten = self.events
        return result

    def biased(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether a linear map adds its bias to its own product: torch then adds in place, unless a
        mode is active (at::linear asks isTensorSubclassLike)."""
        if func is not ADD or not isinstance(args[1], Tensor) or args[1].dim() != 1:
            return False
        found = self.known.get(id(args[0].untyped_storage()))
        within = found is not None and found[1].called == calling_place()
        return within and self.of(args[1]).kind == PARAMETER

    def origin_of(
        self,
        name: str,
        tensor: Tensor,
        given: list[Tensor],
        args: tuple[Any, ...],
        *,
        moves: bool,
        beside: bool,
    ) -> EntryOrigin:
        """The origin of a new storage: a value of its own, unless moved from a single tensor."""
        size = tensor.untyped_storage().nbytes()
        if not is_arithmetic(tensor.dtype):
            return self.new(size, MASK)
        if name in WRITTEN_DOWN:
            return self.new(size, CONSTANT)
        if name in RUNNING and tensor.dim():
            row = size // max(tensor.shape[args[1]], 1)
            return self.new(size, begins=self.of(given[0]).root, moved=row)
        if not moves:
            return self.new(size, beside=beside)
        return self.moved(size, given, name)

    def moved(self, size: int, given: list[Tensor], name: str) -> EntryOrigin:
        """The origin of entries that an operation moved from some tensors."""
        sources = {o.root: o for t in given if is_arithmetic(t.dtype) for o in [self.of(t)]}
        wanted = [o for o in sources.values() if o.kind != CONSTANT]
        if len(wanted) == 1:
            return wanted[0]
        if sources and not wanted:
            return self.new(size, CONSTANT)
        roots = frozenset(o.root for o in wanted)
        if name == CHOICE:
            return self.new(size, chosen=roots)
        whole = sum(t.numel() * t.element_size() for t in given) == sum(o.own for o in wanted)
        return self.new(size, joined=roots if name in JOINING and whole else frozenset())

    def made(self, tensor: Tensor, origin: EntryOrigin) -> None:
        """Record a storage that did not exist before."""
        storage = tensor.untyped_storage()
        self.origin[storage_key(storage)] = origin
        number = id(storage)
        if number in self.known or not storage.nbytes():
            return
        gone = ref(storage, partial(self._released, number))
        self.known[number] = gone, self._alive(storage.nbytes(), origin)

    def written(self, tensor: Tensor, name: str, given: list[Tensor], *, moves: bool) -> None:
        """Record that entries were computed, or moved, into an existing storage."""
        storage = tensor.untyped_storage()
        place, before = storage_key(storage), self.of(tensor)
        if id(storage) not in self.known or before.kind == MASK:
            return
        others = [t for t in given if storage_key(t.untyped_storage()) != place]
        if not moves:
            after = self.new(storage.nbytes())
        elif before.kind == CONSTANT and others:
            after = self.moved(storage.nbytes(), others, name)
        else:
            return
        gone, piece = self.known[id(storage)]
        self.origin[place] = after
        piece.last = min(piece.last, self.operations - 1)
        self.events += 1
        piece.released = self.events
        self.known[id(storage)] = gone, self._alive(piece.size, after)

    def read(self, given: Iterable[Tensor]) -> None:
        """Record that the current operation reads these tensors."""
        for tensor in given:
            if found := self.known.get(id(tensor.untyped_storage())):
                found[1].last = self.operations
                self.read_from.add(found[1].origin.root)

    def _alive(self, size: int, origin: EntryOrigin) -> HeldPiece:
        self.events += 1
        place = calling_place()
        piece = HeldPiece(size, origin, self.events, self.operations, self.operations, called=place)
        self.pieces.append(piece)
        return piece

    def _released(self, number: int, _: Any) -> None:
        self.events += 1
        _, piece = self.known.pop(number)
        piece.released = self.events


def calling_place() -> tuple[int, int]:
    """The call in the program that an operation runs in: its frame, and the position in that
    frame."""
    frame = sys._getframe()
    while frame.f_globals.get("__name__") == __name__ and frame.f_back is not None:
        frame = frame.f_back
    return id(frame), frame.f_lasti


def most_held(pieces: Iterable[HeldPiece], *, in_place: bool) -> int:
    """The most bytes that are held at once.

    Args:
        in_place: whether autograd writes a sum of gradients over its first term where it may.
    """
    changes = [(piece.made, piece.size) for piece in pieces]
    for piece in pieces:
        end = piece.overwritten if in_place and piece.overwritten else piece.released
        changes += [(end, -piece.size)] if end is not None else []
    return max(accumulate((size for _, size in sorted(changes)), initial=0))


def held_while(pieces: Iterable[HeldPiece]) -> Iterator[list[HeldPiece]]:
    """The pieces held while each operation runs, if every piece is released after its last reader;
    pieces that outlive the call stay."""
    starts: dict[int, list[HeldPiece]] = {}
    for piece in pieces:
        starts.setdefault(piece.first, []).append(piece)
    held: list[HeldPiece] = []
    for operation, new in sorted(starts.items()):
        held = [p for p in held if p.released is None or p.last >= operation] + new
        yield held
