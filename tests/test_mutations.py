"""Would the comparison with the oracle notice a wrong rule? Tests of the tests.

Each mutation is a mistake that a rule could contain; with it in place the comparison must part from
the oracle in the question named beside it, and without it agree.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from costmodel import composites, domains, tokens
from costmodel.check import Comparison
from costmodel.expressions import Call, Constant, Div, Fft, Mul, Reduce, Sub
from costmodel.mixers import builtin
from costmodel.polynomial import Poly
from costmodel.rules import count, evaluate, span, state, traffic

Patch = pytest.MonkeyPatch
SIZES = {"l": 5, "d": 6, "n": 2}
MODULES = (domains, tokens, count, evaluate, span, state, traffic)


def _forget() -> None:
    """Empty every cache of the rules, so that a mutation is seen and then gone."""
    for module in MODULES:
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    _forget()
    yield
    _forget()


def _questions(name: str, form: str = "direct", rewrites: tuple[str, ...] = ()) -> set[str]:
    """The questions in which rules and oracle part, without the token they were asked at.

    A crash is no wrong answer and does not count: a mutation has to be found by its number.
    """
    made = Comparison(builtin(name), form, rewrites).at(SIZES)
    return {line.split(":")[0].split(" at ")[0] for line in made.apart if ", oracle " in line}


@pytest.mark.parametrize("name", ["self-attention", "she"])
@pytest.mark.parametrize("rewrites", [(), ("safe-softmax",)])
def test_without_a_mutation_they_agree(name: str, rewrites: tuple[str, ...]) -> None:
    assert Comparison(builtin(name), rewrites=rewrites).at(SIZES).apart == []


def test_without_a_mutation_transforms_agree() -> None:
    assert Comparison(builtin("he"), "fft").at(SIZES).apart == []


def a_sum_of_r_terms_takes_r_additions(patch: Patch) -> None:
    def rule(node: Reduce, points: Any) -> Iterator[tuple[str, Any]]:
        yield "add", points.inside(node.over).number()

    patch.setitem(count.RULES, Reduce, rule)


def one_addition_is_spared_in_all(patch: Patch) -> None:
    def rule(node: Reduce, points: Any) -> Iterator[tuple[str, Any]]:
        yield "add", points.inside(node.over).number() - domains.Exact.of(Poly.of(1))

    patch.setitem(count.RULES, Reduce, rule)


def the_triangular_bound_is_lost(patch: Patch) -> None:
    true = tokens.system_of

    def widened(mixer: Any, form: Any, rewrites: Any, phase: str) -> Any:
        system = true(mixer, form, rewrites, phase)
        return composites.lower(mixer.forms[system.form], (*rewrites, "dense"))

    patch.setattr("costmodel.rules.count.system_of", widened)


def functions_are_free(patch: Patch) -> None:
    patch.setitem(count.RULES, Call, count.RULES[Constant])


def every_function_is_counted_twice(patch: Patch) -> None:
    true = count.RULES[Call]

    def rule(node: Call, points: Any) -> Iterator[tuple[str, Any]]:
        yield from true(node, points)
        yield from true(node, points)

    patch.setitem(count.RULES, Call, rule)


def divisions_are_multiplications(patch: Patch) -> None:
    patch.setitem(count.RULES, Div, count.RULES[Mul])


def subtractions_are_free(patch: Patch) -> None:
    patch.setitem(count.RULES, Sub, count.RULES[Constant])


def a_real_transform_costs_a_complex_one(patch: Patch) -> None:
    true = count.RULES[Fft]

    def rule(node: Fft, points: Any) -> Iterator[tuple[str, Any]]:
        for name, number in true(node, points):
            yield name, number + number

    patch.setitem(count.RULES, Fft, rule)


def weights_are_transformed_for_every_input(patch: Patch) -> None:
    true = tokens.instances

    def all_dynamic(system: Any, phase: str) -> Any:
        return tuple(replace(part, once=False) for part in true(system, phase))

    patch.setattr("costmodel.rules.count.instances", all_dynamic)


def tokens_are_one_late(patch: Patch) -> None:
    true = tokens.at_token
    patch.setattr(tokens, "at_token", lambda domain, terms, t: true(domain, terms, t - 1))


def a_sum_takes_one_level(patch: Patch) -> None:
    patch.setattr(span, "terms_of", lambda over: Poly.of(2))


def the_last_term_is_the_first_to_be_ready(patch: Patch) -> None:
    patch.setitem(span.RULES, Reduce, span.RULES[Constant])


def a_transform_is_one_product_deep(patch: Patch) -> None:
    true = span.RULES[Fft]

    def rule(depths: Any, node: Fft, part: Any, around: Any) -> Any:
        return true(depths, replace(node, length=Poly.of(2)), part, around)

    patch.setitem(span.RULES, Fft, rule)


def the_newest_token_is_not_held(patch: Patch) -> None:
    patch.setattr("costmodel.rules.state.T", tokens.T - 1)


def an_entry_read_twice_moves_twice(patch: Patch) -> None:
    def added(axes: Any, regions: Any, one: Any) -> Any:
        total = domains.Exact()
        for region in regions:
            total = total + domains.union_size(axes, [region], one)
        return total

    patch.setattr(traffic, "union_size", added)


def subtraction_adds(patch: Patch) -> None:
    from costmodel.expressions import Add

    patch.setitem(evaluate.RULES, Sub, evaluate.RULES[Add])


MUTATIONS: list[tuple[Callable[[Patch], None], str, str, tuple[str, ...], str]] = [
    (a_sum_of_r_terms_takes_r_additions, "she", "direct", (), "counts"),
    (one_addition_is_spared_in_all, "me", "direct", (), "counts"),
    (the_triangular_bound_is_lost, "self-attention", "direct", (), "counts"),
    (functions_are_free, "self-attention", "direct", (), "counts"),
    (every_function_is_counted_twice, "self-attention", "direct", (), "counts"),
    (divisions_are_multiplications, "self-attention", "direct", (), "counts"),
    (subtractions_are_free, "self-attention", "direct", ("safe-softmax",), "counts"),
    (a_real_transform_costs_a_complex_one, "me", "fft", (), "counts"),
    (weights_are_transformed_for_every_input, "me", "fft", (), "counts"),
    (tokens_are_one_late, "she", "direct", (), "counts"),
    (a_sum_takes_one_level, "she", "direct", (), "span"),
    (the_last_term_is_the_first_to_be_ready, "self-attention", "direct", (), "span"),
    (a_transform_is_one_product_deep, "he", "fft", (), "span"),
    (the_newest_token_is_not_held, "she", "direct", (), "state"),
    (an_entry_read_twice_moves_twice, "she", "direct", (), "compulsory traffic"),
    (subtraction_adds, "we", "fft", (), "values"),
]


@pytest.mark.parametrize(
    ("mutate", "name", "form", "rewrites", "question"), MUTATIONS, ids=lambda v: _name(v)
)
def test_a_mutation_is_noticed(
    mutate: Callable[[Patch], None],
    name: str,
    form: str,
    rewrites: tuple[str, ...],
    question: str,
    monkeypatch: Patch,
) -> None:
    mutate(monkeypatch)
    assert question in _questions(name, form, rewrites)


def _name(value: object) -> str:
    return value.__name__ if isinstance(value, types.FunctionType) else str(value)
