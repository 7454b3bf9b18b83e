"""Are the sequential operations the steps of the critical path, and those of an execution?

Executed with sums that take one step each, the longest chain of operations has as many steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import cycle, pairwise

import pytest
from hypothesis import Phase, given, settings, strategies as st

import costmodel as cm
from costmodel import Mixer
from costmodel.errors import Unsupported
from costmodel.language.nodes import Add, Bracket, Neg, Node, Reduce, Ref
from costmodel.oracle.execute import execute, run
from costmodel.paths.chains import Repeat, Step
from costmodel.program.recurrences import references
from costmodel.questions import sequential as rule, span
from costmodel.questions.subject import system_of
from costmodel.symbolic.polynomial import Poly
from tests import chunk_systems, systems
from tests.small import complete, distinct, has_inference
from tests.systems import examples

FORMS = distinct()


def executed(mixer: Mixer, form: str, sizes: Mapping[str, int], t: int | None = None) -> int:
    """The longest chain of an execution in which a sum is one step, however many terms it has."""
    done = execute(mixer.forms[form], sizes)
    return done.steps() if t is None else done.steps_inference(t)


@pytest.mark.grid(2)
@pytest.mark.parametrize("phase", ["backward", "training-step"])
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 8])
def test_the_steps_of_gradients_in_chunks(chunk: int, phase: str) -> None:
    """With one chunk, two and more, full and short: the path through the gradients of linear
    attention tells the rows of the first chunk from the others'."""
    mixer = cm.mixer("linear-attention")
    system = system_of(mixer, "chunked", (), phase)
    ready = system.forward.equations if phase == "backward" else ()
    steps = cm.sequential(mixer, phase, "chunked")
    for length in (*range(1, 10), 12, 13, 16, 17, 20):
        sizes = complete(mixer, {"l": length, "C": chunk, "d": 1, "n": 1})
        path = cm.critical_path(mixer, phase, "chunked", sizes=sizes)
        assert path.length.at(sizes) == steps.at(**sizes), sizes
        if length <= 2 * chunk + 1 and chunk < 4:
            done = run(system, sizes, ready=ready)
            assert done.steps() == steps.at(**sizes), sizes


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("name", "form", "phase"),
    [
        (*form, phase)
        for form, phase in zip(FORMS, cycle(["training", "backward", "training-step"]))
    ],
)
def test_every_step_of_a_path_reads_the_one_before(name: str, form: str, phase: str) -> None:
    """A path is as long as the sequential operations; each of its steps stands in the equation of
    the step before or in one that reads that equation's array, itself or copied, from row to row of
    a loop too."""
    mixer = cm.mixer(name)
    sizes = complete(mixer, {"l": 9, "d": 4, "n": 2})
    path = cm.critical_path(mixer, phase, form, sizes=sizes)
    assert path.length.at(sizes) == cm.sequential(mixer, phase, form).at(**sizes)
    system = system_of(mixer, form, (), phase)
    read: dict[str, set[str]] = {}
    copies = [e for e in system.equations if isinstance(_chosen(e.value), Ref)]
    for equation in system.equations:
        inside = {ref.array for ref in references(equation)}
        while more := {a for e in copies if e.array in inside for a in e.value.arrays} - inside:
            inside |= more
        made = {e.part_of for e in system.equations if e.array in inside}
        read.setdefault(equation.part_of, {equation.part_of}).update(made)
    equations: list[str] = []
    for step in path.taken:
        rows = step.steps * 2 if isinstance(step, Repeat) else (step,)
        equations += [one.equation for one in rows if isinstance(one, Step)]
    assert all(before in read[after] for before, after in pairwise(equations)), equations


def _chosen(value: Node) -> Node:
    """What is copied, maybe negated, where a largest entry was."""
    while isinstance(value, Bracket | Neg):
        value = value.body
    return value


