"""The sizes that a command line asks for, with defaults for the others.

values:  128    32k (32*1024)    1,8,32    1:9:2 (a step)    128:16384:x2 (a factor)    1,8:64:x2
    l (the value of size l)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import cache
from itertools import product
from math import floor, isqrt, lcm
from typing import Any

from costmodel.errors import SizeError, Unsupported, shortened
from costmodel.language.equations import Form, Mixer
from costmodel.language.nodes import polys_of, walk
from costmodel.language.options import braces
from costmodel.symbolic.at_sizes import array_of
from costmodel.symbolic.constraints import quotients
from costmodel.symbolic.polynomial import Number, Poly, is_index
from costmodel.symbolic.sizes import (
    LARGEST,
    LETTERS,
    Letter,
    checked,
    in_order,
    is_letter,
    whole,
)

MOST = 100_000
"""The largest number of values of one size, and of combinations of sizes; more are refused."""

Given = Mapping[str, tuple[int, ...] | str]
"""Size letter -> the values that the user gave, or the letter of another size, which the size is
tied to: it has the value of that size in each row."""


def values(letter: str, text: str) -> tuple[int, ...]:
    """The values of one size as typed, each once: numbers and ranges, separated by commas.

    >>> values("l", "1,8:64:x2"), values("l", "1:9:2"), values("l", "3:5")
    ((1, 8, 16, 32, 64), (1, 3, 5, 7, 9), (3, 4, 5))

    Raises:
        SizeError: what was expected and what came.
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        for value in _range(letter, part.strip() or text):
            checked({letter: value}, letter)
            found[value] = None
            if len(found) > MOST:
                raise SizeError(f"size {letter}: '{text}' has more than {MOST} values: give fewer")
    return tuple(found)


def _range(letter: str, part: str) -> Iterator[int]:
    """Yield the numbers of one part of a typed list: `first:last`, `first:last:step`,
    `first:last:xfactor`, or one number. Raises SizeError: text of another kind, first > last, first
    or step below 1, a factor below 2, or a `last` that is too large for a size."""
    ends = part.split(":")
    if len(ends) == 1:
        yield _whole(letter, part, part)
        return
    if len(ends) > 3:
        raise SizeError(f"size {letter}: expected first:last:step, got '{part}'")
    value, last = _whole(letter, ends[0], part), _whole(letter, ends[1], part)
    step = ends[2] if len(ends) == 3 else "1"
    factor = step.startswith("x")
    change = _whole(letter, step[1:] if factor else step, part)
    wrong = f"size {letter}: '{part}' is no range"
    if change < (2 if factor else 1):
        least = "factor of x2 or more" if factor else "step of 1 or more"
        raise SizeError(f"{wrong}: expected a {least}")
    if value < 1:
        raise SizeError(f"{wrong}: expected a first size of 1 or more")
    if last < value:
        raise SizeError(f"{wrong}: expected the smaller size first")
    checked({letter: last}, letter)
    while value <= last:
        yield value
        value = value * change if factor else value + change


def _whole(letter: str, text: str, part: str) -> int:
    """The integer that a text states (`whole`); SizeError, which shows the part of the typed list
    that the text belongs to, if the text is no integer."""
    found = whole(letter, text)
    if found is None:
        raise SizeError(
            f"size {letter} must be a positive integer, a list 1,8,32 or a range 128:16384:x2, "
            f"got '{shortened(part)}'"
        )
    return found


def given_sizes(typed: Mapping[str, str | None]) -> Given:
    """Size -> its values, or the size that it is tied to (`t` as `l`), for every size that was
    typed; letters with None are left out.

    >>> given_sizes({"l": "2,4", "t": "l", "d": None})
    {'l': (2, 4), 't': 'l'}

    Raises:
        SizeError: what was expected and what came.
    """
    return {
        letter: text if is_letter(text) else values(letter, text)
        for letter, text in typed.items()
        if text is not None
    }


