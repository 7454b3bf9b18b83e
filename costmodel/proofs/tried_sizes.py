"""The sizes at which a mixer is checked, chosen so that every bound of its equations is crossed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from costmodel.errors import EquationError, SizeError, Unsupported
from costmodel.language.equations import Form, Mixer
from costmodel.language.indices import Index
from costmodel.language.nodes import walk
from costmodel.program.chosen_sizes import divisors, fit, raised
from costmodel.program.lowering import lower

Sizes = Mapping[str, int]

PRIMES = (2, 3, 5, 7)

LONG = 67
"""The length of the long sequence: beyond 64, and no multiple of a window or a chunk."""


def small_sizes(mixer: Mixer) -> list[dict[str, int]]:
    """Sets of sizes from small to large: all ones, then small primes, handed out in turn; d beside
    n, and each size with a divisor among the sizes (at most 3), is 2 times its divisor (in the set
    of ones, both are 1), or more if an extent or bound needs it (`raised`): l = 2, n = 3, d = 6. If
    a set does not fit the mixer, its d, if any, is doubled up to twice; a set that does not fit
    then is left out.

    Raises:
        SizeError: no set of small sizes fits the mixer.
    """
    letters = tuple(dict.fromkeys(["l", *mixer.letters]))
    found: list[dict[str, int]] = []
    for shift in range(-1, len(PRIMES) - 1):
        if shift < 0:  # the set of ones
            sizes = dict.fromkeys(letters, 1)
        else:
            sizes = {x: PRIMES[(k + shift) % len(PRIMES)] for k, x in enumerate(letters)}
        if "n" in sizes and "d" in sizes:
            sizes["n"] = min(sizes["n"], 3)
            sizes["d"] = sizes["n"] * (1 if shift < 0 else 2)
        divided = divisors(mixer)
        for size, by in divided.items():
            if by not in divided:
                sizes[by] = min(sizes[by], 3)
            sizes[size] = sizes[by] * (1 if shift < 0 else 2)
        sizes = raised(mixer, sizes)
        for scale in (1, 2, 4) if "d" in sizes else (1,):
            whole = {**sizes, **({"d": sizes["d"] * scale} if scale > 1 else {})}
            if fits(mixer, whole):
                found.append(whole)
                break
    if not found:
        raise SizeError(f"{mixer.name}: at none of the sizes tried are all extents whole numbers")
    return sorted(found, key=lambda s: math.prod(s.values()))


def crossing_sizes(mixer: Mixer) -> list[dict[str, int]]:
    """Sets of sizes with lengths from 1 to beyond every bound of an index. Sizes in bounds
    (windows, chunks) are all 1 at three rows, then 2, 3, ... in ascending and in descending order;
    all other sizes are small. Sets that do not fit the mixer are left out."""
    letters = bounding_letters(mixer)
    ones = [_around(mixer, 3, dict.fromkeys(letters, 1))] if letters else []
    ascending = {letter: 2 + k for k, letter in enumerate(letters)}
    descending = {letter: 1 + len(letters) - k for k, letter in enumerate(letters)}
    # beyond all bounds together, the largest of them once more, and the largest constant
    reach = 2 + sum(ascending.values()) + max(ascending.values(), default=1) + _constant(mixer)
    orders = [ascending, descending] if len(letters) > 1 else [ascending]
    found = ones + [_around(mixer, l, bounds) for bounds in orders for l in range(1, reach + 1)]
    return [sizes for sizes in found if fits(mixer, sizes)]


def long_sizes(mixer: Mixer) -> list[dict[str, int]]:
    """One set with a long sequence and small other sizes; [] if no length up to 2*LONG fits."""
    bounds = {letter: 2 + k for k, letter in enumerate(bounding_letters(mixer))}
    found = (_around(mixer, length, bounds) for length in range(LONG, 2 * LONG))
    return next(([sizes] for sizes in found if fits(mixer, sizes)), [])


def equation_sizes(mixer: Mixer) -> list[dict[str, int]]:
    """The sizes at which equations are executed: `small_sizes`, then `crossing_sizes`."""
    return _distinct([*small_sizes(mixer), *crossing_sizes(mixer)])


def module_sizes(mixer: Mixer) -> list[dict[str, int]]:
    """The sizes at which modules are executed: `equation_sizes`, then `long_sizes`."""
    return _distinct([*equation_sizes(mixer), *long_sizes(mixer)])


def sizes_tried(mixer: Mixer) -> dict[str, list[dict[str, int]]]:
    """What is executed, "equations" or "modules" -> its sets of sizes; [] if no small sizes fit."""
    try:
        return {"equations": equation_sizes(mixer), "modules": module_sizes(mixer)}
    except SizeError:
        return {"equations": [], "modules": []}


def whole_length(mixer: Mixer, sizes: Sizes, length: int) -> int:
    """The first length from `length` to `length` + the largest size that fits; else `length`."""
    tried = range(length, length + 1 + max(sizes.values()))
    return next((l for l in tried if fits(mixer, {**sizes, "l": l})), length)


def fits(mixer: Mixer, sizes: Sizes) -> bool:
    """Whether sizes fit the mixer: every extent is an integer, every size that is declared a power
    of two is one, and no size exceeds its declared bound (`at_most`)."""
    try:
        fit(mixer, sizes)
    except SizeError:
        return False
    return True


def words(sizes: Sizes) -> str:
    """Sizes as text: `l = 2, d = 3`."""
    return ", ".join(f"{letter} = {value}" for letter, value in sizes.items())


def all_words(tried: Sequence[Sizes]) -> str:
    """Sets of sizes, each with a length l, as text; sets that differ only in l share a phrase:
    `l = 1 to 4 with d = 2`."""
    lengths: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for sizes in tried:
        others = tuple((letter, value) for letter, value in sizes.items() if letter != "l")
        lengths.setdefault(others, []).append(sizes["l"])
    return "; ".join(
        f"l = {_ranges(sorted(found))}" + (f" with {words(dict(others))}" if others else "")
        for others, found in lengths.items()
    )


def bounding_letters(mixer: Mixer) -> tuple[str, ...]:
    """The letters of sizes of windows and chunks: all but l and b that occur in a bound with an
    index or with l, or in one of several bounds of the same end, such as min_(C, l)."""
    found: set[str] = set()
    for index in _indices(mixer):
        for side in (index.lower, index.upper):
            for end in side:
                compared = len(side) > 1 or end.variables or "l" in end.letters
                found |= end.letters - end.variables if compared else set()
    return tuple(letter for letter in mixer.letters if letter in found - {"l", "b"})


def _indices(mixer: Mixer) -> Iterator[Index]:
    """Yield the indices of every form; an index over a union is split into its ranges."""
    for form in mixer.forms.values():
        for index in _written_out(form):
            yield from index.pieces


def _written_out(form: Form) -> Iterable[Index]:
    """The indices of a form, and those of its composites (operations such as softmax that stand for
    several equations) after they are written out."""
    found = dict.fromkeys(form.indices.values())
    try:
        equations = lower(form).equations
    except (EquationError, Unsupported):  # the first proof reports the reason
        return found
    for equation in equations:
        found |= dict.fromkeys(equation.indices)
        found |= dict.fromkeys(i for _, over in walk(equation.value) for i in over)
    return found


def _constant(mixer: Mixer) -> int:
    """The largest absolute constant in a bound of an index; 0 without bounds."""
    ends = (end for index in _indices(mixer) for end in (*index.lower, *index.upper))
    return max((abs(int(end.terms.get((), 0))) for end in ends), default=0)


def _around(mixer: Mixer, length: int, bounds: Sizes) -> dict[str, int]:
    """Small sizes with a given length, and given values of the sizes in bounds; all others are 1,
    and d is 2*n."""
    others = {letter: bounds.get(letter, 1) for letter in mixer.letters}
    width = {"d": 2 * others.get("n", 1)} if "d" in others and "d" not in bounds else {}
    found = {"l": length, **{x: v for x, v in others.items() if x != "l"}, **width}
    return raised(mixer, found)


def _distinct(tried: Iterable[dict[str, int]]) -> list[dict[str, int]]:
    """Sets of sizes in order, without repetitions."""
    return list({tuple(sizes.items()): sizes for sizes in tried}.values())


def _ranges(values: Sequence[int]) -> str:
    """Ascending numbers as text: `1 to 4, 67`."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(
        str(low) if low == high else f"{low}{' to ' if high > low + 1 else ', '}{high}"
        for low, high in runs
    )
