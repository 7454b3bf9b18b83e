"""For exactly which sizes does one form of a mixer take fewer operations than another form?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Mixer
from costmodel.program.conventions import Convention
from costmodel.questions.count import counted, operations
from costmodel.questions.question import Answers, answers
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sizes import LARGEST
from costmodel.symbolic.thresholds import Condition, positive, where_positive, where_zero


@dataclass(frozen=True, eq=False)
class Crossover:
    """Two forms of a mixer in one phase under one convention, compared by all operations.

    >>> import costmodel as cm
    >>> found = Crossover(cm.mixer("simple"), "kv-first", "qk-first")
    >>> found.fewer.text, found.equal.text
    ('l > d/n', 'l = d/n')
    """

    mixer: Mixer
    form: str
    other: str
    phase: str = "training"
    convention: Convention = Convention()

    @property
    def answers(self) -> tuple[Answers, Answers]:
        """The `Answers` about the form, and about the other form."""
        own, its = (
            answers(self.mixer, name, self.phase, self.convention)
            for name in (self.form, self.other)
        )
        return own, its

    @cached_property
    def totals(self) -> tuple[Exact, Exact]:
        """All operations of the form and of the other form, for b sequences.

        Raises:
            Unanswered: one of the forms has no such phase, or its operations are not derived.
        """
        found = []
        for about in self.answers:
            try:
                found.append(operations(about.of(counted), "total"))
            except (Unanswered, Unsupported) as reason:
                raise Unanswered(f"form '{about.form}': {reason}") from None
        return found[0], found[1]

    @cached_property
    def saved(self) -> Poly:
        """The operations of the other form minus those of the form.

        Raises:
            Unanswered: one of the forms has no such phase, or its operations are not derived.
            Unsupported: one of the totals is piecewise.
        """
        cases = [total.chambers() for total in self.totals]
        if any(len(found) > 1 or found[0][0] for found in cases):
            raise Unsupported(
                "the count differs from case to case, and its threshold is not solved"
            )
        (((_, own),), ((_, its),)) = cases
        return its - own

    @property
    def fewer(self) -> Condition:
        """The sizes at which the form takes fewer operations than the other; errors as `saved`."""
        return where_positive(self.saved)

    @property
    def equal(self) -> Condition:
        """The sizes at which both forms take equally many operations; errors as `saved`."""
        return where_zero(self.saved)

    @property
    def words(self) -> str:
        """The comparison as a clause.

        >>> import costmodel as cm
        >>> Crossover(cm.mixer("simple"), "kv-first", "qk-first").words
        'kv-first takes fewer operations than qk-first where l > d/n, as many where l = d/n'
        """
        try:
            fewer, equal = self.fewer, self.equal
        except Unsupported:
            return self._open
        if equal.always:
            return f"{self.form} takes as many operations as {self.other}"
        if fewer.never:
            return f"{self.form} never takes fewer operations than {self.other}"
        if fewer.always:
            return f"{self.form} always takes fewer operations than {self.other}"
        if not fewer.solved:
            return self._open
        many = f", as many where {equal.text}" if equal.solved and not equal.never else ""
        return f"{self.form} takes fewer operations than {self.other} where {fewer.text}{many}"

    @property
    def is_open(self) -> bool:
        """Whether no condition on the sizes is solved."""
        return self.words == self._open

    @property
    def _open(self) -> str:
        return f"whether {self.form} or {self.other} takes fewer operations depends on the sizes"

    @property
    def length(self) -> str:
        """The letter of the length: t, the number of tokens seen, of one new token; else l."""
        return "t" if self.phase == "inference" else "l"

    def lengths(self, sizes: Mapping[str, int]) -> list[tuple[int, int]]:
        """The ranges of `length`, from 1 to 2**40, in which the form takes fewer operations.

        Raises:
            Unanswered: as `totals`.
            Unsupported: a total that is piecewise, or pads lengths to other than powers of two.
        """
        own, its = self.totals
        return positive(its - own, self.length, {"b": 1, **sizes})

    def over_lengths(self, sizes: Mapping[str, int]) -> str:
        """Where the form takes fewer operations at these sizes and any length, as a clause."""
        found = self.lengths(sizes)
        if not found:
            return f"{self.form} takes fewer operations than {self.other} at no length"
        words = [_range_words(self.length, first, last) for first, last in found]
        listed = " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
        return f"{self.form} takes fewer operations than {self.other} {listed}"

    def at(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """The operations of both forms at integer sizes, b among them; Unanswered as `totals`."""
        own, its = (int(total.rational(sizes)) for total in self.totals)
        return own, its


def _range_words(letter: str, first: int, last: int) -> str:
    if last == LARGEST:
        return f"from {letter} = {first} on"
    return f"for {letter} = {first}" if first == last else f"for {letter} = {first}..{last}"