def ties(given: Given) -> dict[str, str]:
    """Size -> the size that it is tied to (must equal), for the sizes given as a letter.

    Raises:
        SizeError: a size that is tied to itself, or to a size that is tied.
    """
    found = {letter: other for letter, other in given.items() if isinstance(other, str)}
    for letter, other in found.items():
        if other in found:
            raise SizeError(
                f"size {letter} is tied to {other}, which is itself tied to {found[other]}: "
                "expected a number, or a size that is not tied"
            )
    return found


def listed(given: Given) -> dict[str, tuple[int, ...]]:
    """The sizes that have values of their own: {"l": (2, 4), "t": "l"} gives {"l": (2, 4)}."""
    return {letter: found for letter, found in given.items() if isinstance(found, tuple)}


def sizes_in_python(sizes: Mapping[str, Any]) -> Given:
    """Size -> its values, for every size that Python code gives: an integer, several (a list, a
    range, a numpy array), or a text as on the command line.

    >>> sizes_in_python({"l": "128:512:x2", "d": [64, 128], "n": 8})
    {'l': (128, 256, 512), 'd': (64, 128), 'n': (8,)}

    Raises:
        SizeError: what was expected and what came.
    """
    found: dict[str, tuple[int, ...] | str] = {}
    for letter, given in sizes.items():
        if isinstance(given, str):
            found |= given_sizes({letter: given})
            continue
        several = array_of(letter, given).ravel().tolist()
        if not several:
            raise SizeError(f"size {letter}: expected an integer or several, got none")
        for value in several:
            checked({letter: value}, letter)
        found[letter] = tuple(dict.fromkeys(several))
    return found


def letters_of(mixer: Mixer, phase: str, form: str | None = None) -> tuple[str, ...]:
    """The sizes that a mixer's rows in a table depend on, in the order of `LETTERS`: the batch b,
    the sizes of the mixer, and t in phase `inference`. With a `form`, only the sizes that occur in
    the form: a chunk size belongs to a chunked form alone."""
    named = mixer.letters if form is None else _letters_in(mixer, mixer.forms[form])
    own = ("b", *named, *(("t",) if phase == "inference" else ()))
    return in_order(own)


@cache
def _letters_in(mixer: Mixer, form: Form) -> tuple[str, ...]:
    """The letters of the sizes of a mixer that occur in a form, in the mixer's order: in its
    equations, its indices and the extents of arrays, the mixer's too. Of the mixer's buffers, such
    as index tables, only those that the form reads count."""
    read = {array for equation in form.equations for array in equation.value.arrays}
    declared = [array for array in mixer.arrays.values() if array.role != "buffer" or array in read]
    polys = [extent for array in declared for extent in array.shape]
    polys += [extent for array in form.arrays.values() for extent in array.shape]
    polys += [bound for index in form.indices.values() for bound in index.ends]
    for equation in form.equations:
        polys += polys_of(equation.positions)
        polys += [poly for node, _ in walk(equation.value) for poly in polys_of(node)]
    found = {letter for poly in polys for letter in poly.letters}
    return tuple(letter for letter in mixer.letters if letter in found)


def default(letter: str, sizes: Mapping[str, int], mixer: Mixer | None = None) -> int:
    """The default of a size, in a mixer if one is given; the default of t is the last position,
    `sizes["l"]`. SizeError if the size has no default."""
    if letter == "t":
        return sizes["l"]
    return usual(LETTERS[letter] if mixer is None else mixer.letter(letter))


def usual(size: Letter) -> int:
    """The default of a size; SizeError if the size has none."""
    if size.default is None:
        raise SizeError(f"size {size.letter} has no default: give {size.letter} a value")
    return size.default


