"""Is an unread entry left out of the counts, and does `check` name it for the author?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import pytest

import costmodel as cm
from costmodel import Mixer
from costmodel.language.nodes import Along, Gather, Ref, Select, walk
from costmodel.mixers import builtin
from costmodel.proofs.against_oracle import causal
from costmodel.proofs.check import prove
from costmodel.proofs.tried_sizes import equation_sizes
from costmodel.proofs.unread import unread_words
from costmodel.questions.counting.counts import with_once
from costmodel.questions.counting.empty_sums import reads_nothing, spared
from costmodel.questions.subject import system_of
from tests.small import forms, variants, without_inference


@pytest.mark.grid(144)
@pytest.mark.parametrize(("name", "form"), forms(variants()))
def test_built_in_mixers_define_what_is_read(name: str, form: str) -> None:
    for sizes in equation_sizes(builtin(name)):
        assert not unread_words(builtin(name).forms[form], sizes), sizes


@pytest.mark.grid(16)
@pytest.mark.parametrize(("name", "form"), forms(variants()))
def test_the_tokens_add_up_to_the_forward_pass(name: str, form: str) -> None:
    """But for what is done once. Work on a context alone is no token's, and is the same for any
    number of tokens. A form without a cost of a token takes all rows at once, or reads later
    ones."""
    mixer = builtin(name)
    if why := without_inference(mixer, form):
        written = mixer.forms[form]
        nodes = [node for e in written.equations for node, _ in walk(e.value)]
        holds = {
            "the whole token axis at once": any(isinstance(node, Along | Select) for node in nodes),
            "gathers": any(
                isinstance(p, Gather) for n in nodes if isinstance(n, Ref) for p in n.positions
            ),
            "an output depends on later tokens": not all(
                causal(written, sizes) for sizes in equation_sizes(mixer)
            ),
        }
        assert [kind for kind, held in holds.items() if kind in why and held], why
        return
    whole, token = cm.count(mixer, form=form), cm.count(mixer, "inference", form)

    def left(sizes: Mapping[str, int]) -> dict[str, int]:
        """Class -> operations of the forward pass without those of its tokens; zeros left out."""
        found = Counter(whole.at(**sizes).by_class())
        for t in range(1, sizes["l"] + 1):
            found.subtract(token.at(**sizes, t=t).by_class())
        return {name: number for name, number in found.items() if number}

    for sizes in equation_sizes(mixer):
        of_context = left({**sizes, "l": 1}) if mixer.contexts else {}
        assert left(sizes) == of_context, sizes
        assert bool(of_context) == bool(mixer.contexts)


def late_sum(*, narrow: bool) -> Mixer:
    """y[i] = x[i] + the sum of exp(x[k]) over rows w or more before; of all rows, or of those that
    some row reads."""
    mixer = Mixer("late-sum")
    l, w = mixer.sizes("l w")
    x, y = mixer.input("x", l), mixer.output("y", l)
    with mixer.form("direct") as f:
        i, o = f.index("i", 1, l), f.index("o", 1, f.index("i", 1, l) - w)
        k, E = f.index("k", 1, l - w if narrow else l), f.array("E", l)
        E[k] = cm.exp(x[k])
        y[i] = x[i] + cm.sum_(E[o], over=o)
    return mixer


def test_check_names_an_entry_that_nothing_reads() -> None:
    """The smallest sizes are l = w = 1: the one row is read by none."""
    wide, narrow = (prove(late_sum(narrow=narrow)) for narrow in (False, True))
    assert all(proof.passed for proof in (*wide, *narrow))
    assert wide[0].detail.endswith(
        "; form 'direct' defines and counts entries that nothing reads, as E[1] at l = 1, w = 1: "
        "reduce the equation's range to the entries that are read"
    )
    assert narrow[0].detail.endswith("forms: direct")


def test_a_parameter_that_no_form_reads_is_named() -> None:
    """It is counted among the parameters, wherever it was declared."""
    mixer = late_sum(narrow=True)
    mixer.parameter("late", *mixer.sizes("l"))
    (proof, *_) = prove(mixer)
    assert proof.passed and proof.detail.endswith(
        "; no form reads late, which is counted among the parameters: leave it out"
    )


def test_an_array_that_no_equation_defines_is_named_with_its_line() -> None:
    mixer = Mixer("undefined")
    (l,) = mixer.sizes("l")
    x, y = mixer.input("x", l), mixer.output("y", l)
    with mixer.form("direct") as f:
        i = f.index("i", 1, l)
        f.array("E", l)
        y[i] = 2 * x[i]
    (proof, *_) = prove(mixer)
    assert proof.passed and re.search(
        r"; form 'direct' declares E and never defines it: give it an equation or leave it out "
        r"\(.*test_unread.py, line \d+\)$",
        proof.detail,
    )


@pytest.mark.parametrize("name", variants())
def test_built_in_mixers_read_their_parameters(name: str) -> None:
    forms = builtin(name).forms.values()
    read = {array for form in forms for e in form.equations for array in e.value.arrays}
    assert not {*builtin(name).parameters} - read


def test_operations_on_gradients_that_nothing_reads_in_numbers() -> None:
    """At l = 1 no row decays a row before it: A = -exp(log_A), of 2 channels with 3 states each,
    gets a sum of no term, and log_A.grad = A.grad A takes a product an entry."""
    step = system_of(builtin("mamba"), "recurrent", (), "training-step")
    sizes = {"d": 6, "N": 3, "E": 2, "R": 1, "k": 2}
    one, two = ({**sizes, "l": length} for length in (1, 2))
    assert [reads_nothing(step.forward, at) for at in (one, two)] == [True, False]
    found = [spared(step, "training-step", at).at() for at in (one, two)]
    assert [with_once(counts) for counts in found] == [{"mul": 6}, {}]
