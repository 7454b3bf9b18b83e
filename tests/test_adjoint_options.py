"""What does a backward pass cost under recomputation, or for some gradients only?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import cycle
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import cli
import costmodel as cm
from costmodel import EquationError, Mixer, Unanswered
from costmodel.adjoint import recompute as module
from costmodel.errors import ConventionError
from costmodel.language import nodes
from costmodel.language.equations import Equation, System
from costmodel.mixers import builtin
from costmodel.networks.part_costs import counting
from costmodel.oracle.execute import Execution, execute, random_arrays, run
from costmodel.oracle.scalars import Instance
from costmodel.program.chosen_sizes import given_sizes, one_combination
from costmodel.program.conventions import WANTED, Convention, convention
from costmodel.program.recurrences import blocks
from costmodel.proofs.gradients import GradientComparison
from costmodel.questions.counting.counts import with_once as classes
from costmodel.questions.question import Case, answers
from costmodel.questions.registry import FIGURES
from costmodel.questions.subject import Training, system_of
from costmodel.report.document import Document, Page
from costmodel.report.explanation import Explanation
from costmodel.report.formats import write
from tests import small, systems
from tests.systems import examples

SIZES = (
    {"l": 3, "d": 4, "n": 2},
    {"l": 1, "d": 2, "n": 1, "w": 3, "C": 3},
    {"l": 5, "d": 4, "n": 2, "k": 3, "C": 2},
)
FORMS = small.distinct()
T = TypeVar("T")


def in_turn(others: Iterable[T]) -> list[tuple[str, str, T]]:
    """Each form with one of these."""
    return [(*form, other) for form, other in zip(FORMS, cycle(others))]


EACH_AT_A_SIZE = pytest.mark.parametrize(("name", "form", "sizes"), in_turn(SIZES), ids=str)


def complete(mixer: Mixer, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes that a mixer has."""
    return small.complete(mixer, {k: v for k, v in sizes.items() if k in ("l", *mixer.letters)})


def some(mixer: Mixer, form: str) -> tuple[str, ...]:
    """Every second array that the form's file writes, the first one among them."""
    return tuple(dict.fromkeys(e.array.name for e in mixer.forms[form].equations))[::2]


def agree(name: str, form: str, rewrites: tuple[str, ...]) -> None:
    """Counts, span, traffic, what is kept and values, against the execution of the equations."""
    mixer = builtin(name)
    made = GradientComparison(mixer, form, rewrites)
    for sizes in SIZES[:2]:
        made.at(complete(mixer, sizes))
    assert made.apart == []
    left = [line for line in made.refused if not line.endswith(UNDERIVED)]
    assert all("traffic" in line and line.endswith(CHOSEN) for line in left), left


UNDERIVED = "index q skips entries by a stride of B"
"""Why the span of a gradient summed over rows of one place in their blocks is searched."""
CHOSEN = "depends on the values of bucket, so that the traffic has no formula"
"""Why there is no traffic of learned numbers that a table chooses."""


@pytest.mark.grid(4)
@pytest.mark.parametrize(
    ("name", "form", "option"), in_turn(("recompute=all", "only=parameters", "some", "only=inputs"))
)
def test_forms_under_an_option_equal_their_execution(name: str, form: str, option: str) -> None:
    """The options act on a system of equations by its references alone: each takes a quarter of the
    forms, and random systems all of them."""
    if option == "only=parameters" and not builtin(name).parameters:
        pytest.skip("the mixer has no parameters: refused, see below")
    again = tuple(f"recompute={array}" for array in some(builtin(name), form))
    agree(name, form, again if option == "some" else (option,))


@pytest.mark.parametrize("rewrite", ["safe-softmax", "dense", "softmax-gradient"])
@pytest.mark.parametrize("name", ["self-attention", "fastformer", "convolution"])
def test_recomputation_beside_other_rewrites_equals_execution(name: str, rewrite: str) -> None:
    agree(name, builtin(name).default_form, (rewrite, "recompute=all", "only=inputs"))