def combinations(
    letters: Sequence[str], given: Given, mixer: Mixer | None = None
) -> list[dict[str, int]]:
    """The combinations of values of `letters`, each as letter -> value: the cross product of the
    given values, with defaults for letters without values. A size that is tied to another size
    (`given` has a letter for it) equals that size in each combination.

    Sizes in braces behind the mixer's name (`Mixer.given`) replace given values.

    >>> combinations(["b", "l", "t"], {"l": (2, 4), "n": (1, 8)})
    [{'b': 1, 'l': 2, 't': 2}, {'b': 1, 'l': 4, 't': 4}]

    Raises:
        SizeError: more than `MOST` combinations, a size without value and default, or a size that
            is tied to a letter outside `letters`, to itself or to a tied size.
    """
    own = {} if mixer is None else {letter: (value,) for letter, value in mixer.given.items()}
    given = {**given, **own}
    tied = {letter: other for letter, other in ties(given).items() if letter in letters}
    typed = {letter: found for letter, found in listed(given).items() if letter in letters}
    named = [letter for letter in letters if letter in typed]
    number = 1
    for letter in named:
        number *= len(typed[letter])
    if number > MOST:
        raise SizeError(
            f"{number} combinations of sizes are given: shorten a list, or widen "
            f"the step of a range, to {MOST} at most"
        )
    found = []
    for chosen in product(*(typed[letter] for letter in named)):
        sizes = dict(zip(named, chosen, strict=True))
        for letter in letters:
            if letter != "t" and letter not in (*sizes, *tied):
                sizes[letter] = default(letter, sizes, mixer)
        for letter, other in tied.items():
            if other not in sizes:
                known = ", ".join(in_order(sizes)) + ("" if mixer is None else f" of {mixer.name}")
                raise SizeError(
                    f"size {letter}: expected numbers or one of the sizes {known}, got {other}"
                )
        sizes |= {letter: sizes[other] for letter, other in tied.items()}
        if "t" in letters and "t" not in sizes:
            # a mixer without size l has one row, and hence one position
            sizes["t"] = default("t", {"l": 1, **sizes})
        found.append({letter: sizes[letter] for letter in letters})
    return found


def refuse_unknown(given: Collection[str], mixers: Sequence[Mixer]) -> None:
    """Raise SizeError for a letter that is neither a size that mixers share (`LETTERS`, without
    those of whole networks) nor a size of one of the mixers; and for a letter that every mixer with
    this letter has in braces (`refuse_in_braces`)."""
    shared = {x for x, size in LETTERS.items() if not size.networks}
    own = {letter for mixer in mixers for letter in mixer.letters}
    for letter in given:
        if letter not in shared | own:
            raise SizeError(no_size(letter, own | {"b", "t"}))
    refuse_in_braces(given, mixers)


def no_size(letter: str, sizes: Iterable[str]) -> str:
    """A sentence which says that no mixer of a command has the size `letter`, and lists the `sizes`
    that the mixers have."""
    return (
        f"size {letter} is a size of none of these mixers: expected one of "
        f"{', '.join(sorted(sizes))}"
    )


def refuse_in_braces(given: Iterable[str], mixers: Sequence[Mixer]) -> None:
    """Raise SizeError for a letter of `given` (sizes set by a user) that all mixers with the letter
    have fixed: in braces, such as attention{n=8}, or, a network, in its configuration."""
    for letter in given:
        having = [m for m in dict.fromkeys(mixers) if letter in {*m.letters, *m.given}]
        if having and all(letter in m.given for m in having):
            names = [m.name for m in having if letter in braces(m.name)]
            saying = [f"the braces of {', '.join(names)} say {letter}"] if names else []
            saying += [f"{m.name} has {letter} = {m.given[letter]}" for m in having
                       if m.name not in names]  # fmt: skip
            free = f": to vary {letter}, leave it out of the braces" if names else ""
            said = f"size {letter} is read by none of these mixers: {' and '.join(saying)}"
            raise SizeError(said + free)


def refuse_foreign(given: Iterable[str], mixers: Iterable[Mixer], phases: Iterable[str]) -> None:
    """Raise SizeError for a letter that is a size of none of the mixers in any of the phases."""
    having = {x for mixer, phase in product(mixers, phases) for x in letters_of(mixer, phase)}
    for letter in given:
        if letter not in having:
            if letter == "t":
                raise SizeError(
                    "none of these mixers has size t in this phase: t is a size of inference"
                )
            raise SizeError(no_size(letter, having))


def one_value(given: Given) -> dict[str, int]:
    """Size -> its only value, without sizes that are tied to another size; SizeError for a size
    with several values."""
    for letter, found in listed(given).items():
        if len(found) > 1:
            raise SizeError(f"size {letter}: expected one value, got {len(found)}")
    return {letter: size for letter, (size, *_) in listed(given).items()}


