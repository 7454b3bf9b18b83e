"""Transforms and selections, executed operation by operation.

Fourier transforms are recursive radix-2 transforms over complex numbers that tally their real
operations. Every twiddle factor is multiplied (4 multiplications, 2 additions), the trivial ones
too; a real transform counts as half a complex one. A length that is not a power of two is counted
by the same formula with its logarithm rounded up, and evaluated as a plain sum.

Selections compare contenders that know their depth in comparisons: a knockout tournament (argmax),
one tournament per position with earlier winners masked (top-k), Batcher's bitonic network (sort).
Ties: the first of equal values wins where the largest is sought, and comes first in a sort.
"""

from __future__ import annotations

import cmath
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from costmodel.errors import TransformError
from costmodel.symbolic.effort import spend

Bins = dict[tuple[int, ...], float]
"""(position,) -> real number, or (position or bin, part) -> real (part 1) or imaginary (part 2)
part of a complex number; positions, bins and parts count from 1."""


@dataclass(frozen=True, slots=True)
class Complex:
    """A complex number with its depth: the longest chain of real operations that leads to it."""

    value: complex
    depth: int = 0


class Tally:
    """The real operations of a complex transform (class -> number), and `deepest`, the largest
    depth of a result. A real transform counts half of the operations by definition: the interpreter
    records `halved`, and complex transforms tally each operation twice."""

    def __init__(self) -> None:
        self.operations: Counter[str] = Counter()
        self.deepest = 0

    def add(self, left: Complex, right: Complex) -> Complex:
        return self._step(left.value + right.value, left, right, 1, add=2)

    def subtract(self, left: Complex, right: Complex) -> Complex:
        return self._step(left.value - right.value, left, right, 1, add=2)

    def multiply(self, left: Complex, right: Complex) -> Complex:
        return self._step(left.value * right.value, left, right, 2, mul=4, add=2)

    def _step(
        self, value: complex, left: Complex, right: Complex, deep: int, **operations: int
    ) -> Complex:
        """The result `value` of an operation on two numbers, `deep` real operations deep; adds the
        real `operations` to the tally, and keeps the largest depth so far."""
        self.operations.update(operations)
        depth = max(left.depth, right.depth) + deep
        self.deepest = max(self.deepest, depth)
        return Complex(value, depth)

    def halved(self) -> dict[str, int]:
        """Half of the operations, by class; TransformError if a number is odd."""
        if any(number % 2 for number in self.operations.values()):
            counts = ", ".join(f"{number} {name}" for name, number in self.operations.items())
            raise TransformError(
                f"a complex transform of {counts} has no half, which a real transform counts: "
                "choose an even number of points"
            )
        return {name: number // 2 for name, number in self.operations.items()}


def _fft(signal: list[Complex], sign: int, tally: Tally) -> list[Complex]:
    """The sums over k of signal[k] exp(sign 2 pi i k q / N), for q = 0 .. N - 1: by radix-2
    decimation in time, with every twiddle factor multiplied, or by plain sums (`_any_length`) if N
    is no power of two. `tally` receives the operations. TooMuch if the budget of the enclosing
    `limited` is exhausted."""
    points = len(signal)
    spend(points)
    if points == 1:
        return signal
    if points & (points - 1):
        return _any_length(signal, sign, tally)
    even, odd = _fft(signal[::2], sign, tally), _fft(signal[1::2], sign, tally)
    turned = [
        tally.multiply(Complex(cmath.exp(sign * 2j * cmath.pi * k / points)), odd[k])
        for k in range(points // 2)
    ]
    return [tally.add(e, o) for e, o in zip(even, turned, strict=True)] + [
        tally.subtract(e, o) for e, o in zip(even, turned, strict=True)
    ]


def _any_length(signal: list[Complex], sign: int, tally: Tally) -> list[Complex]:
    """The sums over k of signal[k] exp(sign 2 pi i k q / N), for q = 0 .. N - 1, by plain sums of
    products, but tallied as N ceil(log2 N) / 2 butterflies, each of 4 multiplications and 6
    additions, in ceil(log2 N) stages of depth 3."""
    points, stages = len(signal), (len(signal) - 1).bit_length()
    spend(points * points)
    tally.operations.update(mul=2 * points * stages, add=3 * points * stages)
    tally.deepest = 3 * stages
    turns = [cmath.exp(sign * 2j * cmath.pi * k / points) for k in range(points)]
    return [
        Complex(sum(one.value * turns[k * q % points] for k, one in enumerate(signal)))
        for q in range(points)
    ]


def rfft(operands: Bins, points: int, tally: Tally) -> Bins:
    """The real Fourier transform of the entries (position,) -> value, padded with zeros to
    `points`, as (bin, part) -> value for bins 1 .. points//2 + 1, parts 1 (real) and 2 (imaginary).
    TransformError for more entries than `points`."""
    if len(operands) > points:
        raise TransformError(
            f"a transform has {len(operands)} entries, more than its {points} points"
        )
    signal = [Complex(complex(operands.get((k + 1,), 0.0))) for k in range(points)]
    bins = _fft(signal, -1, tally)[: points // 2 + 1]
    return {
        (k + 1, part): value
        for k, found in enumerate(bins)
        for part, value in ((1, found.value.real), (2, found.value.imag))
    }


def irfft(operands: Bins, points: int, tally: Tally) -> Bins:
    """The inverse of `rfft`, with the factor 1/points: from (bin, part) -> value to (position,) ->
    value. The imaginary parts of bins that count once are not used."""
    half = [complex(operands[k, 1], operands[k, 2]) for k in range(1, points // 2 + 2)]
    half = [v if _counts_twice(k, points) else complex(v.real) for k, v in enumerate(half, 1)]
    full = half + [v.conjugate() for v in reversed(half[1 : points - points // 2])]
    signal = _fft([Complex(v) for v in full], 1, tally)
    return {(k + 1,): found.value.real / points for k, found in enumerate(signal)}


def rfft_adjoint(operands: Bins, points: int, tally: Tally) -> Bins:
    """The transpose of the linear map `rfft` (the real Fourier transform): (bin, part) -> gradient
    of a bin's part to (position,) -> gradient, for `points` positions."""
    half = [complex(operands[k, 1], operands[k, 2]) for k in range(1, points // 2 + 2)]
    full = half + [0j] * (points - len(half))  # each bin counts once, without its conjugate
    signal = _fft([Complex(v) for v in full], 1, tally)
    return {(k + 1,): found.value.real for k, found in enumerate(signal)}


def irfft_adjoint(operands: Bins, points: int, tally: Tally) -> Bins:
    """The transpose of the linear map `irfft` (the inverse real Fourier transform): (position,) ->
    gradient to (bin, part) -> gradient; bins that stand for two count twice."""
    bins = rfft(operands, points, tally)
    for bin_, part in bins:
        bins[bin_, part] *= (2 if _counts_twice(bin_, points) else 2 - part) / points
    return bins


def _counts_twice(bin_: int, points: int) -> bool:
    """Whether a bin of a real transform stands for two conjugate bins: all but the first one and,
    for an even number of points, the last one, bin points/2 + 1."""
    return bin_ > 1 and 2 * (bin_ - 1) != points


def rfft_adjoint_complex(operands: Bins, points: int, tally: Tally) -> Bins:
    """The transpose of the real Fourier transform by a complex transform, which counts in full: its
    operations are doubled here, as the interpreter halves every tally (`Tally.halved`)."""
    found = rfft_adjoint(operands, points, tally)
    tally.operations.update(dict(tally.operations))
    return found


def irfft_adjoint_doubled(operands: Bins, points: int, tally: Tally) -> Bins:
    """The transpose of the inverse real Fourier transform, with one more multiplication by 2 for
    each part of a bin that counts twice. Each is tallied twice, as the interpreter halves every
    tally (`Tally.halved`)."""
    found = irfft_adjoint(operands, points, tally)
    tally.operations["mul"] += 2 * sum(1 for bin_, _ in found if _counts_twice(bin_, points))
    tally.deepest += 1
    return found


def fft(operands: Bins, points: int, tally: Tally) -> Bins:
    """The complex transform of the entries (position, part) -> value, padded with zeros to
    `points`, as (bin, part) -> value."""
    return _complex(operands, points, -1, tally)


def fft_adjoint(operands: Bins, points: int, tally: Tally) -> Bins:
    """The transpose of `fft`: (bin, part) -> gradient to (position, part) -> gradient."""
    return _complex(operands, points, 1, tally)


def _complex(operands: Bins, points: int, sign: int, tally: Tally) -> Bins:
    """The complex Fourier transform of (position, part) -> value, with `sign` in its exponent,
    counted in full: its operations are doubled here, as the interpreter halves every tally."""
    rows = [(operands.get((k, 1), 0.0), operands.get((k, 2), 0.0)) for k in range(1, points + 1)]
    found = _fft([Complex(complex(*row)) for row in rows], sign, tally)
    tally.operations.update(dict(tally.operations))
    parts = ((one.value.real, one.value.imag) for one in found)
    return {(k, p): value for k, both in enumerate(parts, 1) for p, value in enumerate(both, 1)}


ALGORITHMS: Mapping[str, tuple[int, int, Callable[[Bins, int, Tally], Bins]]] = {
    "rfft": (1, 2, rfft),
    "irfft": (2, 1, irfft),
    "rfft-adjoint": (2, 1, rfft_adjoint),
    "irfft-adjoint": (1, 2, irfft_adjoint),
    "rfft-adjoint-complex": (2, 1, rfft_adjoint_complex),
    "irfft-adjoint-doubled": (1, 2, irfft_adjoint_doubled),
    "fft": (2, 2, fft),
    "fft-adjoint": (2, 2, fft_adjoint),
}
"""Kind of transform -> (number of indices of an operand, number of indices of a result, function):
1 for a real number (position), 2 for a complex one (position and part)."""


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring rows in a scan: the product of their decays; for each of several columns the sum
    of their terms, each term decayed by the rows after it; the depth in operations."""

    decay: float
    sums: tuple[float, ...]
    depth: int = 0


class Combined:
    """The operations (class -> number) of the combinations of a scan, and `deepest`, the largest
    depth of a result."""

    def __init__(self) -> None:
        self.operations: Counter[str] = Counter()
        self.deepest = 0

    def __call__(self, early: Span, late: Span) -> Span:
        """The span of the rows of `early` followed by those of `late`, 2 operations deeper than the
        deeper one. Tallied: a product and a sum for each column, and the product of the decays."""
        columns = len(late.sums)
        spend(columns)
        self.operations.update(mul=columns + 1, add=columns)
        depth = max(early.depth, late.depth) + 2
        self.deepest = max(self.deepest, depth)
        pairs = zip(early.sums, late.sums, strict=True)
        sums = tuple(late.decay * one + other for one, other in pairs)
        return Span(late.decay * early.decay, sums, depth)


def kogge_stone(rows: list[Span], combine: Combined) -> list[Span]:
    """The spans from the first row to each row, by Kogge and Stone's scan: every round combines
    each span with the span `apart` rows before it, and doubles this distance."""
    apart = 1
    while apart < len(rows):
        later = zip(rows, rows[apart:], strict=False)
        rows = [*rows[:apart], *(combine(early, late) for early, late in later)]
        apart *= 2
    return rows


def brent_kung(rows: list[Span], combine: Combined) -> list[Span]:
    """The spans from the first row to each row, by Brent and Kung's scan: neighbours are combined
    into pairs, the pairs are scanned, and every other row is combined with all pairs before it. The
    rows are padded to a power of two."""
    number = 1 << (len(rows) - 1).bit_length()
    nothing = Span(1.0, (0.0,) * len(rows[0].sums))
    padded = [*rows, *[nothing] * (number - len(rows))]
    if number == 1:
        return padded
    pairs = [combine(*pair) for pair in zip(padded[::2], padded[1::2], strict=True)]
    ends = brent_kung(pairs, combine)
    starts = [padded[0], *map(combine, ends, padded[2::2])]
    return [span for both in zip(starts, ends, strict=True) for span in both][: len(rows)]


PREFIXES: Mapping[str, Callable[[list[Span], Combined], list[Span]]] = {
    "kogge-stone": kogge_stone,
    "brent-kung": brent_kung,
}
"""Kind of scan -> its algorithm."""


NOWHERE = 0
"""The position that a selection gives if no entry is left: outside of every array."""


@dataclass(frozen=True, slots=True)
class Contender:
    """An entry in a selection: value, position, depth in comparisons, and whether it is masked."""

    value: float
    position: int
    depth: int = 0
    out: bool = False


class Comparisons:
    """The number of comparisons, and `deepest`, the largest depth of a contender in comparisons."""

    def __init__(self) -> None:
        self.number = 0
        self.deepest = 0

    def compared(self, *pair: Contender) -> tuple[Contender, ...]:
        """Tally a comparison, and return its contenders, each with the depth of the deeper one
        plus 1."""
        spend(1)
        self.number += 1
        depth = 1 + max(contender.depth for contender in pair)
        self.deepest = max(self.deepest, depth)
        return tuple(replace(contender, depth=depth) for contender in pair)


def _knockout(contenders: Sequence[Contender], made: Comparisons) -> Contender:
    """The largest contender, with its depth after the comparisons: neighbours are compared, then
    neighbouring winners, and so on; a contender without a neighbour waits for the next round."""
    left = list(contenders)
    while len(left) > 1:
        pairs = zip(left[::2], left[1::2], strict=False)
        winners = [max(made.compared(*pair), key=_size) for pair in pairs]
        left = winners + left[len(left) - len(left) % 2 :]
    return left[0]


def _size(contender: Contender) -> tuple[bool, float, int]:
    """Sort key for the largest entry: masked ones last, of equal values the first position."""
    return not contender.out, contender.value, -contender.position


def argmax(entries: Sequence[Contender], kept: int, made: Comparisons) -> list[int]:
    """The position of the largest entry, by a knockout tournament whose comparisons `made` tallies.
    `kept` is not used: all selections take it."""
    return [_knockout(entries, made).position]


def top_k(entries: Sequence[Contender], kept: int, made: Comparisons) -> list[int]:
    """The positions of the `kept` largest entries (of one or more), in descending order: one
    knockout tournament for each, which waits until the previous winner is masked; `NOWHERE` (0) for
    each position if no entry is left. `made` tallies the comparisons."""
    found: list[int] = []
    left = list(entries)
    for _ in range(kept):
        winner = _knockout(left, made)
        found.append(NOWHERE if winner.out else winner.position)
        left = [
            replace(c, depth=winner.depth, out=c.out or c.position == winner.position) for c in left
        ]
    return found


def sort(entries: Sequence[Contender], kept: int, made: Comparisons) -> list[int]:
    """The positions in ascending order of their entries, one at least, by a bitonic network, whose
    comparisons `made` tallies. The network is padded to a power of two with entries larger than all
    others. `kept` is not used: all selections take it."""
    lines = _padded(entries)
    run = 2
    while run <= len(lines):
        apart = run // 2
        while apart:
            _column(lines, run, apart, made)
            apart //= 2
        run *= 2
    return [contender.position for contender in lines[: len(entries)]]


def merge_sort(entries: Sequence[Contender], kept: int, made: Comparisons) -> list[int]:
    """The positions in ascending order of their entries, by merging runs of 1, 2, 4, ... entries,
    padded to a power of two with entries larger than all others; `made` tallies the comparisons.
    `kept` is not used: all selections take it."""
    runs = [[contender] for contender in _padded(entries)]
    while len(runs) > 1:
        runs = [_merged(one, two, made) for one, two in zip(runs[::2], runs[1::2], strict=True)]
    return [contender.position for contender in runs[0][: len(entries)]]


def _merged(one: list[Contender], two: list[Contender], made: Comparisons) -> list[Contender]:
    """Two ascending runs merged into one. A comparison is made (and tallied in `made`) for each
    entry: with an end marker if the other run is exhausted."""
    end = Contender(math.inf, 1 + max(c.position for c in (*one, *two)), out=True)
    left, right, found = [*one, end], [*two, end], list[Contender]()
    while len(found) < len(one) + len(two):
        left[0], right[0] = made.compared(left[0], right[0])
        first = min((left, right), key=lambda run: _place(run[0]))
        found.append(first.pop(0))
    return found


def _padded(entries: Sequence[Contender]) -> list[Contender]:
    """The entries, followed by entries larger than all others up to a power of two, which sorting
    networks and merges of runs need."""
    lines = list(entries)
    end = max(c.position for c in lines)
    while len(lines) & (len(lines) - 1):
        lines.append(Contender(math.inf, end + len(lines), out=True))
    return lines


def _column(lines: list[Contender], run: int, apart: int, made: Comparisons) -> None:
    """Execute one column of a bitonic sorting network on `lines`: a comparator for each two lines
    that are `apart` lines from each other. Blocks of `run` lines are sorted, every second one in
    descending order."""
    for low in range(len(lines)):
        if low & apart:
            continue
        high = low + apart
        pair = sorted(made.compared(lines[low], lines[high]), key=_place)
        lines[low], lines[high] = pair[::-1] if low & run else pair


def _place(contender: Contender) -> tuple[bool, float, int]:
    """Sort key for ascending order: padding last, of equal values the first position first."""
    return contender.out, contender.value, contender.position


CHOICES: Mapping[str, Callable[[Sequence[Contender], int, Comparisons], list[int]]] = {
    "argmax": argmax,
    "top-k": top_k,
    "sort": sort,
    "merge-sort": merge_sort,
}
"""Kind of selection -> the function from (entries, number kept, tally of comparisons) to the chosen
positions."""