CHOICES = st.sampled_from(
    (("recompute=all",), ("only=parameters",), ("only=inputs",), ("only=inputs", "recompute=all"))
)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(systems.mixers(), systems.sizes(), CHOICES | st.just(("some",)))
def test_gradients_of_random_systems_with_options_equal_execution(
    mixer: Mixer, sizes: dict[str, int], choice: tuple[str, ...]
) -> None:
    if choice == ("some",):
        choice = tuple(f"recompute={array}" for array in some(mixer, "direct"))
    made = GradientComparison(mixer, "direct", choice)
    try:
        made.at({k: v for k, v in sizes.items() if k in ("l", *mixer.letters)})
    except Unanswered:
        return
    assert made.apart == []


@pytest.mark.grid(6)
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_gradients_keep_their_values(name: str, form: str) -> None:
    """Computed again or kept: the numbers are the same, to the last bit."""
    mixer = builtin(name)
    sizes = complete(mixer, SIZES[0])
    arrays = random_arrays(mixer.forms[form], sizes)
    shape = tuple(extent.at(sizes) for extent in mixer.role("output").shape)
    output = np.random.default_rng(2).uniform(-1, 1, shape)

    def found(**training: Any) -> dict[str, Any]:
        return cm.gradients(mixer, arrays, output, sizes, form, **training)

    plain = found()
    for again in ("all", some(mixer, form)):
        same = found(recompute=again)
        assert same.keys() == plain.keys()
        assert all(np.array_equal(same[array], plain[array]) for array in plain)
    parts: dict[str, Any] = {}
    for only in ("parameters", "inputs") if mixer.parameters else ("inputs",):
        mine = found(only=only)
        assert not parts.keys() & mine.keys()
        parts |= mine
    assert parts.keys() == plain.keys()
    # the same sums, of which parts may be taken in another order
    assert all(np.allclose(parts[a], plain[a], rtol=1e-12, atol=1e-14) for a in plain)


def operations(instances: Collection[Instance]) -> dict[str, int]:
    """Operations by class."""
    total: Counter[str] = Counter()
    for instance in instances:
        total.update(instance.operations)
    return {name: number for name, number in sorted(total.items()) if number}


def forward_operations(mixer: Mixer, form: str, arrays: Collection[str], sizes: Any) -> Any:
    """What the forward pass executes for some arrays, by class."""
    system = system_of(mixer, form, (), "backward").forward
    done = run(system, sizes)
    numbers = {k for k, e in enumerate(system.equations) if e.name in arrays}
    return operations([i for i in done.instances if i.equation in numbers])


@pytest.mark.grid(2)
@EACH_AT_A_SIZE
def test_counts_grow_by_what_is_recomputed(name: str, form: str, sizes: Mapping[str, int]) -> None:
    """By the forward operations of the arrays that are computed again, each as often as there; and
    what is kept is inputs alone if that is everything."""
    mixer = builtin(name)
    known = complete(mixer, sizes)
    plain = classes(cm.count(mixer, "backward", form).at(**known))
    for again in ("all", some(mixer, form)):
        names = ("all",) if again == "all" else again
        system = system_of(mixer, form, tuple(f"recompute={n}" for n in names), "backward")
        copies = {e.name for e in system.backward if e.name.endswith(".again")}
        more = forward_operations(
            mixer, form, {copy.removesuffix(".again") for copy in copies}, known
        )
        found = classes(cm.count(mixer, "backward", form, recompute=again).at(**known))
        assert Counter(found) == Counter(plain) + Counter(more)
        kept = cm.activations(mixer, form, recompute=again)
        left = {*kept.arrays, *kept.once} & {copy.removesuffix(".again") for copy in copies}
        assert left == set()
        if again == "all":
            roles = {mixer.arrays[array].role for array in (*kept.arrays, *kept.once)}
            assert roles <= {"input", "context"}
            assert kept.at(**known) <= cm.activations(mixer, form).at(**known) + sum(
                np.prod([e.at(known) for e in a.shape], dtype=int)
                for a in mixer.arrays.values()
                if a.role in ("input", "context")
            )


