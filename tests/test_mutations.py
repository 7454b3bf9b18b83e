"""Does the comparison with the oracle notice a wrong rule?

Each mutation is a mistake that a rule could contain; with it in place the comparison must part from
the oracle in the question named beside it, and without it agree.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from costmodel import Mixer, function, max_, min_, sum_, union
from costmodel.language.equations import Form, System
from costmodel.language.nodes import (
    Array,
    Call,
    Constant,
    Div,
    Fft,
    Gather,
    Mul,
    Reduce,
    Ref,
    Scan,
    Sub,
)
from costmodel.mixers import builtin
from costmodel.paths import growing_rows, hops, longest_path, reachability
from costmodel.program import (
    dependence,
    lowering,
    nonempty,
    owners,
    phases,
    tokens,
    trip_count,
)
from costmodel.proofs.against_oracle import OracleComparison
from costmodel.questions import evaluate, peak, span, subject, traffic
from costmodel.questions.counting import executed
from costmodel.questions.counting.executed import Executed
from costmodel.symbolic import constraints, piecewise, polyhedral_sums
from costmodel.symbolic.polynomial import Poly
from tests.small import complete

pytestmark = pytest.mark.usefixtures("mutated")

Patch = pytest.MonkeyPatch
SIZES = {"l": 5, "d": 6, "n": 2}


def _questions(name: str, form: str = "direct", rewrites: tuple[str, ...] = ()) -> set[str]:
    """The questions in which rules and oracle part, without the token they were asked at.

    A crash is no wrong answer and does not count: a mutation has to be found by its number.
    """
    made = OracleComparison(_mixer(name), form, rewrites).at(complete(_mixer(name), SIZES))
    return {line.split(":")[0].split(" at ")[0] for line in made.apart if ", executed " in line}


def before(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """x[i] + sum over j < i of tanh(x[j]): row 1 has no sum."""
    l, d = x.shape
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    j = f.index("j", 1, i - 1)
    y[i, b] = x[i, b] + sum_(function("tanh", x[j, b]), over=j)


def before_that(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Sums over j < i of sums over k < j, of which the first is none; row 1 reads nothing."""
    l, d = x.shape
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    j = f.index("j", 1, i - 1)
    k = f.index("k", 1, j - 1)
    y[i, b] = function("tanh", sum_(sum_(x[k, b], over=k), over=j))


