"""Mixers, forms and equations in index notation, as authors write them and papers print them.

An equation defines, for every point of its domain, an array entry as a scalar expression:

    with m.form("direct") as f:
        i = f.index("i", 1, l)
        j = f.index("j", 1, i)
        y[i] = sum_(x[j] * w[i - j + 1], over=j)

An index may run over a union of disjoint ranges, such as the first s rows and the last w. A sum
over such an index is one sum; an equation in which it is free stands for one equation per range.

        j = f.index("j", union((1, min_(s, i)), (max_(s + 1, i - w + 1), i)))

An array of positions, declared with `below=`, holds the result of argmax, top_k or sort. Other
arrays may be read at these positions (a gather):

        at = f.array("at", l, below=u)
        at[i] = argmax(scores[i, e], over=e)
        y[i, b] = sum_(x[i, a] * W[at[i], a, b], over=a)

If `at` holds numbers of blocks of B rows, K[(at[i] - 1)*B + e, a] is row e of block at[i].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType, TracebackType
from typing import Any, Never, TypeVar

from costmodel.errors import EquationError, WrongKind, described, shortened
from costmodel.language.arguments import checked, written_at
from costmodel.language.buffers import check_table
from costmodel.language.indices import Index, Ranges, UnionIndex, one_by_one, outer_first
from costmodel.language.nodes import (
    KINDS,
    MOST_NESTED,
    OPAQUE,
    Array,
    Composite,
    Constant,
    Div,
    Fft,
    Flat,
    Gather,
    Node,
    Operands,
    Position,
    Ref,
    Scan,
    Select,
    has_room,
    names_in,
    polys_of,
    refs,
    walk,
)
from costmodel.language.positions import (
    check_takes,
    factors_of_indices,
    in_block,
    largest_position,
    no_position,
    one_range,
)
from costmodel.language.rule_table import Rules
from costmodel.symbolic.constraints import Constraints, implied_all
from costmodel.symbolic.hashed_once import hashed_once
from costmodel.symbolic.polynomial import (
    Poly,
    atom_name,
    is_index,
    size,
)
from costmodel.symbolic.printing import unpaired_braces
from costmodel.symbolic.sizes import LETTERS, Letter, is_letter

Told = TypeVar("Told", bound=ValueError)


@hashed_once
@dataclass(frozen=True)
class Equation:
    """At every point of the domain, `array[positions]` is defined as `value`."""

    array: Array
    positions: tuple[Position, ...]
    value: Node
    indices: tuple[Index, ...]
    """The free indices of the left side, outer ones first."""
    whole: Array
    """The array to whose definition the equation belongs: `array`, or, if the equation is a step
    of a composite, the author's array; in a backward pass the gradient or the recomputed copy."""
    place: str = field(default="", compare=False, repr=False)
    """File and line of the author's equation; empty for a derived equation."""

    @property
    def name(self) -> str:
        """The array's name."""
        return self.array.name

    @property
    def part_of(self) -> str:
        """The name under which the equation is counted: that of `whole`."""
        return self.whole.name

    @property
    def written(self) -> object:
        """A key of the author's equation. An equation over a `union` of two ranges becomes two
        equations, which have one key."""
        return self.array, self.positions, self.value

    @cached_property
    def domain(self) -> Constraints:
        """The constraints on the free indices."""
        return frozenset().union(*(index.constraints for index in self.indices))

    @cached_property
    def known(self) -> Constraints:
        """The constraints on the free indices, and the bounds of sizes that the mixer declares."""
        return self.domain | self.array.owner.bounds


def told_at(error: Told, equation: Equation) -> Told:
    """The error with the file and line of the equation that caused it: in its message if the mixer
    is in a user's own file, else as a note in the traceback."""
    return _told_at(error, equation.place, equation.array.owner.home)


def _told_at(error: Told, place: str, home: str) -> Told:
    """The error, with `place` (`FILE, line N`), the line of code that caused it. If `home`, the
    module of a user's own file, is given, the place ends the message; for a built-in mixer (`home`
    is "") it is a note of the exception, for the project's authors. The error is unchanged if
    `place` is "" or it has a place already."""
    if not place or hasattr(error, "place"):
        return error
    if home:
        error = type(error)(f"{error} ({place})")
    else:
        error.add_note(f"this is written in {place}")
    error.place = place  # type: ignore[attr-defined]  # told once, by the innermost
    return error


@contextmanager
def at_its_line(equation: Equation) -> Iterator[None]:
    """A `with` block about one equation: an EquationError inside gets the equation's file and line
    (in its message, or as a note for a built-in mixer)."""
    try:
        yield
    except EquationError as error:
        raise told_at(error, equation) from None


@contextmanager
def at_declaration(form: Form, index: Index) -> Iterator[None]:
    """A `with` block about an index of a form: an EquationError inside gets the file and line of
    the index's declaration."""
    try:
        yield
    except EquationError as error:
        raise _told_at(error, form.places[index.name], form.mixer.home) from None


TRAINED = ("input", "context", "parameter")
"""The roles of arrays that get a gradient."""
SEQUENCE, JOINED, STEP = "sequence", "joined", "step"
"""How often a batch executes an equation of a gradient: per sequence; per sequence, with results
summed over the batch; once per training step, for work on weights or their gradients alone."""