def one_combination(mixer: Mixer, given: Given, *others: Mixer) -> dict[str, int]:
    """Size -> its value for a mixer, t among them, with defaults for sizes not given, for a command
    that takes one value of each size. `others` are further mixers of the command, whose sizes may
    be given too.

    Raises:
        SizeError: a size with several values, or a size of none of the mixers.
    """
    one_value(given)
    refuse_unknown(given, [mixer, *others])
    (sizes,) = combinations(letters_of(mixer, "inference"), given, mixer)
    return sizes


def fit(
    mixer: Mixer,
    sizes: Mapping[str, int],
    form: str | None = None,
    *,
    advised: bool = True,
    called: Mapping[str, str] | None = None,
) -> None:
    """Check that sizes fit a mixer, or one of its forms: every extent is whole, every quantity of
    `Mixer.powers_of_two` is a power of two, and no size exceeds its bound (`Mixer.bounded_sizes`).
    An extent, quantity or bound with a letter that `sizes` lacks is not checked.

    Args:
        called: letter -> its name in messages, n -> num_heads; None: the letters themselves.

    Raises:
        SizeError: names the extent or quantity and its sizes, such as d/n with d = 100 and n = 8;
            of an extent, if `advised`, also the nearest sizes that fit.
    """
    asked = (extent for extent in extents(mixer, form) if extent.letters <= sizes.keys())
    values = {extent: extent.rational(sizes) for extent in asked}
    broken = [extent for extent, value in values.items() if not isinstance(value, int)]
    if broken:  # if n/g and d/n are fractions, the message names n/g: n is chosen before d
        rank = {size: k for k, size in enumerate(divisors(mixer, form))}
        first = min(broken, key=lambda extent: max(rank.get(x, -1) for x in extent.letters))
        where = _place(mixer, first) if mixer.home else ""
        near = dict(_nearest(mixer, first, values[first], sizes, form)) if advised else {}
        raise SizeError(_not_whole(mixer, first, values[first], sizes, near, called) + where)
    for size in mixer.powers_of_two:
        if size.letters <= sizes.keys() and (value := size.at(sizes)).bit_count() != 1:
            name, said = _named(mixer, called)
            raise SizeError(
                f"{name} needs {said(size)} to be a power of two, got {value} "
                f"({_values(size.letters, sizes, said)})"
            )
    for size, bound in mixer.bounded_sizes:
        letters = size.letters | bound.letters
        if letters <= sizes.keys() and size.at(sizes) > bound.at(sizes):
            name, said = _named(mixer, called)
            raise SizeError(
                f"{name} needs {said(size)} to be at most {said(bound)}, got {size.at(sizes)} and "
                f"{bound.at(sizes)} ({_values(letters, sizes, said)})"
            )


def _named(
    mixer: Mixer, called: Mapping[str, str] | None
) -> tuple[str, Callable[[str | Poly], str]]:
    """(The name of a mixer for a message about sizes, a function that gives the text of a letter or
    of a polynomial in letters). `called`: letter -> its name in messages; the mixer's name is then
    without the braces that give values to letters. None: letters are written as they are."""
    if called is None:
        return mixer.name, str
    names = {letter: Poly.atom(name) for letter, name in called.items()}

    def said(value: str | Poly) -> str:
        return str((Poly.atom(value) if isinstance(value, str) else value).substitute(names))

    return mixer.name.partition("{")[0], said


def _values(
    letters: Collection[str], sizes: Mapping[str, int], said: Callable[[str | Poly], str]
) -> str:
    """The sizes of letters for a message, "d = 100, n = 8"; `said` gives the text of a letter."""
    return ", ".join(f"{said(x)} = {sizes[x]}" for x in sorted(letters))


