"""What does a backward pass cost that begins at a loss, and are its gradients correct?"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch.nn import functional

import cli
import costmodel as cm
from costmodel import EquationError, Mixer, Unanswered
from costmodel.errors import ConventionError
from costmodel.mixers import builtin
from costmodel.networks import parts
from costmodel.oracle.execute import random_arrays, run
from costmodel.oracle.live import most_live
from costmodel.program import losses
from costmodel.program.chosen_sizes import given_sizes, one_combination
from costmodel.program.conventions import LOSSES, convention
from costmodel.program.lowering import lower
from costmodel.program.phases import TRAINING_STEP
from costmodel.program.wellformed import check_form
from costmodel.proofs.gradients import GradientComparison
from costmodel.questions.counting.counts import with_once as classes
from costmodel.questions.subject import Training, system_of
from costmodel.report.document import Document, Page
from costmodel.report.explanation import Explanation
from costmodel.report.formats import write
from costmodel.symbolic.polynomial import Poly
from tests import small, systems
from tests.systems import examples

FORMS = small.distinct()
SIZES = (
    {"l": 3, "d": 4, "n": 2},
    {"l": 1, "d": 2, "n": 1, "w": 3, "C": 3},
    {"l": 5, "d": 4, "n": 2, "k": 3, "C": 2},
)
EVERY = pytest.mark.parametrize("loss", LOSSES)
IN_TURN = pytest.mark.parametrize(
    ("name", "form", "loss"),
    [(*form, loss) for form, loss in zip(FORMS, cycle(LOSSES))],
)
"""Forms with one of the losses each, which touch the output alone."""
SOME = ("self-attention", "she", "gru", "linear-attention", "restricted-attention")


def complete(mixer: Mixer, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes that a mixer has."""
    return small.complete(mixer, {k: v for k, v in sizes.items() if k in ("l", *mixer.letters)})


def made(mixer: Mixer, form: str, *names: str, accounting: str = "strict") -> GradientComparison:
    """Every question of the phases with gradients, against the execution of the equations."""
    found = GradientComparison(mixer, form, names, accounting)
    for sizes in SIZES[:2]:
        found.at(complete(mixer, sizes))
    assert found.apart == []
    return found


@pytest.mark.grid(2)
@EVERY
@pytest.mark.parametrize("name", SOME)
def test_costs_and_gradients_equal_their_execution(name: str, loss: str) -> None:
    """Counts, span, traffic, what is kept; gradients besides equal differences of the loss."""
    mixer = builtin(name)
    assert made(mixer, mixer.default_form, f"loss={loss}").refused == []


OTHERS = ("recompute=all", "only=inputs", "safe-softmax", "dense")


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("name", "other", "loss"),
    [
        (name, other, (*LOSSES,)[(k + place) % len(LOSSES)])
        for k, name in enumerate(SOME)
        for place, other in enumerate(OTHERS)
    ],
)
def test_losses_beside_other_conventions_equal_execution(name: str, other: str, loss: str) -> None:
    mixer = builtin(name)
    assert made(mixer, mixer.default_form, other, f"loss={loss}").refused == []


@EVERY
def test_losses_are_counted_in_multiply_accumulates(loss: str) -> None:
    assert made(builtin("she"), "direct", f"loss={loss}", accounting="mac").refused == []


@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(systems.mixers(), systems.sizes(), st.sampled_from(sorted(LOSSES)))
def test_losses_of_random_systems_equal_execution(
    mixer: Mixer, sizes: dict[str, int], loss: str
) -> None:
    found = GradientComparison(mixer, "direct", (f"loss={loss}",))
    try:
        found.at({k: v for k, v in sizes.items() if k in ("l", *mixer.letters)})
    except Unanswered:
        return
    assert found.apart == []


# Against torch.

TORCH: Mapping[str, Callable[[Any, Any], Any]] = {
    "squared-error": lambda y, t: functional.mse_loss(y, torch.from_numpy(t)),
    "cross-entropy": lambda y, t: functional.cross_entropy(y, torch.from_numpy(t - 1)),
}