def needed(done: Execution, system: System, only: str) -> dict[int, Instance]:
    """The instances that gradients of some arrays depend on, read off the execution of all."""
    writers = {entry: instance for instance in done.instances for entry in instance.writes}
    roles = WANTED[only]
    names = {f"{a.name}.grad" for a in system.mixer.arrays.values() if a.role in roles}
    waiting = [entry for entry in writers if entry[0].name in names]
    found: dict[int, Instance] = {}
    while waiting:
        instance = writers.get(waiting.pop())
        if instance is not None and id(instance) not in found:
            found[id(instance)] = instance
            waiting += instance.reads
    return found


@pytest.mark.grid(2)
@EACH_AT_A_SIZE
def test_nothing_is_computed_that_no_wanted_gradient_needs(
    name: str, form: str, sizes: Mapping[str, int]
) -> None:
    """Those of parameters and those of inputs together take what both need twice."""
    mixer = builtin(name)
    known = complete(mixer, sizes)
    system = system_of(mixer, form, (), "backward")
    done = run(system, known, ready=system.forward.equations)
    parts = {only: needed(done, system, only) for only in WANTED}
    totals: Counter[str] = Counter()
    for only, instances in parts.items():
        if only == "parameters" and not mixer.parameters:
            assert instances == {}
            continue
        counts = cm.count(mixer, "backward", form, only=only)  # type: ignore[arg-type]
        found = classes(counts.at(**known))
        assert found == operations(instances.values())
        totals.update(found)
    both = parts["parameters"].keys() & parts["inputs"].keys()
    totals.subtract(operations([parts["inputs"][k] for k in both]))
    assert {k: n for k, n in totals.items() if n} == classes(
        cm.count(mixer, "backward", form).at(**known)
    )


def test_recomputed_attention_equals_a_count_by_hand() -> None:
    """The softmax of l (l+1) / 2 scores a head is an exponential and a division each, l sums take
    l (l+1) / 2 - l additions; of the scores A the backward pass keeps Z in place of A and A.exp."""
    m, sizes = cm.mixer("self-attention"), {"l": 6, "d": 4, "n": 2}
    pairs = 2 * 21
    plain = cm.count(m, "backward").at(**sizes)
    again = cm.count(m, "backward", recompute="A").at(**sizes)
    assert (again.exp, again.div - plain.div, again.add - plain.add) == (pairs, pairs, pairs - 12)
    assert again.mul == plain.mul and plain.exp == 0
    # x, Q, K, V, R: l d each; A and A.exp of all pairs, A.sum of all rows
    assert cm.activations(m).at(**sizes) == 5 * 24 + 2 * pairs + 12
    assert cm.activations(m, recompute="A").at(**sizes) == 5 * 24 + pairs
    assert cm.activations(m, recompute=("A", "Z")).at(**sizes) == 5 * 24
    assert cm.activations(m, recompute="all").at(**sizes) == 24
    # gradients of the three projections with respect to x take l d^2 products each, as do W.grad
    parameters = cm.count(m, "backward", only="parameters").at(**sizes)
    inputs = cm.count(m, "backward", only="inputs").at(**sizes)
    assert plain.mul - parameters.mul == 3 * 6 * 16 and plain.mul - inputs.mul == 4 * 6 * 16


def test_what_a_gradient_reads_is_kept_and_not_computed_again() -> None:
    """x^2 w: the squares are read for the gradient of w alone. The largest square of a row is
    compared with all of them."""
    m = Mixer("squares")
    l, d = m.sizes("l d")
    x, w, y = m.input("x", l, d), m.parameter("w", d), m.output("y", l, d)
    with m.form("weighed") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        y[i, a] = x[i, a] * x[i, a] * w[a]
    largest = Mixer("largest")
    x, y = largest.input("x", l, d), largest.output("y", l)
    with largest.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        y[i] = cm.max_over(x[i, a] * x[i, a], over=a)
    sizes = {"l": 3, "d": 5}
    assert cm.count(m, "backward", only="parameters").at(**sizes).mul == 15
    assert cm.activations(m, only="parameters").at(**sizes) == 15
    assert cm.activations(largest).at(**sizes) == 15 + 15 + 3  # x, squares, the largest