@dataclass(frozen=True, eq=False)
class System:
    """Equations in the order in which they are written, with all composites expanded."""

    mixer: Mixer
    form: str
    equations: tuple[Equation, ...]

    backward: Mapping[Equation, str] = field(default_factory=dict)
    """Equation of a gradient -> `SEQUENCE`, `JOINED` or `STEP`; empty for a forward pass."""

    trained: tuple[str, ...] = TRAINED
    """The roles of arrays that get a gradient."""

    fixed: frozenset[Array] = frozenset()
    """Arrays of these roles without a gradient: the given gradient, the target of a loss."""

    beyond: bool = False
    """Whether references may read zeros outside of their arrays, which only rewrites introduce."""

    def with_equations(self, changed: Mapping[Equation, Equation]) -> System:
        """The system with each equation replaced by `changed[equation]`."""
        backward = {changed[e]: kind for e, kind in self.backward.items()}
        equations = tuple(changed[e] for e in self.equations)
        return replace(self, equations=equations, backward=backward)

    @cached_property
    def forward(self) -> System:
        """The system without the equations of its backward pass, and with the defaults of `trained`
        and `fixed`; the system itself if it has no such equations."""
        if not self.backward:
            return self
        equations = tuple(e for e in self.equations if e not in self.backward)
        return System(self.mixer, self.form, equations, beyond=self.beyond)

    @cached_property
    def wanted(self) -> tuple[Array, ...]:
        """The arrays whose gradients are asked for: those with a role in `trained` (such as
        parameter), without arrays of positions, which have no gradients, and without the `fixed`
        (frozen) arrays."""
        arrays = self.mixer.arrays.values()
        return tuple(
            a for a in arrays if a.role in self.trained and a.below is None and a not in self.fixed
        )

    @cached_property
    def active(self) -> frozenset[Array]:
        """The arrays whose gradients the gradients of `wanted` need: the arrays in `wanted` and all
        computed from them; without arrays of positions, and without arrays whose entries cancel
        (the maximum that a safe softmax subtracts)."""
        found = frozenset(self.wanted)
        while True:
            more = {
                e.array
                for e in self.equations
                if e.array.below is None and not e.array.cancels
                if not found.isdisjoint(e.value.arrays)
            }
            if more <= found:
                return found
            found |= more

    @cached_property
    def inputs(self) -> tuple[Array, ...]:
        """The inputs as the equations read them: as declared, or, after a rewrite into chunks, with
        the token axis split into the axes (chunk, place in the chunk)."""
        arrays = (a for e in self.equations for a in e.value.arrays if a.role == "input")
        read = {array.name: array for array in arrays}
        return tuple(read.get(array.name, array) for array in self.mixer.inputs)

    @cached_property
    def given(self) -> Array:
        """The gradient of the output, which is given to a backward pass."""
        output, arrays = self.mixer.role("output"), self.mixer.arrays.values()
        return next(array for array in arrays if array.gradient_of is output)

    @cached_property
    def shared_gradients(self) -> frozenset[Array]:
        """The arrays of a backward pass that exist once for all sequences of a batch."""
        return frozenset(e.array for e, kind in self.backward.items() if kind != SEQUENCE)

    def results(self, phase: str) -> frozenset[Array]:
        """The arrays that a phase computes for the user: the output of a forward pass; in a
        backward pass the gradients of inputs, contexts and parameters; in a training step both."""
        of = ((e.array, e.array.gradient_of) for e in self.backward)
        found = {gradient for gradient, array in of if array and array.role in TRAINED}
        return frozenset(found if phase == "backward" else found | {self.mixer.role("output")})

    @cached_property
    def defining(self) -> Mapping[Array, tuple[Equation, ...]]:
        """Array -> the equations that define it."""
        found: dict[Array, tuple[Equation, ...]] = {}
        for equation in self.equations:
            found[equation.array] = (*found.get(equation.array, ()), equation)
        return found

    @cached_property
    def written(self) -> tuple[tuple[Equation, ...], ...]:
        """The equations in groups, one group for each equation that the author wrote; an equation
        over a `union` of ranges became one equation per range."""
        found: dict[object, tuple[Equation, ...]] = {}
        for equation in self.equations:
            found[equation.written] = (*found.get(equation.written, ()), equation)
        return tuple(found.values())


@dataclass(eq=False)
class Form:
    """One way to compute a mixer: indices, intermediate arrays, and equations."""

    mixer: Mixer
    name: str
    indices: dict[str, Index] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    equations: list[Equation] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    """Name of an index -> file and line of its declaration."""
    array_places: dict[str, str] = field(default_factory=dict)
    """Name of an intermediate array -> file and line of its declaration."""

    def in_words(self) -> str:
        """The form in words, for messages."""
        return f"the form {self.name}"

    @checked
    def index(
        self, name: str, lower: Any, upper: Any = None, *, beside: Index | None = None
    ) -> Index:
        """Declare an index over lower..upper, both included, or over a `union` of ranges, and
        return it; a name and range that an earlier declaration has give an equal index. With
        `beside`, another index over a union, both run over pairs of ranges: the k-th range of the
        one goes with the k-th range of the other.

        Raises:
            EquationError: a declaration outside of the form's block, a bad name or bound, a
                different number of ranges than `beside` has, one range beside one range, or an
                index of this name that has another range.
        """
        self._require_open(f"index {name}")
        _check_name(name, self.mixer)
        if isinstance(lower, Ranges) == (upper is not None):
            raise EquationError(
                f"index {name} of form '{self.name}' takes a lower and an upper bound, or one union"
            )
        if isinstance(lower, Ranges):
            ranges = tuple(self._range(name, *r) for r in lower.of)
            index: Index = UnionIndex(
                name, (), (), ranges, beside.atom if beside is not None else ""
            )
        else:
            index = self._range(name, lower, upper)
        if beside is not None:
            self.refuse_foreign(beside)
        if beside is not None and len(beside.pieces) != len(index.pieces):
            raise EquationError(
                f"index {name} has {len(index.pieces)} ranges, and {beside.name}, beside which it "
                f"is declared, has {len(beside.pieces)}: give both the same number of ranges"
            )
        if beside is not None and not isinstance(index, UnionIndex):
            raise EquationError(
                f"index {name} and {beside.name}, beside which it is declared, have one range "
                "each: leave out beside=, which pairs the ranges of two unions"
            )
        if self.indices.setdefault(name, index) != index:
            raise EquationError(
                f"index {name} of form '{self.name}' already has another range: take another name"
            )
        self.places.setdefault(name, written_at())
        return index

    def _range(self, name: str, lower: Any, upper: Any) -> Index:
        """The index `name` over the range from `lower` to `upper`; EquationError if a bound names a
        size or an index that is not declared."""
        found = one_range(name, lower, upper)
        for end in found.ends:
            self.mixer.refuse_undeclared(end, f"index {name}")
            for atom in sorted(filter(is_index, end.letters)):
                if atom_name(atom) not in self.indices:
                    raise EquationError(
                        f"the range of index {name} names {atom_name(atom)}, which is no index of "
                        f"form '{self.name}': declare it first, with f.index"
                    )
        return found

    def _require_open(self, what: str) -> None:
        """Raise EquationError for the declaration `what` if the form's `with` block has ended."""
        if self.mixer.writing is not self:
            raise EquationError(
                f"{what} is declared after form '{self.name}' of {self.mixer.name} has ended: "
                f"declare it inside `with m.form('{self.name}') as f:`"
            )

    def refuse_foreign(self, index: Index) -> None:
        """Raise EquationError for an index of another form: one that this form does not declare, or
        declares with another range."""
        known = self.indices.get(index.name)
        if known is None:
            raise EquationError(
                f"form '{self.name}' of {self.mixer.name} has no index {index.name}: declare the "
                "index there, with f.index"
            )
        if known is not index and known != index:
            raise EquationError(
                f"form '{self.name}' of {self.mixer.name} has another index {index.name}: use the "
                f"{index.name} declared in form '{self.name}'"
            )

    @checked
    def array(
        self,
        name: str,
        *shape: Any,
        cite: str = "",
        latex: str = "",
        kernel: str = "contraction",
        below: Any = None,
        cancels: bool = False,
    ) -> Array:
        """Declare an intermediate array with an extent, a size or number, for each axis, and return
        it.

        Args:
            cite: the number of its equation in the source; `latex`: its symbol in LaTeX.
            kernel: the kernel class by which counters of other tools know its sums of products.
            below: the entries are positions in 1..below, computed by argmax, top_k or sort; a
                function of the entry's positions may give the bound, as for a buffer.
            cancels: the output is the same for any entries, as for the maximum that a softmax
                subtracts: they get no gradient.

        Raises:
            EquationError: a declaration outside of the form's block, a bad or taken name, or a bad
                shape, `cite` or `latex`.
        """
        self._require_open(f"array {name}")
        _check_name(name, self.mixer)
        if name in self.arrays or name in self.mixer.arrays:
            raise EquationError(
                f"array {name} is declared twice in {self.mixer.name}: give one of them another "
                "name"
            )
        _check_printed(name, cite, latex)
        extents = self.mixer.extents(name, shape)
        last = largest_position(name, below, extents)
        self.arrays[name] = Array(
            name, "intermediate", extents, self.mixer, cite, latex, kernel, last, cancels=cancels
        )
        self.array_places[name] = written_at()
        return self.arrays[name]