def target_of(loss: str, shape: tuple[int, ...]) -> Any:
    """Some target of an output of a shape, classes counted from 1."""
    generator = np.random.default_rng(4)
    if loss == "cross-entropy":
        return generator.integers(1, shape[-1] + 1, shape[:-1])
    return generator.uniform(-1, 1, shape)


@pytest.mark.grid(3)
@IN_TURN
def test_gradients_begin_where_those_of_torch_do(name: str, form: str, loss: str) -> None:
    """Those of the loss are those that begin at torch's gradient of the output, which is given."""
    mixer = builtin(name)
    sizes = complete(mixer, SIZES[2])
    arrays = random_arrays(mixer.forms[form], sizes)
    y = torch.from_numpy(cm.evaluate(mixer, arrays, sizes, form)).requires_grad_()
    target = target_of(loss, tuple(y.shape))
    value = TORCH[loss](y, target)
    value.backward()
    assert y.grad is not None
    expected = cm.gradients(mixer, arrays, y.grad.numpy(), sizes, form)
    given_ = {**arrays, "y.target": target}
    for options in (Training(), Training(recompute="all"), Training(only="inputs")):
        asked: Training = {**options, "loss": loss}
        found = cm.gradients(mixer, given_, np.ones(1), sizes, form, **asked)
        inputs = {n for n in expected if mixer.arrays[n].role != "parameter"}
        assert found.keys() == (inputs if options.get("only") else expected.keys())
        for array, slope in found.items():
            # sums of a few dozen products of numbers of size one, in another order
            assert np.allclose(slope, expected[array], rtol=1e-10, atol=1e-12), array
    forward = system_of(mixer, form, (f"loss={loss}",), "backward").forward
    done = run(forward, sizes, arrays={**given_, "y.loss.grad": np.ones(1)})
    assert done.output == pytest.approx(value.item(), rel=1e-12)


# By hand.

FORWARD: Mapping[str, Callable[[int, int], dict[str, int]]] = {
    # differences, squares, their sum over all entries, one division
    "squared-error": lambda l, d: {"add": l * d + l * d - 1, "mul": l * d, "div": 1},
    # exponentials, their sums, logarithms, differences; the sum over rows, one division
    "cross-entropy": lambda l, d: {
        "exp": l * d,
        "log": l,
        "add": l * (d - 1) + l * d + l - 1,
        "div": 1,
    },
}
BACKWARD: Mapping[str, Callable[[int, int], dict[str, int]]] = {
    # g over the number of entries, then g e + g e
    "squared-error": lambda l, d: {"div": 1, "mul": 2 * l * d, "add": l * d},
    # g over the rows; the sum of a row's gradients over its exponentials' sum, times each of them,
    # added to what the entry of the target gets
    "cross-entropy": lambda l, d: {"div": 1 + l, "add": l * (d - 1) + l * d, "mul": l * d},
}


@pytest.mark.grid(3)
@IN_TURN
def test_counts_grow_by_those_of_the_loss(name: str, form: str, loss: str) -> None:
    """By its own operations and no other, for each of b sequences."""
    mixer = builtin(name)
    for sizes in SIZES:
        known = complete(mixer, sizes)
        l, d = known["l"], known.get("d", 1)
        own = {"backward": Counter(BACKWARD[loss](l, d))}
        own["training-step"] = own["backward"] + Counter(FORWARD[loss](l, d))
        for phase, more in own.items():
            for b in (1, 3):
                plain = classes(cm.count(mixer, phase, form).at(**known, b=b))
                found = classes(cm.count(mixer, phase, form, loss=loss).at(**known, b=b))
                grown = {c: found[c] - plain.get(c, 0) for c in found}
                assert {c: n for c, n in grown.items() if n} == {
                    c: b * n for c, n in more.items() if n
                }


def squares() -> Mixer:
    """The square of every number of a sequence, an output with one axis."""
    m = Mixer("squares")
    (l,) = m.sizes("l")
    x, y = m.input("x", l), m.output("y", l)
    with m.form("direct") as f:
        i = f.index("i", 1, l)
        y[i] = x[i] * x[i]
    return m