def chain() -> Mixer:
    """x squared four times over: every square but the last is read by a gradient."""
    m = Mixer("chain")
    (l,) = m.sizes("l")
    x, y = m.input("x", l), m.output("y", l)
    with m.form("direct") as f:
        i = f.index("i", 1, l)
        before = x
        for name in ("P", "Q", "R"):
            here = f.array(name, l)
            here[i] = before[i] * before[i]
            before = here
        y[i] = before[i] * before[i]
    return m


def test_the_peak_follows_what_is_recomputed() -> None:
    """A gradient g of a square is g a + g a: two products and an addition.

    Kept, x, P, Q, R stand beside y.grad and R.grad, the first gradient, and y, the result: seven
    rows. When R.grad is taken of R computed again from Q, P has not been asked for: with R alone
    the same rows are held; with P alone x, Q, R, y, y.grad, R.grad, six of them.
    """
    m = chain()
    step = {a: cm.peak(m, "training-step", recompute=a).at(l=10) for a in ("P", "R", "all")}
    assert cm.peak(m, "training-step").at(l=10) == 7 * 10
    assert step == {"P": 60, "R": 70, "all": 70}
    assert cm.count(m, "backward").at(l=10).mul == 8 * 10
    assert cm.count(m, "backward", recompute="all").at(l=10).mul == (8 + 3) * 10
    assert cm.activations(m, recompute="all").at(l=10) == 10
    # R.again follows P.again and Q.again; then four gradients of a product and an addition each
    assert cm.span(m, "backward").at(l=10) == 8
    assert cm.span(m, "backward", recompute="all").at(l=10) == 3 + 8


def test_a_part_of_a_recurrence_is_no_recurrence() -> None:
    """Two gates of an LSTM are computed again from the kept states, for all rows at once; the cells
    from kept gates row by row; and all of it runs the forward pass over once more."""
    m = cm.mixer("lstm")
    gates = cm.activations(m, recompute=("I", "F"))
    assert {"O", "G", "C", "y", "x"} <= {*gates.arrays} and not {"I", "F"} & {*gates.arrays}
    assert {*cm.activations(m, recompute="all").arrays} == {"x"}

    def longer(again: Any, l: int) -> int:
        span = cm.span(m, "backward", recompute=again).at(l=l, d=2)
        return span - cm.span(m, "backward").at(l=l, d=2)

    assert longer(("I", "F"), 9) == longer(("I", "F"), 17)
    # a product and an addition for each of eight rows more
    assert longer("C", 17) - longer("C", 9) == 2 * 8
    forward = cm.span(m).at(l=17, d=2) - cm.span(m).at(l=9, d=2)
    assert longer("all", 17) - longer("all", 9) == forward


@pytest.mark.parametrize("name", ["recurrent", "lstm", "gru"])
def test_a_loop_of_gradients_comes_after_what_it_needs_again(name: str) -> None:
    """Nothing is computed again between the equations of a loop."""
    system = system_of(cm.mixer(name), None, ("recompute=all",), "backward")
    place = {equation: k for k, equation in enumerate(system.equations)}
    loops = [block.equations for block in blocks(system) if block.is_loop]
    assert len(loops) == 3
    for loop in loops:
        places = [place[equation] for equation in loop]
        assert max(places) - min(places) + 1 == len(loop)