BY_HAND: Mapping[tuple[str, str], Callable[[int], int]] = {
    # projections, scores, scale, three of the softmax, values and the last map, 2 steps a product
    ("self-attention", "direct"): lambda l: 2 + 2 + 1 + 3 + 2 + 2,
    # extraction, the gate's product, the last map (Chen 2023, arXiv 2308.07661v1, section 7)
    ("she", "direct"): lambda l: 2 + 1 + 2,
    # a product and one sum over taps and channels
    ("convolution", "direct"): lambda l: 2,
    # the first row's map, bias and tanh; then U h, its sum, + and tanh for every row
    ("recurrent", "recurrent"): lambda l: 4 + 4 * (l - 1),
}


@pytest.mark.parametrize(("name", "form"), BY_HAND)
@pytest.mark.parametrize("l", [1, 2, 3, 8, 33])
def test_sequential_operations_equal_steps_counted_by_hand(name: str, form: str, l: int) -> None:
    steps = cm.sequential(cm.mixer(name), form=form)
    assert steps.at(l=l) == BY_HAND[name, form](l)


@pytest.mark.parametrize(
    ("name", "printed"),
    [("self-attention", "12"), ("recurrent", "4*l"), ("convolution-same", "2")],
)
def test_sequential_operations_are_printed_in_closed_form(name: str, printed: str) -> None:
    assert str(cm.sequential(cm.mixer(name))) == printed


@pytest.mark.parametrize(("name", "form"), FORMS)
@pytest.mark.parametrize("phase", ["training", "inference"])
def test_they_are_the_steps_of_the_critical_path(name: str, form: str, phase: str) -> None:
    mixer = cm.mixer(name)
    if phase == "inference" and not has_inference(mixer, form):
        with pytest.raises(cm.Unanswered):
            cm.sequential(mixer, phase, form)
        return
    for length in (1, 2, 3, 4, 5, 9):
        sizes = complete(mixer, {"l": length, "d": 6, "n": 2}) | {"t": length}
        path = cm.critical_path(mixer, phase, form, sizes=sizes)
        assert cm.sequential(mixer, phase, form).at(**sizes) == path.length.at(sizes), length


def test_sequential_operations_of_random_systems_equal_execution() -> None:
    """The comparison would prove nothing if most were refusals."""
    asked: Counter[bool] = Counter()

    @given(mixer=systems.mixers(), sizes=systems.sizes(), length=st.integers(1, 5))
    @settings(max_examples=examples(100))
    def ask(mixer: Mixer, sizes: dict[str, int], length: int) -> None:
        at = {**sizes, "l": length}
        try:
            derived = cm.sequential(mixer)
        except Unsupported:
            asked[False] += 1
            return
        asked[True] += 1
        assert derived.at(**at) == executed(mixer, "direct", at), at

    ask()
    assert asked[True] >= 0.8 * asked.total()


@given(mixer=chunk_systems.mixers(), sizes=chunk_systems.sizes())
@settings(max_examples=examples(20), phases=[Phase.explicit, Phase.generate])
def test_the_critical_path_of_random_chunks(mixer: Mixer, sizes: dict[str, int]) -> None:
    """Where steps are counted there is a path of so many, whether or not ties are told by span."""
    for phase in ("backward", "training-step"):
        try:
            steps = cm.sequential(mixer, phase)
        except Unsupported:
            continue
        path = cm.critical_path(mixer, phase, sizes=sizes)
        assert path.length.at(sizes) == steps.at(**sizes), sizes


def _two_chains() -> Mixer:
    """h[i] = h[i-1] + x[i], one step a row; and ten steps on x[i] that are there at once."""
    mixer = Mixer("two-chains")
    l = mixer.sizes("l")[0]
    x, y = mixer.input("x", l), mixer.output("y", l)
    with mixer.form("direct") as form:
        i, rest = form.index("i", 1, l), form.index("rest", 2, l)
        h = form.array("h", l)
        h[1] = x[1] * 2
        h[rest] = h[rest - 1] + x[rest]
        deep: Node = x[i] * 2
        for _ in range(9):
            deep = cm.function("tanh", deep)
        y[i] = deep * h[i]
    return mixer


