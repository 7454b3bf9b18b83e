"""Answers as JSON trees, which a page evaluates at any sizes in exact rationals.

Polynomials, functions and answers are entries of lists, referred to by their place; an entry that
occurs twice stands once. The trees, by example:

    polynomial   [[3, "l", 2, "d", 1], ["1/2", 0, 1]]     3 l^2 d + f/2, f function 0
    function     ["floor_div", 4, 7]                      floor(polynomial 4 / polynomial 7)
    answer       {"sum": [[[5], 2], [[], 3]]}             polynomial 3, plus 2 where 5 is >= 0
                 {"max": [8, 9]}   {"quotient": [8, 9]}   of two answers
                 {"value": null, "reason": "..."}         no closed form
"""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from costmodel.questions.question import Answer, Largest, Missing
from costmodel.symbolic.cases import Quotient
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Fn, Number, Poly, by_text

SAFE = 2**53
"""The integers below this bound are numbers of JSON; larger ones are texts."""


class Trees:
    """The lists of polynomials, functions, answers and texts that the trees refer to."""

    def __init__(self) -> None:
        """Start with empty tables of polynomials, functions, answers and texts, which refer to each
        other by number."""
        self.polys: list[Any] = []
        self.functions: list[Any] = []
        self.answers: list[Any] = []
        self.texts: list[str] = []
        self._places: dict[object, int] = {}

    def poly(self, poly: Poly) -> int:
        """The place of a polynomial."""
        return self._place(self.polys, ("poly", poly), lambda: self._terms(poly))

    def _terms(self, poly: Poly) -> list[list[Any]]:
        """The terms of a polynomial: [coefficient, atom, power, atom, power, ...] each."""
        return [
            [_number(number), *(part for atom, power in m for part in (self._atom(atom), power))]
            for m, number in poly.terms.items()
        ]

    def _atom(self, atom: str) -> str | int:
        """A size letter, or the place of a function."""
        if not isinstance(atom, Fn):
            return atom
        return self._place(self.functions, ("function", atom), lambda: self._call(atom))

    def _call(self, atom: Fn) -> list[Any]:
        """A function's name and the places of its arguments."""
        return [atom.function, *map(self.poly, atom.args)]

    def answer(self, found: Answer | Missing) -> int:
        """The place of an answer for all sizes, or of the reason why there is none."""
        tree = self._tree(found)
        return self._place(self.answers, json.dumps(tree), lambda: tree)

    def _tree(self, found: Answer | Missing) -> dict[str, Any]:
        """The JSON object of an answer, in one of the forms that the module's docstring shows."""
        if isinstance(found, Missing):
            return {"value": None, "reason": found.reason}
        if isinstance(found, Largest):
            return {"max": [self.answer(term) for term in found.terms]}
        if isinstance(found, Quotient):
            return {"quotient": [self.answer(found.above), self.answer(found.below)]}
        if isinstance(found, (int, Fraction)):
            found = Exact.of(Poly.of(found))
        assert isinstance(found, Exact)
        pieces = ((by_text(guards), poly) for guards, poly in found.pieces)
        return {"sum": [[[*map(self.poly, guards)], self.poly(poly)] for guards, poly in pieces]}

    def text(self, text: str) -> int:
        """The place of a text, such as the MathML of an equation."""
        return self._place(self.texts, ("text", text), lambda: text)

    def _place(self, entries: list[Any], key: object, make: Callable[[], Any]) -> int:
        """The number of an entry in a table; `make` makes the entry, which is appended, if the
        `key` is new."""
        if key not in self._places:
            entry = make()
            self._places[key] = len(entries)
            entries.append(entry)
        return self._places[key]


def _number(number: Number) -> int | str:
    """A coefficient: an integer, or a text for a fraction or an integer beyond `SAFE`."""
    return number if isinstance(number, int) and abs(number) < SAFE else str(number)
