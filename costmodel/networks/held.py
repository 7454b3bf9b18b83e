"""What does a network hold while it generates: weights, rows of tokens, recurrent state?

What a part holds of a sequence has one of two roles (`ROLES`): `cache`, rows of tokens such as keys
and values, or `state`, which a recurrence carries and which has one size at every length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil, prod

from costmodel.errors import SizeError, Unanswered
from costmodel.networks.assembly import beyond_table
from costmodel.networks.blocks import Use, crosses
from costmodel.networks.experts import active
from costmodel.networks.network import Network
from costmodel.networks.part_costs import Counting, own_state, part_answers
from costmodel.program.chosen_sizes import default
from costmodel.program.element_types import Dtypes, bytes_in_rows, entry_bytes
from costmodel.questions.parameters import parameters
from costmodel.questions.question import Missing
from costmodel.questions.state import ROLES, state_of
from costmodel.symbolic.at_sizes import each
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Fn, Poly, sum_of
from costmodel.symbolic.sizes import checked

CONVOLVED = "k"
"""The letter of the width of a kernel: the rows that a convolution holds number one less."""

LATE = 2**62
"""A context beyond every window and kernel."""


@dataclass(frozen=True)
class HeldArray:
    """An array of which one layer holds entries of one sequence.

    Args:
        name: its name in the part's equations.
        axes: its extents without the axis of tokens.
        rows: how many tokens' entries are held after t tokens; 1 for a recurrent state.
        convolved: whether a short convolution reads the rows.
    """

    name: str
    axes: tuple[int, ...]
    rows: Exact
    convolved: bool

    @property
    def width(self) -> int:
        """The entries of one row."""
        return prod(self.axes)

    @property
    def row(self) -> int:
        """The entries along which blocks of a quantised type lie: those of a head, or of a token
        without heads."""
        return self.axes[-1] if self.axes else 1

    @property
    def most(self) -> int | None:
        """The most rows that are held after any context; None where their number grows. Of chunks
        of w tokens a layer holds t - w floor(t/w) rows: the most are the w-1 before a multiple."""
        found = self.rows.at({"t": LATE})
        atoms = {atom for _, poly in self.rows.pieces for atom in poly.atoms}
        chunks = [a.args[1] for a in atoms if isinstance(a, Fn) and a.function == "floor_div"]
        ends = (self.rows.at({"t": LATE // w.at({}) * w.at({}) - 1}) for w in chunks)
        return None if found == LATE else max((found, *ends))


@dataclass(frozen=True)
class Held:
    """What all runs of a part hold of one sequence after t tokens, in one role of `ROLES`.

    Args:
        elements, bytes: in t, all other sizes being numbers; a row of a head or of a token takes
            whole blocks of a quantised type.
        dtype: the element type.
        arrays: the arrays of one layer, in the order in which equations read them.
    """

    use: Use
    role: str
    layers: int
    elements: Exact
    bytes: Exact
    dtype: str
    arrays: tuple[HeldArray, ...]

    def at(self, context: int) -> int:
        """The bytes that all runs of the part hold of one sequence after `context` tokens."""
        return self.bytes.at({"t": context})

    def further(self, context: int) -> int:
        """The bytes that the next token adds after `context` tokens."""
        return self.at(context + 1) - self.at(context)


@dataclass(frozen=True)
class Holding:
    """What a network holds while it generates, with element types.

    Args:
        length: the sequence length l where the network gives none.
    """

    network: Network
    dtypes: Dtypes
    length: int | None = None

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """A dict: letter -> value of all sizes of the network but the context t and the batch b:
        the network's own value, else `length` for l, else the default of the letter, of l at most
        the rows of the tables of positions."""
        found = {} if self.length is None else {"l": self.length}
        found = {**found, **self.network.own.with_given({})}
        letters = {"l"}
        for use in self.network.uses:
            polys = [use.sizes.get(x, Poly.atom(x)) for x in use.mixer.letters]
            letters |= {x for poly in (*polys, use.runs) for x in poly.letters}
        for letter in sorted(letters - found.keys() - {"t"}):
            found[letter] = default(letter, found)
            if letter == "l" and self.longest is not None:
                found[letter] = min(found[letter], self.longest)
        return {x: value for x, value in found.items() if x not in ("b", "t")}

    @property
    def crosses(self) -> bool:
        """Whether a part has cross-attention: it reads rows that are given (`context`), such as
        those of an image or of an encoder."""
        return any(crosses(use.mixer) for use in self.network.uses)

    @cached_property
    def parts(self) -> tuple[Held, ...]:
        """What each part holds of a sequence, rows of tokens and recurrent state apart; Unanswered
        if a part has no one-token inference."""
        return tuple(found for use in self.network.uses for found in self._of(use))

    def _of(self, use: Use) -> Iterator[Held]:
        """Yield what one part holds of a sequence: a `Held` for its rows of tokens and one for its
        recurrent state, each only if the part has some; nothing for a part that does not run for a
        new token. Unanswered if a part that does has no one-token inference."""
        if "inference" not in use.when or use.regularises:
            return  # the part, or dropout, does not run for a new token
        about = part_answers(use, "inference", Counting())
        found = Missing(about.unanswered) if about.unanswered else about.attempt(state_of)
        if isinstance(found, Missing):
            raise Unanswered(f"{use.name}: {found.reason}")
        found = own_state(use, found)  # array -> entries of a layer, but rows that others hold
        sizes = {x: Poly.of(value) for x, value in self.sizes.items()}
        for role in ROLES:
            of_role = {name: n for name, n in found.arrays.items() if found.roles[name] == role}
            number = sum(of_role.values(), Exact()).substitute(use.sizes) * use.runs  # of entries
            if not number.is_zero:
                arrays = {self._array(use, name, n): n for name, n in of_role.items()}
                layers = use.runs.at(self.sizes)
                dtype = self.dtypes.name_of(role)
                each = (n * bytes_in_rows(dtype, Poly.of(a.row)) for a, n in arrays.items())
                taken = sum(each, Exact()).substitute(use.sizes) * use.runs
                of_t = number.substitute(sizes), taken.substitute(sizes)
                yield Held(use, role, layers, *of_t, dtype, tuple(arrays))

    def _array(self, use: Use, name: str, number: Exact) -> HeldArray:
        """Describe the array `name` of one layer of a part: the extents of its axes but that of
        tokens, and the rows held after t tokens: `number`, the entries held (in the part's sizes
        and t), over the entries of a row."""
        form = use.mixer.forms[use.token_form or use.form_under(())]
        array = {**use.mixer.arrays, **form.arrays}[name]
        tokens = [use.sizes.get(letter, Poly.atom(letter)) for letter in ("l", "e")]
        extents = [extent.substitute(use.sizes) for extent in array.shape]
        axes = tuple(extent.at(self.sizes) for extent in extents if extent not in tokens)
        known = {x: Poly.of(value) for x, value in self.sizes.items()}
        rows = number.substitute(use.sizes).substitute(known) * Poly.of(Fraction(1, prod(axes)))
        return HeldArray(name, axes, rows, CONVOLVED in number.letters)

    @cached_property
    def parameters(self) -> int:
        """The number of parameters."""
        return self.network.parameters().at(**self.sizes)

    @cached_property
    def active(self) -> int:
        """The number of parameters that a token reads, tables of embeddings as a whole; of experts,
        those that the token goes through."""
        idle = 0
        for use in self.network.uses:
            every = sum_of(parameters(use.mixer).arrays.values())
            left_out = (every - active(use.mixer)).substitute(use.parameter_sizes)
            idle += (left_out * use.copies).at(self.sizes)
        return self.parameters - idle

    @property
    def weights(self) -> int:
        """The bytes of all parameters."""
        return self.weights_in(self.dtypes.name_of("weights"))

    def weights_in(self, dtype: str) -> int:
        """The bytes of all parameters in an element type."""
        return ceil(self.parameters * entry_bytes(dtype))

    def at(self, context: int, role: str | None = None) -> int:
        """The bytes of one sequence after `context` tokens, a positive integer or an array of such,
        in one role (`cache` or `state`) or in all. SizeError for another context."""

        def one(sizes: Mapping[str, int]) -> int:
            tokens = checked(sizes)["t"]
            return sum(part.at(tokens) for part in self.parts if role in (None, part.role))

        found: int = each(one, {"t": context})
        return found

    def further(self, context: int) -> int:
        """at(context + 1) - at(context): the bytes that the next token adds, in both roles."""

        def one(sizes: Mapping[str, int]) -> int:
            tokens = checked(sizes)["t"]
            return sum(part.further(tokens) for part in self.parts)

        found: int = each(one, {"t": context})
        return found

    @property
    def each(self) -> Exact:
        """The bytes of one sequence, in t."""
        return sum((part.bytes for part in self.parts), Exact())

    @cached_property
    def longest(self) -> int | None:
        """The most tokens that the decoder's tables of positions cover; None without a table."""
        tables = (use for use in self.network.uses if use.section != "encoder")
        return min((use.rows for use in tables if use.rows is not None), default=None)

    def refuse_beyond(self, context: int) -> None:
        """Raise SizeError if a part's weights, such as a table of positions, end before the
        context; tables of angles, which are computed, are as long as the context."""
        at = {**self.sizes, "l": max(self.sizes["l"], context), "t": context}
        for use in self.network.uses:
            if reason := beyond_table(use, "inference", at):
                raise SizeError(f"{reason} (--context {use.rows})")
        for reason in self.network.beyond("inference", at, Counting()).values():
            raise SizeError(reason)