LONGEST_TEXT = 2000
"""The most characters of a mixer's title, idea or source."""

FIXED = frozenset({"b", "l", "t", "d", "h"})
"""The letters with one meaning in every mixer."""

GIVEN: ContextVar[Mapping[str, int]] = ContextVar("GIVEN", default=MappingProxyType({}))
"""The sizes in braces behind the name of the mixer that is being written, by letter."""


class Mixer:
    """A token mixer: its sizes, arrays and forms. The first form is the default.

    Args:
        name: kebab-case name.
        title: the name in papers.
        idea: what the mixer does with the tokens, in one line of at most 60 characters.
        source: paper and equation numbers.
        group: the family that `--group` selects.
        aliases: other names for the mixer.
        references: code of torch that its module is tested to equal in float64; comparisons with
            other packages are recorded in tables/references.
    """

    @checked
    def __init__(
        self,
        name: str,
        *,
        title: str = "",
        idea: str = "",
        source: str = "",
        group: str = "user",
        aliases: Sequence[str] = (),
        references: Sequence[str] = (),
    ) -> None:
        """Begin a mixer without arrays and forms.

        Args:
            title: its name in print; `idea`: in one line, what it does with the tokens.
            source: the paper; `group`: its family in `costmodel list`.
            aliases: further names; `references`: other implementations, such as a class of torch.

        Raises:
            EquationError: the name is not one word, or has a sign such as + or :; or a text is
                longer than `LONGEST_TEXT`.
        """
        if not name or any(sign in name for sign in "+:,={}") or name.split() != [name]:
            raise EquationError(
                f"'{shortened(name)}' is no name of a mixer: expected one word, such as my-mixer, "
                f"without + : , = {{ }}"
            )
        for what, text in (("title", title), ("idea", idea), ("source", source)):
            if len(text) > LONGEST_TEXT:
                raise EquationError(
                    f"the {what} of {shortened(name)} has {len(text):,} characters: expected at "
                    f"most {LONGEST_TEXT:,}"
                )
        self.name = name
        self.title = title or name
        self.idea = idea
        self.source = source
        self.group = group
        self.aliases = tuple(aliases)
        self.references = tuple(references)
        self.origin = name
        """The name that users type: the name, or FILE.py:NAME for a mixer in a user's own file."""
        self.checked = False
        """Whether its forms are known to be well formed, as those of built-in mixers are."""
        self.builtin = False
        """Whether the mixer is part of the project, so that its name determines its equations."""
        self.home = ""
        """The Python module of a user's own file; empty for a built-in mixer."""
        self.base = name
        """The name without options."""
        self.options: tuple[str, ...] = ()
        """The options that the mixer is written with."""
        self.made_with: Mapping[str, Any] = {}
        """The arguments with which a part of a network is made, by name."""
        self.offers: Mapping[str, str] = {}
        """Option -> its meaning, for every option that may follow the name."""
        self.variants: Mapping[str, str] = {}
        """A variant's own name -> the name with options and sizes that it stands for."""
        self.letters: tuple[str, ...] = ()
        """The letters of its sizes; without h, unless `given` has h."""
        self.own: dict[str, Letter] = {}
        """The letters that it brings, or whose meaning and default it changes; see `size`."""
        self.given: Mapping[str, int] = GIVEN.get()
        """The sizes that follow its name in braces, by letter; no other value replaces them."""
        self.at_any_sizes = self
        """The mixer without the sizes of its braces, about which proofs for all sizes ask; h is a
        size by itself if braces give h."""
        self.dtypes: Mapping[str, str] = {}
        """The element types that a network's configuration names; see `Dtypes.of`."""
        self.powers_of_two: tuple[Poly, ...] = ()
        """The sizes that must be powers of two."""
        self.bounded_sizes: tuple[tuple[Poly, Poly], ...] = ()
        """(size, bound): sizes that must be at most a bound."""
        self.has_head_width = False
        """Whether its equations use h, which braces may set."""
        self._named: set[str] = set()
        """The letters that its equations may name: its sizes; d and n if it declares h."""
        self.arrays: dict[str, Array] = {}
        self.forms: dict[str, Form] = {}
        self.writing: Form | None = None
        """The form whose block is open."""

    def __repr__(self) -> str:
        return f"Mixer({self.name!r})"

    def in_words(self) -> str:
        """The mixer in words, for messages."""
        return f"the mixer {self.name}"

    @checked
    def sizes(self, letters: str) -> tuple[Poly, ...]:
        """Declare sizes by their letters, separated by spaces, and return a polynomial for each
        letter: the letter itself, but d/n for h (the width of a head), unless the braces behind the
        mixer's name give h a value. EquationError for a letter that no mixer may declare, such as
        b; ValueError for one that mixers do not share, which `size` declares first."""
        names = tuple(letters.split())
        for letter in names:
            self._check_free(letter)
        found = tuple(
            Poly.atom(x) if x in self.own or (x == "h" and "h" in self.given) else size(x)
            for x in names
        )
        if "h" in names:
            self.has_head_width = True
        for letter, one in zip(names, found, strict=True):
            if letter not in self.letters and letter in one.letters:
                self.letters += (letter,)
        self._named.update(*(one.letters for one in found))
        return found

    @checked
    def size(self, letter: str, meaning: str, default: int) -> Poly:
        """Declare one size with a meaning and a default of its own, and return it as a polynomial.

        >>> from costmodel.language.equations import Mixer
        >>> Mixer("my-mixer").size("P", "width of a head", 64)
        Poly(P)

        Raises:
            EquationError: no single letter, a letter with a fixed meaning (b, l, t, d, h and the
                letters of networks), a default below 1, or a letter that the mixer has declared
                with another meaning or default.
        """
        if not is_letter(letter):
            raise EquationError(f"{self.name} declares size '{shortened(letter)}': expected one "
                                f"letter, such as P")  # fmt: skip
        if letter in FIXED:
            raise EquationError(
                f"{self.name} declares size '{letter}' with its own meaning, but {letter} is "
                f"{LETTERS[letter].meaning} in every mixer: take another letter"
            )
        if default < 1:
            raise EquationError(f"{self.name}: the default of size {letter} must be at least 1, "
                                f"got {default}")  # fmt: skip
        self._check_free(letter)
        one = Letter(letter, meaning, default)
        if letter in self.letters and (former := self.letter(letter)) != one:
            first, second = (f"{x.meaning} (default {x.default})" for x in (former, one))
            raise EquationError(f"{self.name} declares size {letter} twice, as {first} and as "
                                f"{second}: take another letter")  # fmt: skip
        self.own[letter] = one
        (found,) = self.sizes(letter)
        return found

    def _check_free(self, letter: str) -> None:
        """Raise EquationError for a letter that no mixer may declare: b (the batch), t (the
        position of a new token), or a size of whole networks."""
        for taken, meaning in (("b", "the batch"), ("t", "the position of a new token")):
            if taken == letter:
                raise EquationError(
                    f"{self.name} declares size '{taken}', {meaning}, which the equations of a "
                    f"mixer do not use: leave out '{taken}'"
                )
        if letter in LETTERS and LETTERS[letter].networks:
            raise EquationError(
                f"{self.name} declares size '{letter}', which means {LETTERS[letter].meaning} of a "
                "network and is no size of a mixer: take another letter"
            )

    @property
    def open_sizes(self) -> tuple[str, ...]:
        """The letters of its sizes, without those in its braces."""
        return tuple(letter for letter in self.letters if letter not in self.given)

    @property
    def own_sizes(self) -> frozenset[str]:
        """The letters whose value or meaning is the mixer's own."""
        return frozenset({*self.own, *self.given})

    def letter(self, letter: str) -> Letter:
        """A letter with the meaning and the default that it has in this mixer."""
        if letter == "h" and letter in self.letters:
            return Letter("h", "head width")
        return self.own.get(letter) or LETTERS[letter]

    def power_of_two(self, extent: Poly) -> None:
        """Declare that a size, such as h, must be a power of two; questions refuse other values.

        Raises:
            WrongKind, EquationError: the argument is no size of the mixer.
        """
        said = "power_of_two takes a size of the mixer, such as m.power_of_two(l)"
        self._is_size(extent, "power_of_two", said)
        self.powers_of_two = tuple(dict.fromkeys((*self.powers_of_two, extent)))

    @property
    def bounds(self) -> frozenset[Poly]:
        """For each size that `at_most` bounds, its bound minus the size: at least 0."""
        return frozenset(bound - size for size, bound in self.bounded_sizes)

    def at_most(self, size: Poly, bound: Poly) -> None:
        """Declare that a size, such as the r channels of a head that turn, may not exceed another
        one, such as h; questions refuse larger values.

        Raises:
            WrongKind, EquationError: an argument is no size of the mixer.
        """
        for extent in (size, bound):
            said = "at_most takes two sizes of the mixer, such as m.at_most(r, h)"
            self._is_size(extent, "at_most", said)
        self.bounded_sizes = tuple(dict.fromkeys((*self.bounded_sizes, (size, bound))))

    def _is_size(self, extent: object, where: str, said: str) -> None:
        """Raise an error if an argument of the method `where` is no size of the mixer: WrongKind
        for another type, EquationError for a number or an undeclared size. `said` begins the
        message."""
        if not isinstance(extent, Poly):
            raise WrongKind(f"{said}: got {described(extent)}")
        if not extent.letters or extent.variables:
            raise EquationError(f"{said}: got {extent}")
        self.refuse_undeclared(extent, where)

    def refuse_undeclared(self, poly: Poly, where: str) -> None:
        """Raise EquationError if a polynomial names a size that the mixer does not declare; while
        it declares none, any size passes. `where` (an array or index) begins the message."""
        others = poly.letters - poly.variables - self._named
        if others and self._named:
            raise EquationError(
                f"{where} of {self.name} names the size {min(others)}, which {self.name} does not "
                f"declare: add it to m.sizes('...')"
            )

    def extents(self, name: str, shape: Sequence[Any]) -> tuple[Poly, ...]:
        """The extents of an array as polynomials: in sizes (d, 2*d), or integers of 1 or more.

        Raises:
            WrongKind: no polynomial (2.5, "d"). EquationError: 0, 1/2, an index, an unknown size.
        """
        found = []
        for part in shape:
            try:
                extent = Poly.of(part)
            except WrongKind as error:
                raise WrongKind(f"an axis of {name} of {self.name}: {error}") from None
            number = extent.constant()
            if extent.variables or (number is not None and (number < 1 or number % 1)):
                raise EquationError(
                    f"{name} of {self.name} has an axis of {described(part)}: expected a size, or "
                    f"a whole number of 1 or more"
                )
            self.refuse_undeclared(extent, name)
            found.append(extent)
        return tuple(found)

    def _declare(
        self,
        name: str,
        role: str,
        shape: tuple[Any, ...],
        cite: str = "",
        latex: str = "",
        below: Any = None,
        value: Any = None,
    ) -> Array:
        """Declare an array with a role (input, context, output, parameter or buffer) and return it;
        `below` and `value` as for a `buffer`. EquationError for a bad or taken name, a bad shape,
        `cite` or `latex`, an input, context or output without an axis, or a second output."""
        _check_name(name, self)
        if name in self.arrays:
            raise EquationError(
                f"array {name} is declared twice in {self.name}: give one of them another name"
            )
        _check_printed(name, cite, latex)
        extents = self.extents(name, shape)
        if role in ("input", "context", "output") and not extents:
            raise EquationError(
                f"{name} of {self.name} has no axis: the first axis of an {role} is the token "
                f"axis, m.{role}('{name}', l, d)"
            )
        if role == "output" and any(array.role == role for array in self.arrays.values()):
            raise EquationError(f"{self.name} needs exactly one output, and {name} is a second one")
        last = largest_position(name, below, extents)
        array = Array(name, role, extents, self, cite, latex, below=last, value=value)
        self.arrays[name] = array
        return array

    @checked
    def input(self, name: str, *shape: Any, below: Any = None) -> Array:
        """Declare an input sequence, whose first axis is the token axis, and return it.

        The mixer is applied to the first input; further inputs are over the same tokens, such as
        rows or scores of an earlier layer. Row i of each input arrives with token i.

        Args:
            below: the entries are integers in 1..below, positions for gathers from another array.

        Raises:
            EquationError: a bad name or shape, or another number of rows than the first input has.
        """
        array = self._declare(name, "input", shape, below=below)
        first = self.inputs[0]
        if array.shape[0] != first.shape[0]:
            raise EquationError(
                f"input {name} of {self.name} has {array.shape[0]} rows, and input {first.name} "
                f"has {first.shape[0]}: give both the same number of "
                f"rows, or declare {name} by m.context, as an encoder's output"
            )
        return array

    @checked
    def context(self, name: str, *shape: Any) -> Array:
        """Declare an input that is complete before the first token, such as an encoder's output,
        and return it.

        Work that depends on a context and on no token is done once per sequence, and held.

        Raises:
            EquationError: a bad name or shape, or l rows, as an input has.
        """
        array = self._declare(name, "context", shape)
        if array.shape[0] == size("l"):
            raise EquationError(
                f"{name} of {self.name} has l rows, as an input has: declare it by "
                f"m.input('{name}', ...), or give the context another length, such as e"
            )
        return array

    @checked
    def output(self, name: str, *shape: Any, cite: str = "") -> Array:
        """Declare the output sequence, whose first axis is the token axis, and return it."""
        return self._declare(name, "output", shape, cite)

    @checked
    def parameter(self, name: str, *shape: Any, latex: str = "") -> Array:
        """Declare a trainable array and return it. `latex`: its symbol in LaTeX."""
        return self._declare(name, "parameter", shape, latex=latex)

    @checked
    def buffer(
        self, name: str, *shape: Any, latex: str = "", below: Any = None, value: Any = None
    ) -> Array:
        """Declare a constant table, which costs nothing and is no parameter, and return it.

        Args:
            below: the entries are integers in 1..below, positions for gathers from another array;
                or a function from an entry's positions to that bound: `below=lambda q, r: q - 1`
                for rows before row q. A gather counts as a read of all of 1..below, whatever the
                values are; in memory traffic as one entry for each position value, at most all.
            value: the entries: a function of an entry's positions, counted from 1, and of the
                sizes, such as `lambda i, j, sizes: float(i == j)`, or a table. Without `value` the
                entries are given with the input, and proofs use random ones.
        """
        if callable(value):
            said = (
                f"value= of {name} is a function of an entry's positions, {len(shape)} of them, "
                f"and of the sizes: lambda i, sizes: 1.0 for one axis"
            )
            check_takes(value, (*shape, self), said)
        elif value is not None:
            check_table(name, value, below)
        return self._declare(name, "buffer", shape, latex=latex, below=below, value=value)

    @checked
    def form(self, name: str) -> OpenForm:
        """Begin a form of the mixer, whose equations are written inside its block: `with
        m.form("direct") as f:`. EquationError if the name is no single word or is taken."""
        if name in self.forms:
            raise EquationError(
                f"form '{name}' of {self.name} is written twice: give one of them another name"
            )
        if not name or any(sign in name for sign in ":,=") or name.split() != [name]:
            raise EquationError(
                f"'{shortened(name)}' is no name of a form of {self.name}: expected one word, such "
                f"as direct, without : , ="
            )
        return OpenForm(self._written(name))

    @contextmanager
    def _written(self, name: str) -> Iterator[Form]:
        """A context for the block that writes a form; at its end the form joins `forms`.
        EquationError inside another form's block, and for a form that never defines the output."""
        if self.writing is not None:
            raise EquationError(
                f"form '{name}' of {self.name} begins inside form '{self.writing.name}': end "
                f"form '{self.writing.name}' first"
            )
        form = Form(self, name)
        self.writing = form
        try:
            yield form
        finally:
            self.writing = None
        if not any(e.array.role == "output" for e in form.equations):
            raise EquationError(
                f"form '{name}' of {self.name} never defines its output: write an equation with "
                "the output on the left side"
            )
        self.forms[name] = form

    @property
    def default_form(self) -> str:
        """The name of the first form; EquationError if the mixer has no form."""
        if not self.forms:
            raise EquationError(f"{self.name} has no form: write its equations in `with form(...)`")
        return next(iter(self.forms))

    @property
    def parameters(self) -> tuple[Array, ...]:
        """The trainable arrays, in the order of declaration."""
        return tuple(a for a in self.arrays.values() if a.role == "parameter")

    @property
    def buffers(self) -> tuple[Array, ...]:
        """The constant tables, in the order of declaration."""
        return tuple(a for a in self.arrays.values() if a.role == "buffer")

    @property
    def inputs(self) -> tuple[Array, ...]:
        """The inputs with one row per token, in the order of declaration."""
        return tuple(a for a in self.arrays.values() if a.role == "input")

    @property
    def contexts(self) -> tuple[Array, ...]:
        """The inputs that are complete before the first token, in the order of declaration."""
        return tuple(a for a in self.arrays.values() if a.role == "context")

    @property
    def beside(self) -> tuple[Array, ...]:
        """The inputs after the first one, then the contexts."""
        return (*self.inputs[1:], *self.contexts)

    def role(self, role: str) -> Array:
        """The array with a role, "input" (the first of several) or "output"; EquationError if there
        is none, or if there are two outputs."""
        found = [a for a in self.arrays.values() if a.role == role]
        if not found or (role == "output" and len(found) > 1):
            raise EquationError(f"{self.name} needs exactly one {role}, it has {len(found)}")
        return found[0]

    def position(self, part: Any) -> Position:
        """The position that an author's index expression, as in x[expression], stands for: a
        polynomial; a `Flat` for `(j-1)*h + c`, where h may be a number and c another flattening; or
        a `Gather` for an array entry that holds positions.

        Raises:
            WrongKind: a float, or no expression, such as a text.
            EquationError: a fraction, an index of another form, an expression that is none of
                these, an array entry that holds no positions, or a sum of sizes as h.
        """
        match part:
            case Index():
                if self.writing is not None:
                    self.writing.refuse_foreign(part)
                return part.as_poly()
            case Ref():
                return Gather(self._of_positions(part))
            case Node():
                _check_nested(part, "an index")
                if (at := in_block(part)) is None:
                    raise EquationError(
                        f"{self.name} has an expression of entries as an index: define the "
                        "expression as an array with below=, or write (P[i] - 1)*B + e, place e of "
                        "block P[i]"
                    )
                self._refuse_sum(at[1])
                return Gather(self._of_positions(at[0]), at[1], at[2])
            case float():
                raise WrongKind(f"an index must be a whole number, got {described(part)}")
            case _:
                poly = Poly.of(part)
        if why := no_position(poly):
            raise EquationError(f"index '{poly}' in {self.name} {why}")
        scaled = factors_of_indices(poly)
        if not scaled:
            return self._by_numbered_blocks(poly)
        flats = (
            self._flattening(poly, Poly.atom(variable), extent)
            for variable, extent in scaled
            if not extent.variables
        )
        flat = next(filter(None, flats), None)
        if flat is None:
            raise EquationError(
                f"index '{poly}' in {self.name} multiplies an index: this is allowed only in "
                "(j - 1)*h + c, entry c of block j, with c in 1..h"
            )
        self._refuse_sum(flat.extent)
        self.position(flat.inner)  # refuses a place that is no position itself
        return flat

    def _refuse_sum(self, extent: Poly) -> None:
        """Raise EquationError for blocks whose length `extent` is a sum, such as d + 1."""
        if len(extent.terms) > 1:
            raise EquationError(
                f"blocks of {extent} entries in {self.name} have a sum of sizes as their length: "
                "give the array an axis of blocks and an axis of places"
            )

    def _by_numbered_blocks(self, poly: Poly) -> Position:
        """The affine position `poly`: (j-1)*16 + c as Flat(j, c, 16), if c holds an index and is
        proven to lie in 1..16; any other position unchanged."""
        if len(poly.variables) > 1:
            for atom in sorted(filter(is_index, poly.atoms)):
                extent = poly.coefficient(atom)
                if (extent.constant() or 0) > 1:
                    flat = self._flattening(poly, Poly.atom(atom), extent)
                    if flat and flat.inner.variables:
                        return flat
        return poly

    def _of_positions(self, entry: Ref) -> Ref:
        """The entry unchanged; EquationError if its array holds no positions (has no `below`)."""
        if entry.array.below is None:
            raise EquationError(
                f"{entry.array.name} of {self.name} is used as an index, but holds no positions: "
                "declare it with below=, such as f.array('at', l, below=l)"
            )
        return entry

    def _flattening(self, poly: Poly, index: Poly, extent: Poly) -> Flat | None:
        """The position `poly` as (outer-1)*extent + inner with inner in 1..extent, where `index`
        has the factor `extent`: (j-1)*h + c as Flat(j, c, h); None if inner is not proven to lie
        there."""
        inner = poly - (index - 1) * extent
        (leading, number), *others = extent.terms.items()
        # `inner` may lie in a later block, as c + 2*h does: `whole` is the number of blocks in it,
        # or one too many if the place is the last of its block, j*h
        whole = 0 if others else int(inner.terms.get(leading, 0) / number)
        for back in (whole, whole - 1):
            rest = inner - extent * back
            if self._within(rest, extent):
                return Flat(index + back, rest, extent)
        return None

    def _within(self, place: Poly, extent: Poly) -> bool:
        """Whether `place`, the row within a block of `extent` rows that a position names (c of
        block j in (j - 1)*h + c), is proven to lie in 1..extent for all values of its indices."""
        return all(
            implied_all(
                frozenset().union(*(i.constraints for i in ranges)), (place - 1, extent - place)
            )
            for ranges in one_by_one(self._around(place))
        )

    def _around(self, poly: Poly) -> list[Index]:
        """The indices in an expression, the indices in their bounds, in the bounds of these, and so
        on: j and i for j + 1 with j in 1..i."""
        indices = self.writing.indices if self.writing else {}
        found: dict[str, Index] = {}
        waiting = [poly]
        while waiting:
            named = waiting.pop().letters
            new = [i for i in indices.values() if i.atom in named and i.atom not in found]
            found |= {index.atom: index for index in new}
            waiting += [end for index in new for end in index.ends]
        return list(found.values())

    def define(self, array: Array, positions: tuple[Position, ...], value: Node) -> None:
        """Record the equation array[positions] = value in the form being written.

        Raises:
            EquationError: no form is open, the array cannot be defined (an input, a parameter), or
                the equation names an index, array or size that the form lacks, nests too deeply, or
                has an index that stands neither on the left side nor under a reduction, or in both
                places; also as `_check_bound` and the rules in `LEFT_SIDES`.
        """
        form = self.writing
        if form is None:
            raise EquationError(
                f"{array.name}[...] = ... stands outside `with {self.name}.form()`: write the "
                "equation inside a form"
            )
        if array.role not in ("intermediate", "output"):
            raise EquationError(
                f"{array.name} is declared by m.{array.role}, and no equation may define it: "
                "define the output, or an array that f.array declares"
            )
        _check_nested(value, array.name)
        by_atom = {index.atom: index for index in form.indices.values()}
        names = names_in(positions)
        for name in names:
            if name not in by_atom:
                raise EquationError(
                    f"form '{form.name}' of {self.name} has no index {atom_name(name)}, which "
                    f"{array.name} names: declare the index there, with f.index"
                )
        indices = tuple(outer_first([by_atom[n] for n in names]))
        equation = Equation(array, positions, value, indices, array, written_at())
        _check_own(form, equation)
        _check_bound(equation)
        left_side = LEFT_SIDES[type(value)] if value.alone else _without_positions
        form.equations.append(left_side(equation))