def fitting(
    mixer: Mixer, letter: str, sizes: Mapping[str, int], tied: Collection[str] = ()
) -> Sequence[int]:
    """The values of the size `letter` at which, with the other sizes, every extent of the mixer is
    whole (`fit`), in ascending order. A size that occurs in numerators only (d in d/n) has the
    multiples of a number, as a range, whose ends obey the bounds between sizes. A size in a
    denominator (n in d/n), or in a quantity that must be a power of two, has a list: the divisors,
    or the powers, that make everything whole.

    Args:
        tied: further sizes that have the same value.

    >>> import costmodel as cm
    >>> fitting(cm.mixer("self-attention"), "d", {"n": 8})
    range(8, 1099511627777, 8)
    >>> fitting(cm.mixer("self-attention"), "n", {"d": 12})
    [1, 2, 3, 4, 6, 12]

    Raises:
        SizeError: the other sizes do not fit each other, or no value fits them.
        Unsupported: with numbers for the other sizes, a quantity that must be whole is neither a
            multiple of the size nor a number over the size.
    """
    others = {x: size for x, size in sizes.items() if x != letter}
    fit(mixer, others)
    known = {x: Poly.of(size) for x, size in others.items()}
    known |= dict.fromkeys(tied, Poly.atom(letter))
    step, chosen = 1, None
    for extent in extents(mixer, None):
        product = extent.substitute(known)
        if product.letters != {letter} or _is_whole(product):
            continue
        power, number = _power_of(product, letter)
        if power > 0:
            step = lcm(step, number.denominator)
        else:
            chosen = _divisors_of(number.numerator)
    for extent in mixer.powers_of_two:
        product = extent.substitute(known)
        if product.letters == {letter}:
            power, number = _power_of(product, letter)
            # number * size**power = 2**k, for every k that a quantity of two sizes can reach
            powers = [(Fraction(2**k) / number) ** power for k in range(2 * LARGEST.bit_length())]
            chosen = [int(x) for x in powers if x.denominator == 1 and x <= LARGEST]

    def fits(size: int) -> bool:
        """Whether the mixer exists with this value of the size `letter` and the tied sizes."""
        with suppress(SizeError):
            fit(mixer, {**others, **dict.fromkeys((letter, *tied), size)})
            return True
        return False

    found: Sequence[int] = range(step, LARGEST + 1, step)
    if chosen is not None:
        found = [size for size in sorted(chosen) if fits(size)]
    else:
        for size, bound in mixer.bounded_sizes:
            found = _with_room(found, letter, (bound - size).substitute(known))
    if not found:
        given = ", ".join(f"{x} = {size}" for x, size in others.items())
        raise SizeError(f"no {letter} exists for {mixer.name} at {given}: change one of the sizes")
    return found


def _with_room(found: Sequence[int], letter: str, room: Poly) -> Sequence[int]:
    """The ascending values `found` of the size `letter` at which `room` is at least 0: those up to
    a value, or from a value on. All of them if `room` depends on another size."""
    if not found or not room.letters <= {letter}:
        return found
    begins = room.rational({letter: found[0]}) >= 0
    end = bisect_left(found, True, key=lambda x: (room.rational({letter: x}) >= 0) is not begins)
    return found[:end] if begins else found[end:]


def _is_whole(extent: Poly) -> bool:
    """Whether a polynomial is whole at all sizes: it has no fraction and divides by no size."""
    powers = (power for monomial in extent.terms for _, power in monomial)
    return all(isinstance(x, int) for x in extent.terms.values()) and all(x > 0 for x in powers)


def _power_of(extent: Poly, letter: str) -> tuple[int, Fraction]:
    """(power, number) of a quantity number * size**power, with power 1 or -1: (1, 1/8) of d/8 and
    (-1, 12) of 12/n. Raises Unsupported: the quantity has another form."""
    terms = {monomial: Fraction(number) for monomial, number in extent.terms.items()}
    for power in (1, -1):
        if terms.keys() == {((letter, power),)}:
            return power, terms[(letter, power),]
    raise Unsupported(
        f"the values of {letter} at which {extent} is whole are not derived: give {letter} a value"
    )