def context(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """The rows of a context are projected, then read by every token."""
    (e,) = m.sizes("e")
    l, d = x.shape
    z, w, keys = m.context("z", e, d), m.parameter("w", d, d), f.array("keys", e, d)
    s, i, a, b = f.index("s", 1, e), f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
    keys[s, b] = sum_(z[s, a] * w[a, b], over=a)
    y[i, b] = sum_(x[i, b] * keys[s, b], over=s)


def gather(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Rows of a table at positions that a buffer holds."""
    (u,) = m.sizes("u")
    l, d = x.shape
    at, table = m.buffer("at", l, below=u), m.parameter("table", u, d)
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    y[i, b] = x[i, b] * table[at[i], b]


def chunks(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Every row of a chunk is multiplied by the sum of the chunk before."""
    (C,) = m.sizes("C")
    l, d = x.shape
    sums = f.array("sums", l // C, d)
    p, c = f.index("p", 1, l // C), f.index("c", 1, C)
    g, b = f.index("g", 2, l // C + 1), f.index("b", 1, d)
    first, u = f.index("first", 1, min_(C, l)), f.index("u", 1, min_(C, l - (g - 1) * C))
    sums[p, b] = sum_(x[(p - 1) * C + c, b], over=c)
    y[first, b] = x[first, b]
    y[(g - 1) * C + u, b] = x[(g - 1) * C + u, b] * sums[g - 1, b]


def sinks(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Scores of the first s rows and the last w, and their weighted sum."""
    w, s = m.sizes("w s")
    l, d = x.shape
    i, b, a = f.index("i", 1, l), f.index("b", 1, d), f.index("a", 1, d)
    k = f.index("k", union((1, min_(s, i)), (max_(s + 1, i - w + 1), i)))
    z = f.array("z", l, l)
    z[i, k] = sum_(x[i, a] * x[k, a], over=a)
    y[i, b] = sum_(z[i, k] * x[k, b], over=k)


def keys(m: Mixer, f: Form, x: Array, y: Array) -> None:
    """Scores of the key and the distance alone."""
    l, d = x.shape
    i, b = f.index("i", 1, l), f.index("b", 1, d)
    k = f.index("k", 1, i)
    w, z = m.parameter("w", l), f.array("z", l, l, d)
    z[i, k, b] = x[k, b] * w[i - k + 1]
    y[i, b] = sum_(z[i, k, b], over=k)


OWN = {w.__name__: w for w in (before, before_that, context, gather, chunks, sinks, keys)}
"""Small systems for what few built-in mixers need."""


def _mixer(name: str) -> Mixer:
    if name not in OWN:
        return builtin(name)
    made = Mixer(name)
    l, d = made.sizes("l d")
    x, y = made.input("x", l, d), made.output("y", l, d)
    with made.form("direct") as f:
        OWN[name](made, f, x, y)
    return made


@pytest.mark.parametrize("name", OWN)
def test_without_a_mutation_small_systems_agree(name: str) -> None:
    assert OracleComparison(_mixer(name)).at(complete(_mixer(name), SIZES)).apart == []


@pytest.mark.parametrize("name", ["recurrent", "lstm"])
def test_without_a_mutation_recurrences_agree(name: str) -> None:
    assert OracleComparison(builtin(name)).at(complete(builtin(name), SIZES)).apart == []


@pytest.mark.parametrize("name", ["self-attention", "she"])
@pytest.mark.parametrize("rewrites", [(), ("safe-softmax",)])
def test_without_a_mutation_they_agree(name: str, rewrites: tuple[str, ...]) -> None:
    assert OracleComparison(builtin(name), rewrites=rewrites).at(SIZES).apart == []


def test_without_a_mutation_transforms_agree() -> None:
    assert OracleComparison(builtin("he"), "fft").at(SIZES).apart == []


def a_sum_of_r_terms_takes_r_additions(patch: Patch) -> None:
    def rule(node: Reduce, points: Any) -> Iterator[Executed]:
        yield Executed("add", points, terms=node)

    patch.setitem(executed.RULES, Reduce, rule)


def one_addition_is_spared_in_all(patch: Patch) -> None:
    def rule(node: Reduce, points: Any) -> Iterator[Executed]:
        yield Executed("add", points, terms=node)
        yield Executed("add", points, Poly.of(-1), along=())

    patch.setitem(executed.RULES, Reduce, rule)


def the_triangular_bound_is_lost(patch: Patch) -> None:
    true = subject.system_of

    def widened(mixer: Any, form: Any, rewrites: Any, phase: str) -> Any:
        system = true(mixer, form, rewrites, phase)
        return lowering.lower(mixer.forms[system.form], (*rewrites, "dense"))

    patch.setattr("costmodel.questions.count.system_of", widened)


def functions_are_free(patch: Patch) -> None:
    patch.setitem(executed.RULES, Call, executed.RULES[Constant])


def every_function_is_counted_twice(patch: Patch) -> None:
    true = executed.RULES[Call]

    def rule(node: Call, points: Any) -> Iterator[Executed]:
        yield from true(node, points)
        yield from true(node, points)

    patch.setitem(executed.RULES, Call, rule)


def divisions_are_multiplications(patch: Patch) -> None:
    patch.setitem(executed.RULES, Div, executed.RULES[Mul])


def subtractions_are_free(patch: Patch) -> None:
    patch.setitem(executed.RULES, Sub, executed.RULES[Constant])


def a_real_transform_costs_a_complex_one(patch: Patch) -> None:
    true = executed.RULES[Fft]

    def rule(node: Fft, points: Any) -> Iterator[Executed]:
        for one in true(node, points):
            yield replace(one, times=one.times * 2)

    patch.setitem(executed.RULES, Fft, rule)


def weights_are_transformed_for_every_input(patch: Patch) -> None:
    true = phases.iteration_domains

    def all_dynamic(system: Any, phase: str) -> Any:
        return tuple(replace(part, once=False) for part in true(system, phase))

    patch.setattr("costmodel.questions.counting.by_equation.iteration_domains", all_dynamic)


def tokens_are_one_late(patch: Patch) -> None:
    true = dependence.at_token
    patch.setattr(phases, "at_token", lambda domain, terms, t: true(domain, terms, t - 1))


def a_sum_takes_one_level(patch: Patch) -> None:
    patch.setattr(trip_count, "terms_of", lambda over: Poly.of(2))


def the_last_term_is_the_first_to_be_ready(patch: Patch) -> None:
    patch.setitem(span.RULES, Reduce, span.RULES[Constant])


def a_transform_is_one_product_deep(patch: Patch) -> None:
    true = span.RULES[Fft]

    def rule(depths: Any, node: Fft, part: Any, around: Any) -> Any:
        return true(depths, replace(node, length=Poly.of(2)), part, around)

    patch.setitem(span.RULES, Fft, rule)


def products_of_decays_are_free(patch: Patch) -> None:
    patch.setitem(executed.RULES, Scan, executed.RULES[Fft])


def a_scan_is_one_combination_deep(patch: Patch) -> None:
    true = span.RULES[Scan]

    def rule(depths: Any, node: Scan, part: Any, around: Any) -> Any:
        return true(depths, replace(node, length=Poly.of(2)), part, around)

    patch.setitem(span.RULES, Scan, rule)


def the_newest_token_is_not_held(patch: Patch) -> None:
    patch.setattr("costmodel.questions.state.T", phases.T - 1)


def an_entry_read_twice_moves_twice(patch: Patch) -> None:
    def added(axes: Any, regions: Any, one: Any) -> Any:
        total = piecewise.Exact()
        for region in regions:
            total = total + polyhedral_sums.union_size(axes, [region], one)
        return total

    patch.setattr(traffic, "union_size", added)


def subtraction_adds(patch: Patch) -> None:
    from costmodel.language.nodes import Add

    patch.setitem(evaluate.RULES, Sub, evaluate.RULES[Add])


def the_first_row_is_counted_like_the_rest(patch: Patch) -> None:
    true = subject.system_of

    def started(mixer: Any, form: Any, rewrites: Any, phase: str) -> Any:
        system = true(mixer, form, rewrites, phase)
        return lowering.lower(mixer.forms[system.form], (*rewrites, "zero-state"))

    patch.setattr("costmodel.questions.count.system_of", started)


def rows_follow_each_other_once_more(patch: Patch) -> None:
    """l times the levels of a row instead of l - 1."""
    true = growing_rows.GrowingRows.levels

    def levels(growth: Any, low: Any, where: Any) -> Iterator[Any]:
        for array, level in true(growth, low, where):
            yield array, level + (growth.rate or 0)

    patch.setattr(growing_rows.GrowingRows, "levels", levels)


def rows_do_not_wait_for_each_other(patch: Patch) -> None:
    patch.setattr(longest_path, "in_turn", lambda *of: False)


def all_rows_are_evaluated_at_once(patch: Patch) -> None:
    patch.setattr(evaluate, "in_turn", lambda block, sizes: iter(block.equations))


def adding_a_sum_over_no_term_is_an_addition(patch: Patch) -> None:
    patch.setattr(trip_count.Points, "carried_out", lambda points, node: nonempty.EVERYWHERE)


def a_sum_that_may_be_empty_takes_r_additions(patch: Patch) -> None:
    true = executed.RULES[Reduce]

    def rule(node: Reduce, points: Any) -> Iterator[Executed]:
        mac = replace(points, accounting="mac")
        yield from true(node, mac if nonempty.may_be_empty(points.equation) else points)

    patch.setitem(executed.RULES, Reduce, rule)


def a_sum_over_no_term_spares_an_addition(patch: Patch) -> None:
    patch.setattr(trip_count.Points, "present", lambda points, node: nonempty.EVERYWHERE)


def a_term_that_is_no_term_takes_levels(patch: Patch) -> None:
    patch.setattr(span, "numbers_of_terms", lambda node, part, around: _every_term(node))


def _every_term(node: Reduce) -> Iterator[tuple[Poly, Any]]:
    yield trip_count.terms_of(node.over), frozenset()


def a_row_that_reads_nothing_has_a_token(patch: Patch) -> None:
    patch.setattr(tokens, "in_parts", lambda domain, terms, context: [(domain, True)])


def every_token_projects_the_context(patch: Patch) -> None:
    true = phases.iteration_domains

    def more(system: Any, phase: str) -> Any:
        known = tokens.tokens(system)
        whole = known.from_inputs_or_contexts - known.from_inputs if phase == "inference" else set()
        again = (e for e in system.equations if e.array in whole)
        return (*true(system, phase), *(phases.IterationDomain(e, e.domain, False) for e in again))

    patch.setattr("costmodel.questions.counting.by_equation.iteration_domains", more)


def a_context_is_one_of_the_weights(patch: Patch) -> None:
    patch.setattr(
        tokens.Tokens, "from_inputs_or_contexts", property(lambda known: known.from_inputs)
    )


def a_gather_costs_an_operation(patch: Patch) -> None:
    def rule(node: Ref, points: Any) -> Iterator[Executed]:
        if any(isinstance(position, Gather) for position in node.positions):
            yield Executed("add", points)

    patch.setitem(executed.RULES, Ref, rule)


def a_lower_bound_is_rounded_down(patch: Patch) -> None:
    patch.setattr(constraints, "ceil_div", lambda above, below: above // below)


def the_sums_of_two_ranges_are_added_up(patch: Patch) -> None:
    true = executed.RULES[Reduce]

    def rule(node: Reduce, points: Any) -> Iterator[Executed]:
        yield from true(node, points)
        if len(node.parts) > 1:
            yield Executed("add", points)

    patch.setitem(executed.RULES, Reduce, rule)


def only_the_first_range_takes_levels(patch: Patch) -> None:
    true = trip_count.numbers_of_terms

    def first(node: Any, part: Any, around: Any) -> Any:
        return true(node.parts[0], part, around)

    patch.setattr(span, "numbers_of_terms", first)


def only_the_first_range_is_evaluated(patch: Patch) -> None:
    true = evaluate.RULES[Reduce]
    patch.setitem(evaluate.RULES, Reduce, lambda grid, node: true(grid, node.parts[0]))


def every_range_reads_by_itself(patch: Patch) -> None:
    alone = property(lambda system: tuple((equation,) for equation in system.equations))
    patch.setattr(System, "written", alone)


def work_is_that_of_the_last_row_it_reads(patch: Patch) -> None:
    true = owners.Owners.instance
    patch.setattr(
        owners.Owners,
        "instance",
        lambda known, e: true(known, e) and known.tokens.instance(e),
    )


def a_sum_of_a_chunk_waits_for_its_readers(patch: Patch) -> None:
    patch.setattr(owners.Owners, "_is_summary", lambda *_: False)


def no_loop_goes_row_by_row(patch: Patch) -> None:
    patch.setattr(peak, "_row_by_row", lambda *_: False)


def every_array_is_held_to_the_end(patch: Patch) -> None:
    true = peak.held_arrays
    patch.setattr(
        peak,
        "held_arrays",
        lambda system, phase, steps: (
            replace(held, last=len(steps) - 1) for held in true(system, phase, steps)
        ),
    )


def every_row_reads_all_rows(patch: Patch) -> None:
    patch.setattr(reachability, "each_row_reads_all", lambda known: True)


def a_hop_is_longer_by_a_row(patch: Patch) -> None:
    true = hops.evenly
    patch.setattr(hops, "evenly", lambda back, ahead, ends: true(back, ahead, ends + 1))


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
    (products_of_decays_are_free, "rg-lru+core", "scan", (), "counts"),
    (a_scan_is_one_combination_deep, "rg-lru+core", "scan", (), "span"),
    (the_newest_token_is_not_held, "she", "direct", (), "state"),
    (an_entry_read_twice_moves_twice, "she", "direct", (), "compulsory traffic"),
    (subtraction_adds, "we", "fft", (), "values"),
    (the_first_row_is_counted_like_the_rest, "recurrent", "recurrent", (), "counts"),
    (the_first_row_is_counted_like_the_rest, "lstm", "recurrent", (), "counts"),
    (rows_follow_each_other_once_more, "recurrent", "recurrent", (), "span"),
    (rows_follow_each_other_once_more, "lstm", "recurrent", (), "span"),
    (rows_do_not_wait_for_each_other, "recurrent", "recurrent", (), "span"),
    (all_rows_are_evaluated_at_once, "recurrent", "recurrent", (), "values"),
    (adding_a_sum_over_no_term_is_an_addition, "before", "direct", (), "counts"),
    (a_sum_that_may_be_empty_takes_r_additions, "before", "direct", (), "counts"),
    (a_sum_over_no_term_spares_an_addition, "before", "direct", (), "counts"),
    (a_term_that_is_no_term_takes_levels, "before_that", "direct", (), "span"),
    (a_row_that_reads_nothing_has_a_token, "before_that", "direct", (), "counts"),
    (every_token_projects_the_context, "context", "direct", (), "counts"),
    (a_context_is_one_of_the_weights, "context", "direct", (), "counts"),
    (a_context_is_one_of_the_weights, "context", "direct", (), "state"),
    (a_gather_costs_an_operation, "gather", "direct", (), "counts"),
    (a_lower_bound_is_rounded_down, "chunks", "direct", (), "state"),
    (the_sums_of_two_ranges_are_added_up, "sinks", "direct", (), "counts"),
    (only_the_first_range_takes_levels, "sinks", "direct", (), "span"),
    (only_the_first_range_is_evaluated, "sinks", "direct", (), "values"),
    (work_is_that_of_the_last_row_it_reads, "keys", "direct", (), "counts"),
    (a_sum_of_a_chunk_waits_for_its_readers, "chunks", "direct", (), "state"),
    (every_range_reads_by_itself, "sinks", "direct", (), "unfused traffic"),
    (no_loop_goes_row_by_row, "lstm", "recurrent", (), "peak"),
    (every_array_is_held_to_the_end, "self-attention", "direct", (), "peak"),
    (every_row_reads_all_rows, "recurrent", "recurrent", (), "path length"),
    (every_row_reads_all_rows, "convolution", "direct", (), "path length"),
    (a_hop_is_longer_by_a_row, "lstm", "recurrent", (), "path length"),
]


@pytest.mark.grid(2)
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