def test_all_questions_of_squares_by_hand() -> None:
    """x, y = x x, e = y - t, the mean of e e; then g = 1 / l, e' = g e + g e, y' = e' and x' =
    y' x + y' x."""
    m, l = squares(), 8
    step, back = (
        cm.count(m, p, loss="squared-error").at(l=l) for p in ("training-step", "backward")
    )
    assert (step.mul, step.add, step.div) == (l + l + 2 * l + 2 * l, l + l - 1 + l + l, 2)
    assert (back.mul, back.add, back.div) == (4 * l, 2 * l, 1)
    # x and e are read by gradients; y and the target are not
    assert cm.activations(m, loss="squared-error").at(l=l) == 2 * l
    # e computed again from y and the target
    again = cm.activations(m, loss="squared-error", recompute="y.loss")
    assert again.at(l=l) == 3 * l and again.arrays.keys() == {"x", "y", "y.target"}
    # y, e, e e, three levels of sums of eight, the mean. The gradients need e alone, after two
    # levels, and g is there after one: g e, + g e, y' x, + y' x
    assert cm.span(m, "training-step", loss="squared-error").at(l=l) == 2 + 1 + 3 + 1
    assert cm.span(m, "backward", loss="squared-error").at(l=l) == 1 + 4
    path = cm.critical_path(m, "backward", loss="squared-error")
    assert path.text == "div mul add mul add"
    # read: x, the target, the gradient of the loss; left: the loss and x'. Alone the backward pass
    # reads x, e, the gradient of the loss, and leaves x'
    moved = [
        cm.traffic(m, phase, loss="squared-error").at(l=l, b=2)["compulsory"] // 4
        for phase in ("training-step", "backward")
    ]
    assert moved == [2 * (l + l + 1 + 1 + l), 2 * (l + l + 1 + l)]
    # held at the most, while e' is written: x, the target, e and e'; the loss, its gradient, g
    assert cm.peak(m, "training-step", loss="squared-error").at(l=l) == 4 * l + 3
    with pytest.raises(Unanswered) as raised:
        cm.count(m, "backward", loss="cross-entropy")
    assert str(raised.value) == (
        "loss cross-entropy needs an output with 2 axes, and y of squares has 1: "
        "expected loss squared-error"
    )


@EVERY
@pytest.mark.parametrize("phase", ["backward", "training-step"])
@pytest.mark.parametrize("name", ["self-attention", "she", "fastformer", "simple"])
def test_the_peak_is_that_of_what_is_held(name: str, phase: str, loss: str) -> None:
    mixer = builtin(name)
    for sizes in SIZES:
        known = complete(mixer, sizes)
        system = system_of(mixer, None, (f"loss={loss}",), phase)
        ready = system.forward.equations if phase == "backward" else ()
        executed = most_live(run(system, known, ready=ready), phase)
        assert cm.peak(mixer, phase, loss=loss).at(**known) == executed


def test_losses_are_well_formed() -> None:
    shape = (Poly.atom("l"), Poly.atom("d"))
    for loss in losses.BY_NAME.values():
        for form in loss.of(shape).forms.values():
            check_form(lower(form))


def test_the_gradient_of_the_loss_is_given_once_a_sequence() -> None:
    """Twice the gradient of the loss, twice all others."""
    m, sizes = builtin("she"), {"l": 3, "d": 4}
    arrays = random_arrays(m.forms["direct"], sizes)
    arrays["y.target"] = target_of("squared-error", (3, 4))
    one, two = (
        cm.gradients(m, arrays, np.full(1, g), sizes, loss="squared-error") for g in (1.0, 2.0)
    )
    assert one.keys() == two.keys() and all(np.array_equal(2 * one[a], two[a]) for a in one)
    assert "y.target" not in one


def test_networks_have_the_same_cross_entropy() -> None:
    """The part of a network at l rows and u = d classes, forward and backward."""
    part, sizes = parts.loss_of_scores(), {"l": 5, "u": 4}
    assert classes(cm.count(part).at(**sizes)) == FORWARD["cross-entropy"](5, 4)
    l, u = Poly.atom("l"), Poly.atom("u")
    assert part is losses.cross_entropy((l, u), False)
    assert losses.BY_NAME["cross-entropy"].of is losses.cross_entropy
    assert losses.BY_NAME.keys() == LOSSES.keys()