@pytest.mark.parametrize("l", [1, 2, 9, 10, 11, 12, 40])
def test_the_longer_of_two_chains(l: int) -> None:
    """Ten steps, or l, whichever is more; then a product."""
    mixer = _two_chains()
    assert cm.sequential(mixer).at(l=l) == max(10, l) + 1 == executed(mixer, "direct", {"l": l})
    assert cm.sequential(mixer).exact.at({"l": l}) == max(10, l) + 1


@pytest.mark.parametrize("t", [1, 2, 5])
def test_one_token_of_a_recurrence_waits_for_nothing(t: int) -> None:
    """The first row has no product with a row before it: one addition less."""
    mixer, sizes = cm.mixer("recurrent"), {"l": 6, "d": 2}
    assert cm.sequential(mixer, "inference").at(**sizes, t=t) == 4 + (t > 1)
    assert executed(mixer, "recurrent", sizes, t) == 4 + (t > 1)


def test_what_is_not_causal_has_none_for_a_token() -> None:
    with pytest.raises(cm.Unanswered, match="not causal"):
        cm.sequential(cm.mixer("convolution-same"), "inference")


def test_a_node_without_a_rule_is_an_error(mutated: pytest.MonkeyPatch) -> None:
    mutated.delitem(rule.STEPS, Add)
    with pytest.raises(Unsupported, match="Add has no rule in sequential"):
        cm.sequential(cm.mixer("recurrent"))


def test_a_sum_in_levels_would_be_noticed(mutated: pytest.MonkeyPatch) -> None:
    """A test of the tests: with the span's own rule for sums nothing above agrees."""
    mutated.setitem(rule.STEPS, Reduce, span.RULES[Reduce])
    sizes = {"l": 5, "d": 6, "n": 2}
    mixer = cm.mixer("self-attention")
    assert cm.sequential(mixer).at(**sizes) != executed(mixer, "direct", sizes)


def test_steps_are_derived_once_for_all_sizes() -> None:
    mixer = cm.mixer("lstm")
    rule.steps_of.cache_clear()
    for length in (4093, 4094):
        cm.critical_path(mixer, sizes={"l": length, "d": 4})
    cm.sequential(mixer)
    assert rule.steps_of.cache_info().misses == 1


def test_terms_are_polynomials_in_the_sizes() -> None:
    assert cm.sequential(cm.mixer("lstm")).terms == (10 * Poly.atom("l") - 1,)


def substitution() -> cm.Mixer:
    """W[s,r]: row r after s - 1 steps of a forward substitution."""
    made = cm.Mixer("substitution")
    l, d = made.sizes("l d")
    x, y = made.input("x", l, d), made.output("y", l, d)
    with made.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        s, k = f.index("s", 2, l), f.index("k", 1, i)
        r = f.index("r", s, l)
        W = f.array("W", l, l, d)
        W[1, i, a] = x[i, a] * x[i, a]
        W[s, r, a] = W[s - 1, r, a] - x[r, a] * W[s - 1, s - 1, a]
        y[i, a] = cm.sum_(W[k, k, a], over=k)
    return made


def test_one_token_goes_on_from_its_own_rows_alone() -> None:
    """The row that a step takes away is an older token's: its product waits for nothing."""
    mixer = substitution()
    levels, steps = cm.span(mixer, "inference"), cm.sequential(mixer, "inference")
    for length in (1, 2, 5):
        sizes = {"l": length, "d": 2}
        run = execute(mixer.forms["direct"], sizes)
        for t in range(1, length + 1):
            assert levels.at(t=t, **sizes) == run.span_inference(t), (t, sizes)
            assert steps.at(t=t, **sizes) == run.steps_inference(t), (t, sizes)
    assert [levels.at(t=t, l=5, d=2) for t in (1, 2, 5)] == [1, 2 + 1, 1 + 4 + 3]
    path = cm.critical_path(mixer, "inference", sizes={"l": 9, "d": 2, "t": 9})
    assert path.length.at({"t": 9}) == 1 + 8 + 1