def _divisors_of(number: int) -> list[int]:
    """The divisors of a positive number, without order."""
    small = [x for x in range(1, isqrt(number) + 1) if number % x == 0]
    return [*small, *(number // x for x in small if x * x < number)]


@cache
def extents(mixer: Mixer, form: str | None) -> tuple[Poly, ...]:
    """The quantities, each once, that must be whole numbers at the sizes of a mixer, or in one form
    (None: all forms): extents of arrays, and bounds of indices in sizes alone."""
    forms = mixer.forms.values() if form is None else [mixer.forms[form]]
    arrays = [*mixer.arrays.values(), *(a for f in forms for a in f.arrays.values())]
    extents = {extent: None for array in arrays for extent in array.shape}
    for one in forms:
        for index in one.indices.values():
            fixed = [b for b in index.ends if not any(is_index(a) for a in b.letters)]
            extents.update(dict.fromkeys(fixed))
    return tuple(extents)


@cache
def multiples(mixer: Mixer) -> Mapping[str, int]:
    """Size -> the least number that must divide the size, from extents that are one size over a
    number. Extents R/2 and R/3 give R -> 6; a size without such an extent has no key.

    >>> import costmodel as cm
    >>> multiples(cm.mixer("mla")), multiples(cm.mixer("she"))
    ({'R': 2}, {})
    """
    found: dict[str, int] = {}
    for extent, letter in compound_quotients(mixer).items():
        ((monomial, number),) = extent.terms.items()
        if monomial == ((letter, 1),):
            found[letter] = lcm(found.get(letter, 1), Fraction(number).denominator)
    return found


@cache
def is_extent(mixer: Mixer, form: str, quotient: Poly) -> bool:
    """Whether a quotient of sizes is an extent or a bound of a form, and hence whole."""
    return quotient in extents(mixer, form)


@cache
def divisors(mixer: Mixer, form: str | None = None) -> Mapping[str, str]:
    """Size -> a size that must divide it, from the quotients in extents and bounds of a mixer or of
    one form: d/n gives d -> n. Of several divisors, the last in the alphabet. If n itself has a
    divisor, key n comes before key d. A divisor that its size divides in turn is left out: d/n and
    n/d give d -> n alone."""
    known = {"l", *mixer.letters}
    pairs = {pair for extent in extents(mixer, form) for pair in quotients(extent)}
    found: dict[str, str] = {}

    def chain(size: str) -> list[str]:
        """The size, its divisor, the divisor of that, and so on."""
        return [size, *chain(found[size])] if size in found else [size]

    for size, by in sorted(pair for pair in pairs if known.issuperset(pair)):
        if size not in chain(by):
            found[size] = by
    return {size: found[size] for size in sorted(found, key=lambda size: len(chain(size)))}


@cache
def has_other_quotients(mixer: Mixer) -> bool:
    """Whether some extent or bound has a denominator and is not a size over the one divisor that
    `divisors` names for the size: d/2, d*v/n, or d/g where `divisors` has d -> n. If so, sizes that
    these divisors divide may still give a fraction, and only `fit` shows whether they do."""
    plain = {Poly.atom(size) / Poly.atom(by) for size, by in divisors(mixer).items()}
    return any(
        extent not in plain
        and any(
            Fraction(number).denominator > 1 or any(power < 0 for _, power in monomial)
            for monomial, number in extent.terms.items()
        )
        for extent in extents(mixer, None)
    )


@cache
def compound_quotients(mixer: Mixer, form: str | None = None) -> Mapping[Poly, str]:
    """Extent -> the first size of its numerator, for extents and bounds of one term with a number
    or several sizes in the denominator, such as h/2 -> h and d/(n*r) -> d. Such an extent can be a
    fraction although each size is divisible by its divisor (`divisors`). Extents with numerator l
    are left out."""
    found = {}
    for extent in extents(mixer, form):
        (monomial, number), *others = extent.terms.items() if extent.terms else [((), 1)]
        below = sum(power < 0 for _, power in monomial)
        if not others and (below > 1 or Fraction(number).denominator > 1):
            found[extent] = next((atom for atom, power in monomial if power > 0), "")
    widths = {*mixer.letters} - {"l"}
    return {extent: above for extent, above in found.items() if above in widths}


def raised(mixer: Mixer, sizes: Mapping[str, int], form: str | None = None) -> dict[str, int]:
    """The sizes, for trials at small sizes, raised such that each extent with a number or several
    sizes in its denominator is whole (for an extent h/2, h = 3 becomes h = 6), and then such that
    no size exceeds its bound (for r = 2 and the bound d/n = 1, d becomes 3*d, and r is less than
    d/n)."""
    found = dict(sizes)
    for extent, above in compound_quotients(mixer, form).items():
        found[above] *= Fraction(extent.rational(found)).denominator
    for size, bound in mixer.bounded_sizes:
        ratio = Fraction(size.rational(found)) / bound.rational(found)
        above = next(atom for monomial in bound.terms for atom, power in monomial if power > 0)
        found[above] *= floor(ratio) + 1 if ratio > 1 else 1
    return found


def _place(mixer: Mixer, extent: Poly) -> str:
    """The end of a message, "; d/n bounds index j (FILE, line 7)": the index that `extent` bounds,
    or the array that has an axis of it, with file and line if a form declares it; "" for neither,
    and for an index or array of a derived form, such as one of gradients."""
    for form in mixer.forms.values():
        for index in form.indices.values():
            if extent in index.ends and index.name in form.places:
                return f"; {extent} bounds index {index.name} ({form.places[index.name]})"
        for array in form.arrays.values():
            if extent in array.shape and array.name in form.array_places:
                return f"; {extent} is an axis of {array.name} ({form.array_places[array.name]})"
    of = [array.name for array in mixer.arrays.values() if extent in array.shape]
    return f"; {extent} is an axis of {of[0]}" if of else ""


def _not_whole(
    mixer: Mixer,
    extent: Poly,
    value: Number,
    sizes: Mapping[str, int],
    near: Mapping[str, str],
    called: Mapping[str, str] | None,
) -> str:
    """The error message for an extent that is a fraction at these sizes, with the sizes to change
    and `near`, such as {"d": "96 or 104"}: "self-attention needs d/n to be whole, got 25/2 (d =
    100, n = 8); choose d divisible by n, such as d = 96 or 104". `called`: letter -> its name."""
    mixers_name, said = _named(mixer, called)
    where = _values(extent.letters, sizes, said)
    below = [said(x) for x in sorted({a for m in extent.terms for a, p in m if p < 0})]
    above = [said(x) for x in sorted({a for m in extent.terms for a, p in m if p > 0})]
    advice = f"choose another value of {' or '.join(map(said, sorted(extent.letters)))}"
    if len(extent.terms) == 1:
        divisor = Fraction(*extent.terms.values()).denominator
        below = [*[str(divisor)] * (divisor > 1), *below]
    if above and below:
        both = "*" if len(extent.terms) == 1 else " and "
        advice = f"choose {both.join(above)} divisible by {both.join(below)}"
    examples = ", or ".join(f"{said(x)} = {values}" for x, values in near.items())
    advice += f", such as {examples}" if near else ""
    return f"{mixers_name} needs {said(extent)} to be whole, got {value} ({where}); {advice}"


NEAR = 100
"""How many values of a size are tried on each side of the value that does not fit."""


def _nearest(
    mixer: Mixer, extent: Poly, value: Number, sizes: Mapping[str, int], form: str | None
) -> Iterator[tuple[str, str]]:
    """Yield, for each size of an extent of one term that is a fraction at these sizes, the nearest
    values below and above at which the sizes fit, the others unchanged: (d, "126 or 129") and
    (n, "2 or 4") for d/n with d = 128 and n = 3. Nothing for a size without a value nearby."""
    (monomial, _), *others = extent.terms.items()

    def fits(letter: str, size: int) -> bool:
        """Whether the sizes fit with another value of one of them."""
        with suppress(SizeError):
            fit(mixer, {**sizes, letter: size}, form, advised=False)
            return True
        return False

    letters = ((x, power) for x, power in monomial if x in sizes and power in (1, -1))
    for letter, power in () if others else letters:
        size = sizes[letter]
        # the extent is whole at multiples of a number, or at divisors of a number
        step = Fraction(value, size).denominator if power == 1 else 1
        low = (size - 1) // step * step
        sides = range(low, 0, -step)[:NEAR], range(low + step, LARGEST + 1, step)[: NEAR + 1]
        tried = ((x for x in side if power == 1 or not value * size % x) for side in sides)
        near = [next((x for x in side if fits(letter, x)), 0) for side in tried]
        if any(near):
            yield letter, " or ".join(str(x) for x in near if x)
