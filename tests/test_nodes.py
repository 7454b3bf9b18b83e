"""Does every table of rules know every kind of node, and do a node's fields define its parts?"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import costmodel as cm
from costmodel.adjoint import adjoint
from costmodel.errors import Unsupported
from costmodel.language.equations import Equation
from costmodel.language.indices import Index
from costmodel.language.nodes import (
    KINDS,
    OPAQUE,
    Add,
    Call,
    Constant,
    Gather,
    Mul,
    Node,
    Reduce,
    Ref,
    kind,
    names_in,
    polys_of,
    reading,
    rewrite,
    substitute,
    walk,
    with_entries,
)
from costmodel.language.rule_table import Rules, refused
from costmodel.mixers import builtin, names
from costmodel.program.lowering import lower
from costmodel.symbolic.polynomial import Poly
from tests.test_architecture import module_name, sources

TABLES = {
    "notation",
    "nonempty",
    "count",
    "span",
    "sequential",
    "critical_path",
    "a search",
    "evaluate",
    "evaluate, for whole right sides",
    "adjoint",
    "adjoint, for whole right sides",
    "the left side, for whole right sides",
    "the oracle",
    "the oracle, for whole right sides",
    "additions over a batch",
    "what peers count",
}


def tables() -> Iterator[Rules[Any]]:
    """Every table of rules of the package."""
    for module in pkgutil.walk_packages(cm.__path__, "costmodel."):
        for found in vars(importlib.import_module(module.name)).values():
            if isinstance(found, Rules):
                yield found


def equations() -> Iterator[Equation]:
    """Equations that hold every kind of node that authors and gradients write."""
    for mixer in map(builtin, names()):
        for form in mixer.forms.values():
            yield from form.equations
            yield from lower(form, ("safe-softmax",)).equations
    for name in ("linear-attention", "self-attention", "she"):
        yield from adjoint(lower(builtin(name).forms[builtin(name).default_form])).equations


def test_every_table_is_listed_and_has_a_rule_for_every_kind() -> None:
    found = {id(table): table for table in tables()}.values()
    assert {table.question for table in found} == TABLES
    for table in found:
        assert {*table} == ({*OPAQUE} if "whole right sides" in table.question else {*KINDS})


def test_a_table_that_lacks_a_kind_is_not_made() -> None:
    for table in tables():
        for kind_ in table:
            others = {k: rule for k, rule in table.items() if k is not kind_}
            with pytest.raises(
                TypeError, match=rf"^the rules of .* lack {kind_.__name__}: add a rule"
            ):
                Rules(table.question, others, [*table])


def test_a_new_kind_is_missed_by_every_table(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [*KINDS]

    class Minimum(Node):
        """The smaller one of two."""

        left: Node
        right: Node

    made: Any = kind(free=False, alone="")(Minimum)
    try:
        with pytest.raises(TypeError, match=r"^the rules of span lack Minimum: add a rule"):
            Rules("span", dict.fromkeys(before, refused("no")))
        with pytest.raises(Unsupported, match=r"^Minimum has no rule in count: add one"):
            Rules("count", {}, [])[made]
        one, two = Constant(Poly.of(1)), Constant(Poly.of(2))
        least = made(left=one, right=two)
        assert least.children == (one, two)
        assert rewrite(least, lambda n: two if n == one else n) == made(left=two, right=two)
    finally:
        KINDS[:] = before


TESTED = {"Binary", "Along", *(kind.__name__ for kind in KINDS)}
"""The kinds of node, and two bases of several kinds."""


def kinds_asked(test: ast.expr, negated: bool = False) -> Iterator[bool]:
    """Yield, for each question of a condition about the kind of a node, whether the condition
    negates the question: True for `not isinstance(x, Add)`. A comprehension has no question."""
    match test:
        case ast.Call(ast.Name("isinstance"), [_, kinds]) | ast.Compare(
            ast.Call(ast.Name("type")), _, [kinds]
        ):
            named = {one.id for one in ast.walk(kinds) if isinstance(one, ast.Name)}
            if named & TESTED:
                yield negated
        case ast.UnaryOp(ast.Not(), inside):
            yield from kinds_asked(inside, not negated)
        case ast.BoolOp(_, several):
            yield from (asked for one in several for asked in kinds_asked(one, negated))
        case _:
            return


def silent(tree: ast.AST) -> Iterator[int]:
    """The lines of dispatches on kinds of node that do not say what other kinds get. A `match` says
    so in `case _`; an `if` only raises, or is a guard: `if not isinstance(x, Div): return None`."""
    for found in ast.walk(tree):
        match found:
            case ast.Match(_, cases):
                patterns = [part for case in cases for part in ast.walk(case.pattern)]
                named = {ast.unparse(p.cls) for p in patterns if isinstance(p, ast.MatchClass)}
                if named & TESTED and not matches_all(cases[-1]):
                    yield found.lineno
            case ast.If(test, [*_, ast.Raise()]):
                pass
            case ast.If(test, [ast.Return(None | ast.Name() | ast.Constant()) | ast.Continue()]):
                if not all(kinds_asked(test)):
                    yield found.lineno
            case ast.If(test) | ast.IfExp(test):
                if [*kinds_asked(test)]:
                    yield found.lineno


def matches_all(case: ast.match_case) -> bool:
    """Whether a case is `case _` or `case name`."""
    return case.guard is None and isinstance(case.pattern, ast.MatchAs) and not case.pattern.pattern


def test_no_dispatch_on_kinds_passes_over_the_others() -> None:
    found = {
        f"{module_name(path)}:{line}"
        for path in sources()
        if "language.nodes import" in (text := path.read_text("utf-8")) or path.stem == "nodes"
        for line in silent(ast.parse(text))
    }
    assert found == set()


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("if isinstance(x, Add):\n    y = 1", True),
        ("if isinstance(x, Add):\n    raise y", False),
        ("if not isinstance(x, Add | Sub):\n    return None", False),
        ("if isinstance(x, Add):\n    return None", True),
        ("if type(x) is Add:\n    y = 1\nelse:\n    raise y", True),
        ("y = 1 if z and not isinstance(x, Add) else 2", True),
        ("match x:\n    case Add() if y:\n        pass", True),
        ("match x:\n    case Add():\n        pass\n    case _ if y:\n        pass", True),
        ("match x:\n    case Add():\n        pass\n    case _:\n        pass", False),
        ("y = [x for x in z if isinstance(x, Add)]", False),
    ],
)
def test_which_dispatches_are_silent(text: str, passes: bool) -> None:
    assert bool([*silent(ast.parse(text))]) == passes


def test_what_is_refused_is_told() -> None:
    with pytest.raises(Unsupported, match=r"^no transforms here$"):
        refused("no transforms here")(None, None)


def test_nothing_changes_where_nothing_is_changed() -> None:
    for equation in equations():
        value = equation.value
        assert rewrite(value, lambda node: node) is value
        assert substitute(value, {}) is value
        assert with_entries(value, {}) is value and reading(value, {}) is value
        assert substitute(equation.positions, {}) is equation.positions


def test_indices_are_replaced_wherever_they_stand() -> None:
    """Renamed there and back is the same; what is renamed is gone."""
    for equation in equations():
        over = {index for _, around in walk(equation.value) for index in around}
        atoms = {index.atom for index in (*equation.indices, *over)}
        there = {atom: Poly.atom(f"{atom}_other") for atom in atoms}
        back = {f"{atom}_other": Poly.atom(atom) for atom in atoms}
        moved = substitute(equation.value, there)
        named = {a for node, _ in walk(moved) for poly in polys_of(node) for a in poly.letters}
        assert not named & atoms
        assert substitute(moved, back) == equation.value


def test_a_union_is_gone_through_range_by_range() -> None:
    l, d = (Poly.atom(letter) for letter in "ld")
    m = cm.Mixer("pieces")
    m.sizes("l d")
    x, y, at = m.input("x", l, d), m.output("y", l, d), m.buffer("at", l, below=l)
    with m.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        j = f.index("j", cm.union((1, 1), (cm.max_(2, i - 1), i)))
        y[i, b] = cm.sum_(x[at[j], b], over=j)
    (equation,) = f.equations
    found = [type(node) for node, _ in walk(equation.value)]
    assert found == [Reduce, Ref, Ref, Ref, Ref]
    assert equation.value.arrays == {x, at}
    read = next(node for node, _ in walk(equation.value) if isinstance(node, Ref))
    assert isinstance(read.positions[0], Gather) and names_in(read.positions) == ["@j", "@b"]


def test_a_fold_begins_inside() -> None:
    one, i = Constant(Poly.of(1)), Index("i", (Poly.of(1),), (Poly.of(3),))
    value = Add(Mul(one, one), Reduce("sum", Call("exp", one), (i,)))
    depth = value.fold(lambda node, inside: 1 + max(inside, default=0))
    assert depth == 4