def test_work_on_weights_is_recomputed_once() -> None:
    """A softmax over weights is computed again once a step, whatever the batch."""
    m = Mixer("weighted")
    l, d = m.sizes("l d")
    x, y, w = m.input("x", l, d), m.output("y", l, d), m.parameter("w", d)
    with m.form("direct") as f:
        i, a = f.index("i", 1, l), f.index("a", 1, d)
        p = f.array("p", d)
        p[a] = cm.softmax(w[a], a)
        y[i, a] = x[i, a] * p[a]
    plain, again = (cm.count(m, "backward", **o).at(l=5, d=3, b=4) for o in RECOMPUTED)
    assert plain.once is not None and again.once is not None
    assert again.once.exp == 3 and again.once.div == plain.once.div + 3
    assert again.by_class() == plain.by_class()


RECOMPUTED: tuple[Training, ...] = (Training(), Training(recompute="all"))


def test_names_mean_all_that_an_equation_is_written_out_as() -> None:
    m = cm.mixer("self-attention")

    def copies(again: Any) -> list[str]:
        names = tuple(f"recompute={name}" for name in again)
        return [e.name for e in system_of(m, None, names, "backward").backward
                if e.name.endswith(".again")]  # fmt: skip

    assert copies(["A"]) == ["A.exp.again", "A.sum.again", "A.again"]
    assert copies(["A.exp"]) == ["A.exp.again"]
    assert copies(["Z"]) == []  # no gradient reads the scores: their exponentials are kept
    assert copies(["y"]) == []


def test_both_ways_to_ask_are_one() -> None:
    m = cm.mixer("self-attention")
    named = cm.count(m, "backward", convention="mac,recompute=A,recompute=Z,only=inputs")
    asked = cm.count(m, "backward", convention="mac", recompute="A, Z", only="inputs")
    assert (
        asked
        == named
        == cm.count(m, "backward", None, convention(("mac", "only=inputs")), recompute=["Z", "A"])
    )
    caption = Convention("strict", ("recompute=A", "recompute=Z")).caption
    assert caption.endswith("; recomputed in the backward pass, not kept: A, Z")
    assert cm.count(m, "training", convention="recompute=A") == cm.count(m, "training")


def test_state_of_the_optimiser() -> None:
    """d^2 weights four times over; AdamW keeps two numbers for each that gets a gradient."""
    found = cm.peak(cm.mixer("self-attention"), "training-step")
    assert found.parameters.at({"d": 3}) == 36 == found.gradients.at({"d": 3})
    assert found.optimiser("adamw").at({"d": 3}) == 72 and not found.optimiser("sgd").terms
    found = cm.peak(cm.mixer("self-attention"), "training-step", only="inputs")
    assert found.parameters.at({"d": 3}) == 36 and not found.gradients.terms
    assert not found.optimiser("adamw").terms
    for names, entries in (("strict", 72), ("only=inputs", 0)):
        about = answers(cm.mixer("self-attention"), "direct", "training-step", convention(names))
        case = Case(about, {"d": 3, "n": 1, "l": 2}, symbolic=False, optimiser="adamw")
        assert case.figure(FIGURES["optimiser"]) == entries


