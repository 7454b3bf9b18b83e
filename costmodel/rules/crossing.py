"""How deep are two sums at most of which one gets longer by as much as the other gets shorter?

ceil_log2(a) reaches s where a reaches some number t(s): 1 for s = 0, and 2**(s-1) + 1 otherwise. Of
two positive numbers with a given total, both reach s and r exactly where t(s) + t(r) is at most
that total. The pairs (s, r) than which none is better are three at most: with p the largest s of
all, so that n = total - 1 lies in 2**(p-1) + 1 .. 2**p,

- p, and what is then left for r;
- p - 1 twice, as 2 t(p-1) = 2**(p-1) + 2 is at most the total;
- what is left for s where r is p.

So every depth that grows with both logarithms and with nothing else is largest at one of three
pairs of numbers, whatever bounds the numbers have besides: a bound cuts each pair by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.polynomial import Poly, call, ceil_div, padded


def best_pairs(total: Poly) -> Iterator[tuple[Poly, Poly]]:
    """The two numbers, as far as their logarithms go, wherever their total, at least 2, is best
    divided between them.

    >>> from costmodel.polynomial import size
    >>> [(a.at({"l": 10}), b.at({"l": 10})) for a, b in best_pairs(size("l") + 1)]
    [(10, 2), (5, 5), (2, 10)]
    """
    most = total - 1
    half = ceil_div(most, 2)
    left = most - call("floor_div", padded(most), 2)
    yield most, left
    yield half, half
    yield left, most