@pytest.mark.parametrize("flaw", ["no mean", "a sum less", "a target that is no target"])
def test_a_flaw_is_found(flaw: str, mutated: pytest.MonkeyPatch) -> None:
    """A loss written wrongly has other values, or other counts, than those that are held to it."""

    def wrong(shape: losses.Shape) -> Mixer:
        m = Mixer("wrong")
        m.sizes("l d")
        x, target, y = m.input("x", *shape), m.input("target", *shape), m.output("y", 1)
        entries = 1 if flaw == "no mean" else shape[0] * shape[1]
        with m.form("direct") as f:
            i, b = f.index("i", 1, shape[0]), f.index("b", 1, shape[1])
            off = f.array("difference", *shape)
            off[i, b] = x[i, b] - (target[i, b] if "target" not in flaw else x[i, b])
            if flaw == "a sum less":
                y[1] = cm.sum_(off[i, 1] * off[i, 1], over=i) / entries
            else:
                y[1] = cm.sum_(off[i, b] * off[i, b], over=(i, b)) / entries
        return m

    flawed = {**losses.BY_NAME, "squared-error": losses.Loss(wrong)}
    mutated.setattr(losses, "BY_NAME", flawed)
    with pytest.raises(AssertionError):
        test_gradients_begin_where_those_of_torch_do("me", "direct", "squared-error")


# What is read by number.


def test_an_entry_of_its_own_that_is_read_by_number_has_a_gradient() -> None:
    """Of each row one entry is read: it gets the gradient, and no other does."""
    m = Mixer("picking")
    l, d = m.sizes("l d")
    x, y, at = m.input("x", l, d), m.output("y", l), m.buffer("at", l, below=d)
    with m.form("direct") as f:
        i = f.index("i", 1, l)
        y[i] = x[i, at[i]] * x[i, at[i]]
    assert made(m, "direct").refused == []
    arrays = {"x": np.arange(6.0).reshape(2, 3), "at": np.array([3, 1])}
    found = cm.gradients(m, arrays, np.ones(2), {"l": 2, "d": 3})
    assert found["x"].tolist() == [[0, 0, 4], [6, 0, 0]]


# What is said.


def test_both_ways_to_ask_are_one() -> None:
    m = builtin("she")
    named = cm.count(m, "backward", convention="mac,loss=squared-error,only=inputs")
    assert named == cm.count(m, "backward", convention="mac", loss="squared-error", only="inputs")
    assert cm.count(m, "training", convention="loss=squared-error") == cm.count(m, "training")


