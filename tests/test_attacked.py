"""Does z3 find integers that break what the constraints are said to prove?

`implied` is the kernel of every proof about sizes, and it checks itself nowhere. z3 shares no code
with it: each proven claim is denied, and z3 looks for sizes and indices at which the denial holds.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import lcm
from typing import Any

import pytest
import z3

import costmodel as cm
from costmodel.adjoint.reverse import adjoint
from costmodel.errors import Unsupported
from costmodel.program.lowering import lower
from costmodel.symbolic import constraints as kernel
from costmodel.symbolic.constraints import Constraints, implied, infeasible
from costmodel.symbolic.polynomial import Fn, Poly, call, ceil_div
from tests.caches import clear_all

LARGEST = 40
"""z3 looks among sizes and indices up to this number: a wrong step shows at small ones."""

PATIENCE_MS = 300
"""z3 gives a claim up after this time; how many claims it gave up is bounded below."""

Query = tuple[Constraints, Poly]


class Integers:
    """Polynomials as integer terms of z3: sizes are at least 1, indices are any integers."""

    def __init__(self) -> None:
        self.solver = z3.Solver()
        self.solver.set("timeout", PATIENCE_MS)
        self.atoms: dict[str, Any] = {}

    def holds(self, poly: Poly) -> Any:
        """`poly >= 0`, times the positive sizes that it is divided by."""
        lowest: dict[str, int] = {}
        for monomial in poly.terms:
            for atom, power in monomial:
                lowest[atom] = min(lowest.get(atom, 0), power)
        whole = lcm(*(Fraction(number).denominator for number in poly.terms.values()), 1)
        total: Any = z3.IntVal(0)
        for monomial, number in poly.terms.items():
            term = z3.IntVal(int(number * whole))
            raised = dict(monomial)
            for atom in lowest:
                for _ in range(raised.get(atom, 0) - lowest[atom]):
                    term = term * self.value(atom)
            total = total + term
        return total >= 0

    def exactly(self, poly: Poly) -> Any:
        """The value of a polynomial, a fresh integer where it has quotients."""
        if all(type(n) is int and all(p > 0 for _, p in m) for m, n in poly.terms.items()):
            total: Any = z3.IntVal(0)
            for monomial, number in poly.terms.items():
                term = z3.IntVal(number)
                for atom, power in monomial:
                    for _ in range(power):
                        term = term * self.value(atom)
                total = total + term
            return total
        name = f"value {len(self.atoms)}"
        value = self.atoms[name] = z3.Int(name)
        holds = Poly.atom(f"^{name}")
        self.atoms[f"^{name}"] = value
        self.solver.add(self.holds(poly - holds), self.holds(holds - poly))
        return value

    def value(self, atom: str) -> Any:
        """The integer of an atom, with what is known of it."""
        if atom in self.atoms:
            return self.atoms[atom]
        found = self.atoms[atom] = z3.Int(f"atom {atom}")
        add = self.solver.add
        if isinstance(atom, Fn):
            args = [self.exactly(argument) for argument in atom.args]
            if atom.function == "floor_div":
                add(args[1] > 0, args[1] * found <= args[0], args[0] < args[1] * (found + 1))
            elif atom.function in ("Max", "Min"):
                ends = [found >= a if atom.function == "Max" else found <= a for a in args]
                add(*ends, z3.Or(*(found == a for a in args)))
            elif atom.function == "ceil_log2":
                reached = [z3.And(2**k >= args[0], 2 ** (k - 1) < args[0]) for k in range(1, 14)]
                cases = enumerate([args[0] == 1, *reached])
                add(z3.Or(*(z3.And(found == k, case) for k, case in cases)))
            elif atom.function == "pow2":
                add(z3.Or(*(z3.And(args[0] == k, found == 2**k) for k in range(14))))
            else:
                raise NotImplementedError(atom.function)
        elif atom[0] in "@#":
            add(found >= -LARGEST, found <= LARGEST * 2)
        else:
            add(found >= (0 if atom[0] == "^" else 1), found <= LARGEST)
        return found

    def sizes_go_together(self, polys: Iterable[Poly]) -> None:
        """n divides d, t is at most l, and quotients of two sizes, and halves of one, are whole
        (`nonnegative`)."""
        polys = [*polys]
        if {"t", "l"} <= self.atoms.keys():
            self.solver.add(self.value("t") <= self.value("l"))
        pairs = {pair for poly in polys for pair in kernel.quotients(poly)}
        if {"n", "d"} <= self.atoms.keys():
            pairs.add(("d", "n"))
        for poly in polys:
            for monomial, number in poly.terms.items():
                if len(monomial) == 1 and Fraction(number).denominator == 2:
                    self.solver.add(self.value(monomial[0][0]) % 2 == 0)
        for above, below in pairs:
            quotient = z3.Int(f"{above}/{below}")
            self.solver.add(quotient >= 1, self.value(above) == self.value(below) * quotient)


def broken(known: Constraints, denied: Poly | None) -> str | None:
    """Integers at which all is known and the claim fails; "" where there are none, None where z3
    gave up. Without a claim: integers at which all is known."""
    integers = Integers()
    claims = [integers.holds(one) for one in known]
    if denied is not None:
        claims.append(z3.Not(integers.holds(denied)))
    integers.solver.add(*claims)
    integers.sizes_go_together([*known, *([denied] if denied is not None else [])])
    answer = integers.solver.check()
    return (
        None if answer == z3.unknown else str(integers.solver.model()) if answer == z3.sat else ""
    )


def attacked(queries: Iterable[tuple[Constraints, Poly | None]]) -> None:
    """No proven claim is broken, and z3 decides most of them."""
    decided = given_up = 0
    for known, claim in queries:
        found = broken(known, claim)
        assert not found, f"{[*map(str, known)]} was said to prove {claim} >= 0: {found}"
        if found is None:
            given_up += 1
        else:
            decided += 1
    assert decided >= 40 and given_up <= decided / 4, (decided, given_up)


def drawn(random_: random.Random) -> Query:
    """Constraints on two or three indices and a claim, such as programs have."""
    l, w, C, i, j, p = (Poly.atom(name) for name in ("l", "w", "C", "@i", "@j", "@p"))
    chunk, half, nothing = call("floor_div", l, C), w / 2, Poly()
    ends = (
        [i - 1, l - i],
        [j - 1, i - j],
        [j - i + w - 1, i - j, j - 1],
        [p - 1, chunk - p],
        [p - 1, l - C * p],
        [i - C * (p - 1) - 1, C * p - i],
        [call("Min", l, w) - j],
        [l - w - 1],
        [w - l],
        [j - 1, half - j],
        [half + i - l],
        [2 * i - j - random_.randint(-2, 2)],
        [i + j - 2 * p],
    )
    known = frozenset(c for part in random_.sample(ends, random_.randint(2, 4)) for c in part)
    some = [l, w, C, i, j, p, p * C, chunk * C, i + j, l + w, chunk, half, half - l, nothing]
    left, right = random_.choices(some, k=2)
    return known, left * random_.randint(1, 2) - right - random_.randint(-2, 2)


def test_what_is_proven_of_random_systems_holds() -> None:
    draws = random.Random(20_260)

    def proven() -> Iterator[tuple[Constraints, Poly | None]]:
        for _ in range(900):
            known, claim = drawn(draws)
            try:
                if infeasible(known):
                    yield known, None
                elif implied(known, claim):
                    yield known, claim
            except Unsupported:
                continue

    attacked(proven())


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", ["restricted-attention", "s4d", "longformer", "bigbird"])
def test_what_is_proven_of_mixers_holds(name: str, mutated: pytest.MonkeyPatch) -> None:
    """The claims that deriving counts, state and span of a mixer asks for, a part of them drawn."""
    asked: dict[Query, None] = {}
    right = kernel._contradict

    def noted(parts: Iterable[Constraints]) -> bool:
        whole = [*parts]
        found = right(whole)
        if found:
            asked[frozenset().union(*whole), Poly.of(-1)] = None
        return found

    mutated.setattr(kernel, "_contradict", noted)
    mixer = cm.mixer(name)
    for form in mixer.forms:
        for question in (cm.count, cm.span, cm.traffic):
            question(mixer, "training", form)
        adjoint(lower(mixer.forms[form]))
    queries = [(known, None) for known, _ in asked]
    attacked(random.Random(7).sample(queries, min(len(queries), 150)))


def test_a_wrong_step_is_found(mutated: pytest.MonkeyPatch) -> None:
    """A test of the test: 3 i >= 4 proves i >= 2, and i >= 3 where the bound is rounded wrongly."""
    known, claim = frozenset([3 * Poly.atom("@i") - 4]), Poly.atom("@i") - 3
    assert implied(known, claim + 1) and not implied(known, claim)
    mutated.setattr(kernel, "ceil_div", lambda above, below: ceil_div(above, below) + 1)
    clear_all()
    assert implied(known, claim) and broken(known, claim)
