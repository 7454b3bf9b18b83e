"""What do operations hold that run one after another, each until its result is last read?

A value is what one operation writes. A copy holds entries of another value: together they count as
many as that one has. What was joined with others into one value counts with that one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class Value:
    """What an operation wrote, so many elements; where it is `of` another value, entries of it."""

    size: int
    of: Value | None = None
    joined: frozenset[Value] = frozenset()
    """What stands in it whole."""
    given: bool = False
    """Whether it was there before: it is not counted."""

    @property
    def root(self) -> Value:
        """Itself, or what it is a copy of."""
        return self if self.of is None else self.of


@dataclass(frozen=True, eq=False)
class Step:
    """What one operation reads, and what it writes: nothing new, where it does so in place."""

    reads: tuple[Value, ...]
    written: Value | None = None


@dataclass(eq=False)
class Tape:
    """Operations in the order in which they run."""

    steps: list[Step] = field(default_factory=list)
    kept: set[Value] = field(default_factory=set)
    """What is there after the last one."""

    def write(
        self,
        size: int,
        reads: Collection[Value],
        *,
        of: Value | None = None,
        joined: Collection[Value] = (),
    ) -> Value:
        """The result of one more operation, `of` a value where it only moves entries of that.

        Args:
            joined: what stands in it whole.
        """
        value = Value(size, of=None if of is None else of.root, joined=frozenset(joined))
        self.steps.append(Step(tuple(reads), value))
        return value

    def read(self, *values: Value) -> None:
        """One more operation, which writes its result over an operand."""
        self.steps.append(Step(values))

    def join(self, size: int, parts: Sequence[tuple[Value, int]]) -> Value:
        """One value of several, in this order, with zeros where they do not fill it.

        Args:
            parts: each with the number of its entries that are taken.
        """
        roots = {value.root for value, _ in parts}
        if len(roots) == 1:
            return self.write(size, [value for value, _ in parts], of=next(iter(roots)))
        whole = size == sum(root.size for root in roots)
        return self.write(size, [value for value, _ in parts], joined=roots if whole else ())

    def most(self) -> int:
        """The most elements that are held while one of the operations runs."""
        return max(self.held(), default=0)

    def held(self) -> Iterator[int]:
        """The elements that are held while each operation runs."""
        last = {step.written: k for k, step in enumerate(self.steps) if step.written}
        for k, step in enumerate(self.steps):
            last |= dict.fromkeys(step.reads, k)
        last |= dict.fromkeys(self.kept, len(self.steps))
        ends: list[list[Value]] = [[] for _ in range(len(self.steps) + 1)]
        for value, k in last.items():
            if not value.given:
                ends[k].append(value)
        held = _Held()
        for k, step in enumerate(self.steps):
            for value in ends[k - 1] if k else ():
                held.add(value, -1)
            if step.written:
                held.add(step.written, 1)
            yield held.total


@dataclass
class _Held:
    """Values that are held, counted."""

    sizes: Counter[Value] = field(default_factory=Counter)
    """Root -> the elements of all that holds entries of it."""
    within: Counter[Value] = field(default_factory=Counter)
    """Root -> how many hold it whole."""
    total: int = 0

    def add(self, value: Value, times: int) -> None:
        """One more of a value, or one less."""
        root = value.root
        self.total -= self._counted(root)
        self.sizes[root] += times * value.size
        self.total += self._counted(root)
        for part in value.joined:
            self.total -= self._counted(part)
            self.within[part] += times
            self.total += self._counted(part)

    def _counted(self, root: Value) -> int:
        return 0 if root.given or self.within[root] else min(root.size, self.sizes[root])