@pytest.mark.parametrize(
    ("question", "error", "said"),
    [
        (
            lambda m: cm.span(m, "training", loss="squared-error"),
            ConventionError,
            "recompute, only and loss are options of a backward pass: ask for the "
            "phase backward or training-step, not training",
        ),
        (
            lambda m: convention("loss=squared-error,loss=cross-entropy"),
            ConventionError,
            "'loss=squared-error' and 'loss=cross-entropy' exclude each other: choose one of them, "
            "or no loss: then the gradient of the output is given",
        ),
        (
            lambda m: cm.count(m, "backward", convention="torch", loss="squared-error"),
            ConventionError,
            "peer 'torch' cannot be combined with other names: name it alone",
        ),
        (
            lambda m: cm.count(m, "backward", loss="squared-error", recompute="loss"),
            EquationError,
            "form 'direct' of she computes no array 'loss' that could be recomputed: expected all, "
            "or some of ext, adj, adj.1, y, y.loss, y.loss.difference",
        ),
    ],
)
def test_a_bad_question_is_refused_with_its_reason(
    question: Callable[[Mixer], object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as raised:
        question(builtin("she"))
    assert str(raised.value) == said


def test_an_unknown_loss_lists_the_known_ones() -> None:
    with pytest.raises(ConventionError, match="loss=squared-error or loss=cross-entropy"):
        cm.count(builtin("she"), "backward", loss="hinge")


@pytest.mark.grid(3)
@pytest.mark.parametrize(("name", "loss"), [*zip(SOME, cycle(LOSSES))])
def test_explain_prints_the_loss(name: str, loss: str) -> None:
    """The equations of the loss, and that it is counted."""
    phase = dict(zip(LOSSES, TRAINING_STEP, strict=True))[loss]
    found = builtin(name)
    sizes = one_combination(found, given_sizes({}))
    asked, form = convention(f"loss={loss},recompute=all"), found.default_form
    text = write(
        Document(Explanation(found, form, (phase,), sizes, asked, None).parts), "markdown", Page()
    )
    assert "The loss that follows the output:" in text and r"\mathcal{L}" in text
    assert "no loss is counted" not in text and f"loss {loss}: {LOSSES[loss]}" in text


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The exit code, the output and the errors of a command."""
    code = cli.run(words)
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("loss", LOSSES)
def test_a_caption_says_the_loss_in_words(loss: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("table", "self-attention", "--phase", "backward", "--loss", loss, "--format", "latex")
    code, out, _ = typed(capsys, *asked)
    (caption,) = (line for line in out.splitlines() if line.startswith(r"\caption{"))
    assert code == 0 and "Convention: strict (" in caption and f"loss {loss}: " in caption
    assert r"\textasciicircum" not in caption and "loss=" not in caption


def test_a_table_says_which_loss_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("table", "self-attention", "--phase", "all", "--l", "6", "--d", "4", "--n", "2",
             "--b", "3", "--loss", "squared-error")  # fmt: skip
    code, out, _ = typed(capsys, *asked, "--format", "json")
    rows = {row["phase"]: row for row in json.loads(out)["rows"]}
    m, sizes = builtin("self-attention"), {"l": 6, "d": 4, "n": 2, "b": 3}
    assert code == 0 and rows["backward"]["convention"] == ["strict", "loss=squared-error"]
    for phase in ("backward", "training-step"):
        counts = cm.count(m, phase, loss="squared-error").at(**sizes)
        assert rows[phase]["total"] == counts.total
        peak = cm.peak(m, phase, loss="squared-error").at(**sizes)
        assert rows[phase]["peak_elements"] == peak
    assert rows["training"]["total"] == cm.count(m).at(**sizes).total
    _, out, _ = typed(capsys, *asked)
    said = (
        "loss squared-error: each sequence has its own loss, counted with its gradients; the "
        "target and the gradient of the loss, one number, are given"
    )
    assert out.count(said) == 1 and "no loss is counted" not in out
    assert "the gradients of the forward pass, from the gradient of its loss" in out
    _, out, _ = typed(capsys, *asked, "--format", "latex")
    assert "the gradient of the loss, one number, are given" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("table", "she", "--loss", "squared-error"),
            "recompute, only and loss are options of a backward pass: ask for the "
            "phase backward or training-step, not training",
        ),
        (
            ("explain", "she", "--phase", "backward", "--loss", "hinge"),
            "--loss 'hinge': expected one of squared-error, cross-entropy",
        ),
        (
            ("model", "decoder", "--convention", "loss=squared-error"),
            "recompute=, only= and loss= are options of a mixer by itself: for a network, give "
            "--recompute layers, --loss or --no-loss",
        ),
    ],
)
def test_a_bad_option_is_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    code, _, err = typed(capsys, *words)
    assert (code, err) == (2, f"costmodel: {said}\n")


def test_a_claim_is_checked_with_a_loss(capsys: pytest.CaptureFixture[str]) -> None:
    """Two l d multiplications more than without."""
    plain = cm.count(builtin("me"), "backward")
    assert plain.at(l=3, d=2).mul == 2 * 2 * 6  # d l (l + 1) / 2 for x.grad, as many for w.grad
    code, out, _ = typed(
        capsys, "check", "me", "--phase", "backward", "--loss", "squared-error",
        "--claim", "mul = d*l*(l+1) + 2*d*l", "--strict",
    )  # fmt: skip
    assert code == 0 and "agrees" in out


def test_what_has_no_loss_does_not_load_them() -> None:
    """The command line is as quick as before."""
    code = (
        "import sys, cli; cli.run(['table', 'she', '--phase', 'backward']);"
        "sys.exit('costmodel.program.losses' in sys.modules)"
    )
    root = Path(cli.__file__).parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, check=False)
    assert done.returncode == 0 and b"no loss is counted" in done.stdout
