"""At which larger sizes, in which mode and after which calls does `check --deep` try a module?

Each size takes all values of its range while the others are small; then all sizes are drawn at
once. The number of points at which the equations are evaluated bounds the cost of a draw.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product

from costmodel.language.equations import Mixer, System
from costmodel.language.nodes import walk
from costmodel.program.chosen_sizes import divisors
from costmodel.program.grid import points
from costmodel.program.recurrences import blocks
from costmodel.proofs.tried_sizes import bounding_letters, fits, words

LAYOUTS = ("contiguous", "transposed", "every second channel", "part of a longer tensor")
"""The memory layouts of an input; `trial.laid` makes them."""

SCALES = (1.0, 1.0, 1.0, 1e-3, 30.0, 1000.0)
"""The factors by which the input x is multiplied; 1 is drawn half of the time."""

VALUES = (
    "normal", "negative", "positive", "rectified", "with a row of zeros", "zeros", "of equal rows",
    "zeros from the middle on", "of equal channels", "with one large entry",
)  # fmt: skip
"""The kinds of numbers that an input holds, made by `trial.valued`; a row is the numbers of one
token."""

BATCHES = (*range(1, 10), 16, 17, 31, 32, 33, 64)
LENGTHS = (
    *range(1, 34), 40, 48, 50, 63, 64, 65, 72, 80, 96, 100, 101, 120, 127, 128, 129, 144, 160, 192,
    200, 201, 240, 255, 256, 257, 300, 320, 384, 400, 511, 512, 513, 600, 640, 768, 1000, 1024,
)  # fmt: skip
WIDTHS = (
    *range(1, 18), 20, 24, 28, 31, 32, 33, 40, 48, 60, 63, 64, 65, 72, 80, 96, 100, 127, 128, 129,
    160, 192, 255, 256, 257,
)  # fmt: skip
OTHERS = (*range(1, 13), 15, 16, 17, 20, 24, 31, 32, 33, 40, 48, 63, 64, 65, 96, 100, 128, 129)
RANGES: Mapping[str, Sequence[int]] = {"b": BATCHES, "l": LENGTHS, "d": WIDTHS}
"""The values that a size takes while the others are small: every small value, then powers of two
and their neighbours, multiples of eight, round numbers. A size that is not a key takes `OTHERS`."""

EACH = (*range(1, 17), *range(18, 33, 2), *range(40, 65, 8), 129, 257)
"""The values that each size takes in a plain call of its own, if they are in its range: small ones,
even ones, multiples of eight, and two large ones, as a module with a bound such as l > 200 would
else be called beyond the bound by the slowest draws alone."""
EQUAL = (3, 8, 20, 33)
"""The values that each two sizes have together in a plain call: d = l = 20 for instance, where a
module that tells axes apart by their extents is wrong."""

GROUP = 16
"""The number of draws in a group of `spread`."""

TOGETHER = 50
"""The number of draws in which every size is drawn from its whole range."""

MOST_POINTS = 2_000_000
"""The most points at which the equations of one draw are evaluated: some tenths of a second."""

LONGER = 8
"""A few draws, such as loops of hundreds of rows, may take so many times the most points."""
LONGER_SHARE = 16
"""The points of all these draws together, as a multiple of the most points of one draw."""

ROW_POINTS = 1500
"""One equation at one row of a loop takes as long to evaluate as this many points."""


@dataclass(frozen=True)
class Draw:
    """One way to call a module; the defaults are the plain way."""

    sizes: Mapping[str, int]
    b: int = 1
    train: bool = False
    layout: str = LAYOUTS[0]
    scale: float = 1.0
    values: str = VALUES[0]
    threads: int = 1
    """How many threads torch computes with; with two, the module is called from another thread."""
    before: str = ""
    """What happens before the call, in words; one of `profiler.proofs.history.EVENTS`."""

    def __post_init__(self) -> None:
        """Make the sizes hashable, so that a draw is."""
        object.__setattr__(self, "sizes", _Sizes(self.sizes))

    def words(self) -> str:
        """The draw in words, default conditions left out: "b = 2, l = 7, in train mode"."""
        said = [words({"b": self.b, **self.sizes})]
        said += ["in train mode"] * self.train
        said += [f"x {self.layout}"] * (self.layout != LAYOUTS[0])
        said += [f"x times {self.scale:g}"] * (self.scale != 1)
        said += [f"x {self.values}"] * (self.values != VALUES[0])
        said += [f"called in another thread, torch with {self.threads}"] * (self.threads != 1)
        said += [self.before] * bool(self.before)
        return ", ".join(said)

    def plainer(self) -> Iterator[Draw]:
        """Yield the draws (ways to call a module) that differ from this one by one condition, such
        as train mode, set back to its default."""
        plain = Draw(self.sizes, self.b)
        for one in (
            replace(self, train=plain.train),
            replace(self, layout=plain.layout),
            replace(self, scale=plain.scale),
            replace(self, values=plain.values),
            replace(self, threads=plain.threads),
            replace(self, before=plain.before),
        ):
            if one != self:
                yield one

    @property
    def smooth(self) -> bool:
        """Whether difference quotients show gradients: they fail at large inputs and at kinks."""
        return self.scale <= 1 and self.values == VALUES[0]

    def value(self, letter: str) -> int:
        """One size, or the batch."""
        return self.b if letter == "b" else self.sizes[letter]

    def at(self, letter: str, value: int) -> Draw:
        """This draw with `value` for one size, or for the batch ("b")."""
        if letter == "b":
            return replace(self, b=value)
        return replace(self, sizes={**self.sizes, letter: value})


def draws(
    mixer: Mixer, system: System, seed: int, before: Sequence[str], most: int = MOST_POINTS
) -> list[Draw]:
    """Draw the ways (sizes, mode, layout, ...) in which a module is called: the same for the same
    seed, cheapest first. Each value of each size (`RANGES`) is wanted once, l = 1024 for instance,
    beside small values of other sizes; then `TOGETHER` draws have all sizes at random.

    Args:
        system: the equations whose evaluation is the cost of a draw.
        before: the events that may happen before a call, in words ("as a deep copy").
        most: the most points of a draw, but for a few draws of up to `LONGER` times as many, which
            together have `LONGER_SHARE` times as many; sizes that cost more, or that the mixer
            refuses, are drawn again, 20 times in all, and then left out.
    """
    chance = random.Random(f"{mixer.name} {seed}")
    letters = tuple(dict.fromkeys(["l", *(x for x in mixer.letters if x != "b")]))
    wanted: list[dict[str, int]] = [
        {letter: value} for letter in ("b", *letters) for value in RANGES.get(letter, OTHERS)
    ]
    wanted += [{}] * TOGETHER
    chance.shuffle(wanted)
    found: dict[Draw, int] = {}
    left = LONGER_SHARE * most
    for fixed in wanted:
        for _ in range(20):
            b, sizes = _drawn(mixer, letters, fixed, chance)
            if not fits(mixer, sizes):
                continue
            cost = b * evaluated_points(system, sizes)
            if cost <= most or cost <= min(left, LONGER * most):
                left -= cost if cost > most else 0
                found[_conditioned(b, sizes, before, chance)] = cost
                break
    return sorted(found, key=lambda draw: found[draw])


def at_each_size(mixer: Mixer, system: System, seed: int, most: int = MOST_POINTS) -> list[Draw]:
    """Draw a plain call (a `Draw` with defaults) for each value in `EACH` of each size (d = 24) and
    for each value in `EQUAL` of each two sizes (d = l = 20), beside small values of other sizes:
    the smallest values first, the same for the same seed. Left out are values in `EACH` beyond the
    range of a size, and values with which 20 draws do not fit the mixer or cost beyond `most`."""
    chance = random.Random(f"{mixer.name} {seed} each size")
    letters = tuple(dict.fromkeys(["l", *(x for x in mixer.letters if x != "b")]))
    wanted = [
        {letter: value}
        for value, letter in product(EACH, ("b", *letters))
        if value <= RANGES.get(letter, OTHERS)[-1]
    ]
    pairs = combinations(("b", *letters), 2)
    wanted += [dict.fromkeys(pair, value) for pair, value in product(pairs, EQUAL)]
    found: dict[Draw, None] = {}
    for fixed in sorted(wanted, key=lambda one: max(one.values())):
        for _ in range(20):
            b, sizes = _drawn(mixer, letters, fixed, chance)
            if fits(mixer, sizes) and b * evaluated_points(system, sizes) <= most:
                found[Draw(sizes, b)] = None
                break
    return [*found]


def spread(drawn: Sequence[Draw]) -> list[Draw]:
    """A copy of the draws (ways to call a module) reordered, so that the first `GROUP`, and each
    further group, cover the range of every size: for each size the draw with its largest value,
    then the middle one, then those between (a van der Corput sequence). Within a group draws keep
    the order in which they came. Places in the range: 1, 1/2, 3/4, 1/4, 7/8, ..."""
    letters = ("b", *drawn[0].sizes) if drawn else ()
    by_size = [sorted(drawn, key=lambda draw: draw.value(letter)) for letter in letters]
    found: dict[Draw, None] = {}
    for number in range(len(drawn)):
        bits = f"{number:b}"
        share = 1 - int(bits[::-1], 2) / 2 ** len(bits)
        found |= dict.fromkeys(one[round(share * (len(drawn) - 1))] for one in by_size)
    all_ = [*(found | dict.fromkeys(drawn))]
    place = {draw: number for number, draw in enumerate(drawn)}
    groups = (all_[since : since + GROUP] for since in range(0, len(all_), GROUP))
    return [draw for group in groups for draw in sorted(group, key=lambda draw: place[draw])]


def _conditioned(b: int, sizes: dict[str, int], before: Sequence[str], c: random.Random) -> Draw:
    """Make a draw (a way to call a module) of these sizes with random conditions (mode, layout,
    ...), mode, layout and values at their defaults in half of the cases or more; two threads are
    drawn once in eight times. `before`: the events that may precede a call; `c`: the generator."""
    made = Draw(sizes, b)
    return replace(
        made,
        train=c.random() < 0.5,
        layout=c.choice(LAYOUTS) if c.random() < 0.5 else LAYOUTS[0],
        scale=c.choice(SCALES),
        values=c.choice(VALUES) if c.random() < 0.5 else VALUES[0],
        threads=c.choice((1,) * 7 + (2,)),
        before=c.choice(before) if c.random() < 0.7 else "",
    )


class _Sizes(dict[str, int]):
    """Sizes that can be hashed."""

    def __hash__(self) -> int:  # type: ignore[override]  # a dictionary has none
        return hash(tuple(self.items()))


def _drawn(
    mixer: Mixer, letters: Sequence[str], fixed: Mapping[str, int], chance: random.Random
) -> tuple[int, dict[str, int]]:
    """Draw (batch, dict: letter -> size): small numbers beside the `fixed` sizes, which stay or, if
    none is fixed, numbers up to the largest of the range, small ones more often. A size with a
    divisor, as d with n in d/n, is made a multiple of the divisor; a fixed size gets a divisor that
    divides it. The result may still not fit the mixer, which the caller tests."""
    bounds = bounding_letters(mixer)

    def any_of(letter: str) -> int:
        """A number from 1 to the largest value of a size, uniform in its logarithm."""
        values = RANGES.get(letter, OTHERS)
        return round(math.exp(chance.uniform(0, math.log(values[-1]))))

    if not fixed:
        sizes = {x: any_of(x) for x in letters}
        b = min(any_of("b"), any_of("b"))
    else:
        sizes = {x: fixed.get(x) or chance.randint(1, 5) for x in letters}
        b = fixed.get("b") or chance.randint(1, 3)
        for letter in bounds:  # a window has an effect only in a longer sequence
            if letter in fixed and "l" not in fixed:
                sizes["l"] = max(1, fixed[letter] + chance.randint(-2, fixed[letter] + 4))
            elif letter not in fixed and "l" in fixed:
                sizes[letter] = chance.randint(1, max(5, min(fixed["l"] + 2, OTHERS[-1])))
    divided = divisors(mixer)
    for size, by in divided.items():  # from the innermost divisor on
        if size not in fixed:
            times = max(1, sizes[size] // sizes[by]) if not fixed else chance.randint(1, 3)
            sizes[size] = sizes[by] * times
    for size, by in reversed([*divided.items()]):
        if by not in fixed and sizes[size] % sizes[by]:
            sizes[by] = chance.choice([k for k in range(1, 1 + sizes[size]) if not sizes[size] % k])
    return b, sizes


def evaluated_points(system: System, sizes: Mapping[str, int], row_points: int = ROW_POINTS) -> int:
    """The estimated cost of evaluating the equations at these sizes, in points: for each equation
    the product of the extents of its indices and of those of its largest sum: y[t, i] = sum(j) ...
    has l*d*d. Each equation in a loop adds `row_points` for each row, which takes as long."""
    at = tuple(sizes.items())
    total = 0
    for equation in system.equations:
        overs = _reductions(equation.value)
        total += max(math.prod(points(equation.indices + over, at).shape) for over in overs)
    for block in _blocks(system):
        if block.is_loop:
            rows = max(array.shape[axis].at(sizes) for array, axis in block.axes.items())
            total += rows * len(block.equations) * row_points
    return total


_blocks = cache(blocks)


@cache
def _reductions(value: object) -> tuple[tuple, ...]:  # type: ignore[type-arg]
    """The distinct tuples of reduced indices in an expression, () for parts without a sum."""
    return tuple({tuple(over) for _, over in walk(value)})  # type: ignore[arg-type]


def range_words(tried: Sequence[Draw]) -> str:
    """The ranges of sizes that were tried, in words: `b 1 to 64, l 1 to 1024`."""
    columns: dict[str, list[int]] = {}
    for draw in tried:
        for letter, value in {"b": draw.b, **draw.sizes}.items():
            columns.setdefault(letter, []).append(value)
    return ", ".join(f"{letter} {min(v)} to {max(v)}" for letter, v in columns.items())
