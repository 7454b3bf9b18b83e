"""Is a new kind of node handled by its own rules in every table?

The twin of a kind has the fields, properties and rules of the kind, and is another class. Equations
in which twins replace a kind have the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, replace
from functools import cache, partial
from typing import Any

import pytest

import costmodel as cm
from costmodel import EquationError, Mixer, Unanswered, exp, irfft, max_over, maximum, rfft, scan
from costmodel.errors import Unsupported
from costmodel.language.equations import Form
from costmodel.language.nodes import (
    KINDS,
    Array,
    Bracket,
    Composite,
    Constant,
    FreeScale,
    Node,
    Ref,
    Select,
    kind,
    record,
    rewrite,
    walk,
)
from costmodel.program.conventions import convention
from costmodel.proofs.against_oracle import tallies
from costmodel.questions.count import counted
from costmodel.questions.question import EVERY, Answers
from costmodel.symbolic.polynomial import Poly
from tests.test_nodes import tables

SIZES = {"l": 3, "d": 2, "t": 2}
EVERY_TABLE = list(tables())
"""Loaded before a test declares a kind: a table loaded then would lack the kind."""


def small(change: Callable[[Node], Node] = lambda node: node) -> Mixer:
    """Equations with every kind that authors write and lowering leaves, changed node by node."""
    m = Mixer("small")
    l, d = m.sizes("l d")
    x, w, y = m.input("x", l, d), m.parameter("w", d), m.output("y", l, d)
    with m.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        j, k = f.index("j", 1, i), f.index("k", 1, i - 1)
        past, high, r = f.array("past", l, d), f.array("high", l, d), f.array("r", l, d)
        past[i, b] = cm.sum_(x[k, b] * w[b], over=k) + x[i, b]
        high[i, b] = max_over(past[j, b], over=j)
        r[i, b] = (-past[i, b] + 2) / (exp(x[i, b]) - FreeScale(high[i, b], Constant(Poly.of(2))))
        y[i, b] = maximum(r[i, b], 0)
    with m.form("fft") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        q, c = f.index("q", 1, l + 1), f.index("c", 1, 2)
        bins = f.array("bins", l + 1, 2, d)
        bins[q, c, b] = rfft(x[i, b], over=i, length=2 * l)
        y[i, b] = irfft(bins[q, c, b], over=(q, c), length=2 * l)
    with m.form("scan") as f:
        i, j, b = f.index("i", 1, l), f.index("j", 1, l), f.index("b", 1, d)
        kept, added = f.array("kept", l, d), f.array("added", l, d)
        kept[i, b], added[i, b] = exp(x[i, b]), x[i, b] * w[b]
        y[i, b] = scan(kept[j, b], added[j, b], over=j)
    for name, form in m.forms.items():
        changed = [replace(e, value=rewrite(e.value, change)) for e in form.equations]
        m.forms[name] = Form(m, name, form.indices, form.arrays, changed)
    return m


def answers(mixer: Mixer) -> Mapping[tuple[str, ...], str]:
    """Every answer that the oracle proves, and the total of a peer; refusals as their reason."""
    found: dict[tuple[str, ...], str] = {}
    for form in mixer.forms:
        for phase in EVERY:
            for accounting in ("strict", "mac"):
                about = Answers(mixer, form, phase, convention((accounting,)))
                for tally, _ in tallies():
                    at = form, phase, accounting, tally.name
                    found[at] = said(partial(tally.derived, about, SIZES))
            peer = Answers(mixer, form, phase, convention(("torch",)))
            found[form, phase, "torch", "total"] = said(partial(total, peer))
    return found


def total(about: Answers) -> int:
    return counted(about).exact_total.at(SIZES)


@cache
def expected() -> Mapping[tuple[str, ...], str]:
    """The answers about the equations without a twin."""
    return answers(small())


def said(ask: Callable[[], object]) -> str:
    try:
        return str(ask())
    except (Unanswered, Unsupported) as reason:
        return str(reason)


@contextmanager
def declared(made: type[Node], **properties: Any) -> Iterator[Any]:
    """A kind of node, without rules, until the end of a test."""
    try:
        yield kind(**properties)(made)
    finally:
        KINDS.remove(made)
        for table in EVERY_TABLE:
            table.pop(made, None)


def twin(of: type[Node]) -> type[Node]:
    """Another class with the fields and methods of a kind."""
    parts = fields(of)
    own = {name: value for name, value in vars(of).items() if not name.startswith("_")}
    own |= {part.name: part.default for part in parts if part.default is not MISSING}
    own["__annotations__"] = {part.name: part.type for part in parts}
    return type(f"Twin{of.__name__}", of.__bases__, own)


@pytest.mark.parametrize(
    "of",
    [of for of in KINDS if of not in (Ref, Bracket, Select, Composite)],
    ids=lambda of: of.__name__,
)
def test_a_twin_has_the_answers_of_its_kind(of: type[Node]) -> None:
    """Of all kinds but four: `Ref` alone reads arrays, gradients alone write a `Bracket`, a
    `Select` alone defines an array of positions, and a `Composite` is written out."""
    with declared(twin(of), free=of.free, alone=of.alone) as made:
        for table in EVERY_TABLE:
            if of in table:
                table[made] = table[of]

        def change(node: Node) -> Node:
            return made(*(getattr(node, name) for name in of._fields)) if type(node) is of else node

        changed = small(change)
        values = [e.value for form in changed.forms.values() for e in form.equations]
        assert any(type(node) is made for value in values for node, _ in walk(value))
        assert answers(changed) == expected()


class Minimum(Node):
    """The smaller one of two."""

    left: Node
    right: Node


def test_a_class_that_is_no_kind_is_in_no_equation() -> None:
    """So that no question is asked about the class; a kind lacks rules where a table is loaded."""
    m = Mixer("smaller")
    l = m.sizes("l")[0]
    x, y = m.input("x", l), m.output("y", l)
    said = r"^y: Minimum is no kind of node: declare it by @kind in costmodel/language/nodes\.py"
    least: Any = record(Minimum)
    with m.form("direct") as f:
        i = f.index("i", 1, l)
        with pytest.raises(EquationError, match=said):
            y[i] = least(x[i], Constant(Poly()))
        y[i] = x[i] * 2


def test_a_kind_without_its_properties_is_not_declared() -> None:
    with pytest.raises(TypeError, match="required keyword-only arguments: 'free' and 'alone'"):
        kind()(Minimum)  # type: ignore[call-arg]  # the mistake


def test_one_kind_names_arrays() -> None:
    class Other(Node):
        """An entry at the first position."""

        array: Array

    with pytest.raises(TypeError, match=r"^Other has a field 'array', which Ref alone may have"):
        kind(free=True, alone="")(Other)
