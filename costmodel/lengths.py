"""At which values of one size is a count positive, exactly, the other sizes being given?

Between powers of two a count with padded lengths is a polynomial of the size; between the points at
which such a polynomial turns it is monotone, so that every change of sign is found by bisection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from costmodel.atoms import Fn
from costmodel.constraints import Unsupported
from costmodel.exact import Exact
from costmodel.polynomial import Poly
from costmodel.sizes import LARGEST

Range = tuple[int, int]
"""From the first to the last value, both included."""


def positive(count: Exact, letter: str, sizes: Mapping[str, int]) -> list[Range]:
    """The ranges of a size, from 1 to 2**40, in which a count is greater than 0.

    Args:
        count: in sizes; `letter` is free, `sizes` gives the others.

    Raises:
        Unsupported: a piecewise count, or a function of the size other than a padding to a power of
            two.

    >>> l = Poly.atom("l")
    >>> positive(Exact.of(l * l - 10 * l + 21), "l", {})
    [(1, 2), (8, 1099511627776)]
    """
    if any(guards for guards, _ in count.pieces):
        raise Unsupported("a piecewise count: its threshold is not solved")
    total = sum((poly for _, poly in count.pieces), Poly())
    given = {name: Poly.of(value) for name, value in sizes.items() if name != letter}
    total = total.substitute(given)
    found: list[Range] = []
    for low, high in _bands():
        for first, last in _positive(_in_band(total, letter, low, high), letter, low, high):
            if found and found[-1][1] == first - 1:
                found[-1] = found[-1][0], last
            else:
                found.append((first, last))
    return found


def _bands() -> Iterator[Range]:
    """1, 2, 3..4, 5..8, ...: where lengths are padded alike."""
    yield 1, 1
    low = 1
    while low < LARGEST:
        yield low + 1, 2 * low
        low *= 2


def _in_band(poly: Poly, letter: str, low: int, high: int) -> Poly:
    """The polynomial with its functions put in, which are constant between two powers of two."""
    values: dict[str, Poly] = {}
    for atom in poly.atoms:
        if isinstance(atom, Fn):
            ends = [Poly.atom(atom).at({letter: size}) for size in (low, high)]
            padded = all(set(a.letters) <= {letter} for a in atom.args) and _steps_at_powers(atom)
            if ends[0] != ends[1] or not padded:
                raise Unsupported(f"{Poly.atom(atom)} changes between two powers of two")
            values[atom] = Poly.of(ends[0])
    return poly.substitute(values)


def _steps_at_powers(atom: Fn) -> bool:
    """Whether a function changes at powers of two only: ceil_log2(l), and 2 to that."""
    (argument,) = atom.args if len(atom.args) == 1 else (Poly(),)
    if atom.function == "ceil_log2":
        return len(argument.terms) == 1 and argument.coefficient(next(iter(argument.atoms))) == 1
    return atom.function == "pow2" and all(
        isinstance(inner, Fn) and _steps_at_powers(inner) for inner in argument.atoms
    )


def _positive(poly: Poly, letter: str, low: int, high: int) -> Iterator[Range]:
    """Where a polynomial of one size is positive within a range."""
    cuts = [low, *_changes(poly, letter, low, high), high + 1]
    for first, after in pairwise(cuts):
        if first < after and poly.rational({letter: first}) > 0:
            yield first, after - 1


def _changes(poly: Poly, letter: str, low: int, high: int) -> list[int]:
    """The values in low+1..high at which being positive starts or ends."""
    if low >= high:
        return []
    turns = [low, *_turns(poly, letter, low, high), high]
    found: list[int] = []
    for first, last in pairwise(turns):
        before, after = (poly.rational({letter: x}) > 0 for x in (first, last))
        if before == after:
            continue
        while last - first > 1:
            middle = (first + last) // 2
            if (poly.rational({letter: middle}) > 0) == before:
                first = middle
            else:
                last = middle
        found.append(last)
    return found


def _turns(poly: Poly, letter: str, low: int, high: int) -> Sequence[int]:
    """Values between which a polynomial is monotone: around every change of its slope's sign."""
    slope = _derivative(poly, letter)
    if slope.constant() is not None:
        return []
    around = {x for turn in _changes(slope, letter, low, high) for x in (turn - 1, turn)}
    around |= {x for turn in _changes(-slope, letter, low, high) for x in (turn - 1, turn)}
    return sorted(x for x in around if low < x < high)


def _derivative(poly: Poly, letter: str) -> Poly:
    result = Poly()
    for monomial, number in poly.terms.items():
        powers = dict(monomial)
        power = powers.pop(letter, 0)
        if power < 0 or powers:
            raise Unsupported(f"{poly} is no polynomial of {letter} alone")
        if power:
            result = result + Poly.atom(letter) ** (power - 1) * (number * power)
    return result