class OpenForm:
    """The context manager of `with m.form(...)`, which yields the form to write."""

    def __init__(self, written: AbstractContextManager[Form]) -> None:
        self._written = written

    def __enter__(self) -> Form:
        return self._written.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """End the form's block, which adds the form to its mixer unless the block failed."""
        return self._written.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Never:
        """Raise EquationError (AttributeError for a special name `__x__`): the author uses a form
        that was not entered by `with`, and has no attributes yet."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise EquationError(
            f".{name} is called on a form that is not open: write `with m.form('direct') as f:`, "
            "and its indices, arrays and equations below"
        )


def _check_nested(value: Node, what: str) -> None:
    """Raise EquationError for an expression, of the array or index `what`, that nests more
    operations than recursion over it allows."""
    if not has_room(value):
        raise EquationError(
            f"{what} nests more than {MOST_NESTED:,} operations in one expression: define a part "
            f"as an array first, or write a sum of equal terms as sum_(..., over=j)"
        )


def _check_own(form: Form, equation: Equation) -> None:
    """Raise EquationError if an equation has an array, an index or a size of another form or mixer,
    or a node of a class that is no registered kind and does not hold the operands of a composite.
    """
    mixer = form.mixer
    for ref, _ in (*refs(Ref(equation.array, equation.positions)), *refs(equation.value)):
        _check_array(form, equation, ref.array)
    for entry, _ in walk(equation.value):
        if type(entry) not in KINDS and not isinstance(entry, Operands):
            raise EquationError(
                f"{equation.name}: {type(entry).__name__} is no kind of node: declare it by @kind "
                f"in costmodel/language/nodes.py, with a rule in each table"
            )
        for index in entry.binders:
            form.refuse_foreign(index)
    for poly in dict.fromkeys(
        poly for entry, _ in walk(equation.value) for poly in polys_of(entry)
    ):
        mixer.refuse_undeclared(poly, equation.name)


def _check_array(form: Form, equation: Equation, array: Array) -> None:
    """Raise EquationError if `array`, which an equation has, belongs to another form or mixer."""
    mixer = form.mixer
    if form.arrays.get(array.name) is not array and mixer.arrays.get(array.name) is not array:
        said = "defined" if array is equation.array else f"read by {equation.name}"
        raise EquationError(
            f"{array.name} is {said} in form '{form.name}' of {mixer.name}, but declared in "
            f"another form or mixer: declare an array here, with f.array or m.input"
        )


def _check_name(name: str, mixer: Mixer) -> None:
    """Raise EquationError for a name of an array or index that is no ASCII identifier."""
    if not (name.isascii() and name.isidentifier()):
        raise EquationError(
            f"'{shortened(name)}' in {mixer.name} is no name: expected a letter, then letters, "
            f"digits and _"
        )


def _check_printed(name: str, cite: str, latex: str) -> None:
    """Raise EquationError for an equation's number of an array that formats of documents would not
    print as text, and for a symbol in LaTeX that would end the formula around it."""
    if not re.fullmatch(r"([^\W_]|[ ().,:;/'*+-])*", cite):
        raise EquationError(
            f"cite of {name} is '{shortened(cite)}': expected the number of an equation, such as "
            "(3) or (15)-(16), of letters, digits, spaces and ( ) . , : ; / ' * + -"
        )
    rest = re.sub(r"\\.", "", latex)
    if unpaired_braces(rest) or re.search(r"[$%\n]", rest) or rest.endswith("\\"):
        raise EquationError(
            f"latex of {name} is '{shortened(latex)}': expected a symbol in a formula, such as "
            r"\bar{W}, without $ and %, and with a } for each {"
        )


def _check_bound(equation: Equation) -> None:
    """Raise EquationError unless every index stands on the left side (is free) or is reduced over,
    and not both (a macro runs over free ones: softmax); also if an index's range names an index
    that is neither, for a division by 0, and for a transform, scan, selection or macro over indices
    inside an expression, as these must be whole right sides."""
    free = {i.atom for i in equation.indices}  # the indices of the left side
    for index in equation.indices:
        for name in sorted({a for end in index.ends for a in end.letters if is_index(a)} - free):
            raise EquationError(
                f"{equation.name}: the range of {index.name} names {atom_name(name)}, which the "
                f"left side lacks: put {atom_name(name)} there too, as in y[(q - 1)*C + e] = ..., "
                "row e of chunk q"
            )
    _check_beside(equation, equation.indices)
    around: tuple[Index, ...] = ()
    for entry, over in walk(equation.value):
        binders = entry.binders
        _check_beside(equation, binders)
        if over is not around:
            around = over
            _check_ranges(equation, over, free | {i.atom for i in over})
        twice = next((i.name for i in binders if i.atom in free), None) if binders else None
        if twice is not None and not isinstance(entry, Composite):
            raise EquationError(
                f"{equation.name}: index {twice} is on the left side and reduced over; use two "
                "indices"
            )
        if isinstance(entry, Div) and entry.right == Constant(Poly()):
            raise EquationError(f"{equation.name}: a division by 0")
        if binders and entry.alone and entry is not equation.value:
            raise EquationError(
                f"{equation.name}: {entry.names[0]} must be the whole right side: define its "
                "result as an array first"
            )
    for ref, over in refs(equation.value):
        for name in names_in(ref.positions):
            if name not in free and all(name != index.atom for index in over):
                raise EquationError(
                    f"{equation.name}: index {atom_name(name)} of {ref.array.name} is unbound; put "
                    f"it on the left side or reduce over it"
                )


def _check_beside(equation: Equation, indices: tuple[Index, ...]) -> None:
    """Raise EquationError if `indices`, those of the left side or of one reduction, contain an
    index that was declared beside another (both change their ranges together) without that other
    index."""
    for index in indices:
        if index.beside and all(other.atom != index.beside for other in indices):
            other = atom_name(index.beside)
            raise EquationError(
                f"{equation.name}: {index.name} is declared beside {other}: put both on the left "
                "side, or reduce over both"
            )


def _without_positions(equation: Equation) -> Equation:
    """The equation; EquationError if its array was declared to hold positions."""
    if equation.array.below is not None:
        raise EquationError(
            f"{equation.name} holds positions: define it by argmax, top_k or sort alone"
        )
    return equation


def _scanned(equation: Equation) -> Equation:
    """The equation, a scan, unchanged; EquationError if the left side has not one index in place of
    the scanned one, with the same range, if the range of a column names this index, or if the array
    holds positions (`below=`)."""
    assert isinstance(equation.value, Scan)
    (row,) = equation.value.over
    read = names_in(equation.value.body.positions)
    made = [i for i in equation.indices if i.atom not in read]
    if [(i.lower, i.upper) for i in made] != [(row.lower, row.upper)]:
        raise EquationError(
            f"{equation.name}: the left side of a scan over {row.name} needs one other index with "
            f"the range of {row.name}, as S[i, c] = scan(A[w, c], B[w, c], over=w) has i; got "
            f"{', '.join(i.name for i in made) or 'none'}"
        )
    (number,) = made
    for column in equation.indices:
        if column is not number and number.atom in _letters_of_bounds(column):
            raise EquationError(
                f"{equation.name}: the range of column {column.name} names the row {number.name}, "
                f"but all rows of a scan have the same columns: bound {column.name} without "
                f"{number.name}"
            )
    return _without_positions(equation)


def _with_rank(equation: Equation) -> Equation:
    """The equation of a selection: an argmax unchanged, a top_k or sort with its `rank` set to the
    atom of the index that numbers the positions kept, `@r` for P[i, r] = top_k(s[i, j], over=j).
    EquationError: an array without `below=`, or a left side with no such index or several."""
    chosen = equation.value
    # the rank is the one index of the left side that neither the selection's entries nor, directly
    # or through other bounds, their ranges name
    assert isinstance(chosen, Select)
    if equation.array.below is None:
        raise EquationError(
            f"{equation.name}: {chosen.kind} gives positions: declare the array of positions with "
            "below=, such as f.array('P', l, below=l)"
        )
    if chosen.kind == "argmax":
        return equation
    (over,) = chosen.over
    around = {*names_in(chosen.body.positions)} - {over.atom} | _letters_of_bounds(over)
    for index in reversed(equation.indices):
        around |= _letters_of_bounds(index) if index.atom in around else set()
    left = [index for index in equation.indices if index.atom not in around]
    if len(left) != 1:
        raise EquationError(
            f"{equation.name}: the left side of {chosen.kind} needs one index of its own, as "
            f"P[i, r] = top_k(s[i, j], over=j) has r for the r-th position; got "
            f"{', '.join(index.name for index in left) or 'none'}"
        )
    return replace(equation, value=replace(chosen, rank=left[0].atom))


LEFT_SIDES: Rules[Callable[[Equation], Equation]] = Rules(
    "the left side, for whole right sides",
    {Fft: _without_positions, Scan: _scanned, Select: _with_rank, Composite: _without_positions},
    OPAQUE,
)
"""Kind of node -> the check of the left side of its equation, which returns the equation."""


def _letters_of_bounds(index: Index) -> set[str]:
    """The letters in the bounds of an index: sizes, and other indices as atoms."""
    return {letter for end in index.ends for letter in end.letters}


def rank(equation: Equation) -> Index | None:
    """The index of a selection that numbers the positions of a row; None for an argmax."""
    assert isinstance(equation.value, Select)
    return next((i for i in equation.indices if i.atom == equation.value.rank), None)


def rows(equation: Equation) -> tuple[Index, ...]:
    """The indices of a selection's rows, outer ones first: all free indices but the rank."""
    return tuple(index for index in equation.indices if index != rank(equation))


def _check_ranges(equation: Equation, over: tuple[Index, ...], bound: set[str]) -> None:
    """Raise EquationError if the range of an index in `over`, the reductions around a part of the
    right side, names an index that is not in `bound`: the atoms of the left side and of `over`."""
    for index in over:
        for name in sorted({a for b in index.ends for a in b.letters if is_index(a)}):
            if name not in bound:
                raise EquationError(
                    f"{equation.name}: the range of {index.name} names {atom_name(name)}, which "
                    f"is neither on the left side nor reduced over: put {atom_name(name)} on the "
                    "left side, or reduce over it"
                )