@pytest.mark.parametrize(
    ("question", "error", "said"),
    [
        (
            lambda m: cm.count(m, "backward", recompute="S"),
            EquationError,
            "form 'direct' of self-attention computes no array 'S' that could be recomputed: "
            "expected all, or some of Q, K, V, Z, A, A.exp, A.sum, R, y",
        ),
        (
            lambda m: cm.span(m, "training", recompute="all"),
            ConventionError,
            "recompute, only and loss are options of a backward pass: ask for the "
            "phase backward or training-step, not training",
        ),
        (
            lambda m: cm.count(m, "backward", convention="torch", only="inputs"),
            ConventionError,
            "peer 'torch' cannot be combined with other names: name it alone",
        ),
        (
            lambda m: cm.traffic(m, "backward", convention="only=inputs", only="parameters"),
            ConventionError,
            "'only=inputs' and 'only=parameters' exclude each other: choose one of them, or "
            "neither: both is the default",
        ),
        (
            lambda m: cm.peak(cm.mixer("dot-product-attention"), "backward", only="parameters"),
            Unanswered,
            "the output of dot-product-attention depends on no parameter, so there is no gradient: "
            "ask for phase training",
        ),
        (
            lambda m: counting("strict,recompute=all"),
            ConventionError,
            "recompute=, only= and loss= are options of a mixer by itself: for a network, give "
            "--recompute layers, --loss or --no-loss",
        ),
    ],
)
def test_a_bad_question_is_refused_with_its_reason(
    question: Callable[[Mixer], object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as raised:
        question(cm.mixer("self-attention"))
    assert str(raised.value) == said


def test_an_unknown_choice_lists_the_known_ones() -> None:
    with pytest.raises(ConventionError, match="only=parameters or only=inputs"):
        cm.count(cm.mixer("she"), "backward", only="weights")  # type: ignore[arg-type]


def test_a_forgotten_equation_is_found(mutated: pytest.MonkeyPatch) -> None:
    """Where values are read that were to be computed again, more is kept than should be; where an
    equation is written twice, or never, the execution stops."""
    from costmodel.adjoint import reverse

    mixer, sizes = builtin("she"), complete(builtin("she"), SIZES[0])
    right = module.recomputed

    def forgets(system: System, names: Any, **given: Any) -> System:
        """The first equation that is computed again is left out, its kept value read instead."""
        made = right(system, names, **given)
        if not names:
            return made
        first = next(e for e in made.backward if e.name.endswith(".again"))
        old = next(e.array for e in system.equations if f"{e.name}.again" == first.name)

        def kept(equation: Equation) -> Equation:
            back = nodes.reading(equation.value, {first.array: old})
            return replace(equation, value=back)

        backward = {kept(e): k for e, k in made.backward.items() if e.array is not first.array}
        equations = (*system.forward.equations, *backward)
        return replace(made, equations=equations, backward=backward)

    mutated.setattr(reverse, "recomputed", forgets)
    plain = classes(cm.count(mixer, "backward").at(**sizes))
    again = classes(cm.count(mixer, "backward", recompute="all").at(**sizes))
    whole = forward_operations(mixer, "direct", {"ext", "adj", "adj.1"}, sizes)
    assert Counter(again) != Counter(plain) + Counter(whole)
    kept = cm.activations(mixer, recompute="all")
    assert {*kept.arrays} - {"x"}


def test_the_tally_of_a_forward_pass_is_that_of_the_file() -> None:
    """The forward pass is the same whether its values are kept, computed again or neither."""
    m, sizes = cm.mixer("lstm"), {"l": 3, "d": 2}
    done = execute(m.forms[m.default_form], sizes)
    again = system_of(m, None, ("recompute=all",), "training-step")
    assert operations(run(again.forward, sizes).instances) == operations(done.instances)


# On the command line.


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The exit code, the output and the errors of a command."""
    code = cli.run(words)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_table_says_what_is_recomputed(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("table", "self-attention", "--phase", "training-step", "--l", "6", "--d", "4", "--n",
             "2", "--recompute", "A,Z", "--only", "parameters")  # fmt: skip
    code, out, _ = typed(capsys, *asked, "--format", "json", "--optimiser", "adamw")
    (row,) = json.loads(out)["rows"]
    names = ["strict", "only=parameters", "recompute=A", "recompute=Z"]
    options = Training(recompute=("A", "Z"), only="parameters")
    m, sizes = cm.mixer("self-attention"), {"l": 6, "d": 4, "n": 2}
    assert code == 0 and row["convention"] == names
    assert row["total"] == cm.count(m, "training-step", **options).at(**sizes).total
    assert row["activations_elements"] == cm.activations(m, **options).at(**sizes) == 5 * 24
    assert row["peak_elements"] == cm.peak(m, "training-step", **options).at(**sizes)
    # 4 d^2 parameters, two numbers each, of 4 bytes
    assert row["optimiser_bytes"] == 4 * 16 * 2 * 4
    _, out, _ = typed(capsys, *asked, "--optimiser", "momentum", "--weight-dtype", "bf16")
    assert "the gradient of the output is given: no loss is counted" in out
    assert "recomputed in the backward pass, not kept: A, Z" in out
    assert "gradients of parameters only" in out
    assert "optimiser momentum: 1 times the parameters" in out


def test_a_mixer_without_parameters_has_a_dash_and_a_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = typed(
        capsys, "table", "dot-product-attention", "self-attention", "--phase", "backward",
        "--only", "parameters",
    )  # fmt: skip
    assert code == 0 and "the output of dot-product-attention depends on no parameter" in out


def test_an_array_that_the_baseline_lacks_leaves_no_ratio(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = typed(
        capsys, "table", "she", "--phase", "backward", "--recompute", "ext", "--format", "json"
    )
    (row,) = json.loads(out)["rows"]
    assert row["ratio"] is None and "computes no array 'ext'" in row["reasons"]["ratio"]
    assert row["total"] > 0


@pytest.mark.grid(2)
@pytest.mark.parametrize(("name", "form", "phase"), in_turn(["backward", "training-step"])[2::3])
def test_forms_are_explained(name: str, form: str, phase: str) -> None:
    """Equations, shares and memory with what is computed again; an array has a name of its own."""
    found = builtin(name)
    sizes = one_combination(found, given_sizes({}))
    asked = convention("recompute=all,only=inputs")
    parts = Explanation(found, form, (phase,), sizes, asked, None, "adamw").parts()
    text = write(Document(lambda: parts), "markdown", Page())
    assert "no loss is counted" in text or phase == "training-step"
    assert "Largest live set" in text
    if phase == "backward" and any(
        e.name.endswith(".again") for e in system_of(found, form, asked.rewrites, phase).backward
    ):
        assert r"\tilde" in text and "have a tilde" in text


def test_names_and_quotients_of_a_backward_pass_are_explained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = typed(
        capsys, "explain", "self-attention", "--phase", "training-step", "--recompute", "V"
    )
    assert "NAME.grad is the gradient of NAME; V.again: arrays of the forward pass, computed" in out
    asked = ("explain", "self-attention", "--phase", "backward")
    assert "that times the stored quotient" in typed(capsys, *asked)[1]
    _, out, _ = typed(capsys, *asked, "--convention", "quotient-gradient")
    assert "that times a/b, divided again" in out and "stored quotient" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("table", "she", "--recompute", "all"),
            "recompute, only and loss are options of a backward pass: ask for the "
            "phase backward or training-step, not training",
        ),
        (
            ("table", "she", "--phase", "backward", "--only", "weights"),
            "--only 'weights': expected one of parameters, inputs",
        ),
        (
            ("explain", "she", "--phase", "backward", "--recompute", "exit"),
            "form 'direct' of she computes no array 'exit' that could be recomputed: expected all, "
            "or some of ext, adj, adj.1, y",
        ),
        (
            ("table", "she", "--phase", "backward", "--optimiser", "adamw"),
            "--optimiser is for a training step only: add --phase training-step",
        ),
        (
            ("explain", "she", "--phase", "training-step", "--optimiser", "adam"),
            "--optimiser 'adam': did you mean 'adamw'? expected one of none, sgd, momentum, adamw",
        ),
        (
            (
                "explain",
                "she",
                "--phase",
                "training-step",
                "--optimiser",
                "adamw",
                "--only",
                "inputs",
            ),
            "--optimiser: no parameter gets a gradient with --only inputs: leave out one of the "
            "two",
        ),
        (
            ("table", "she", "--phase", "training-step", "--optimiser", "sgd", "--columns", "mul"),
            "--optimiser needs the column 'optimiser': add it to --columns",
        ),
    ],
)
def test_a_bad_option_is_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    code, _, err = typed(capsys, *words)
    assert (code, err) == (2, f"costmodel: {said}\n")
