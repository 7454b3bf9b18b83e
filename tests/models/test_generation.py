"""Does generating text cost the prompt's forward pass plus the sum of its steps?"""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel import Unanswered, networks
from costmodel.errors import Unsupported
from costmodel.mixers import names as mixer_names
from costmodel.networks import generation
from costmodel.networks.steps import over_steps, over_steps_at
from costmodel.program.conventions import Convention
from costmodel.questions.question import Missing, answers
from costmodel.questions.state import state_of
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, call
from costmodel.symbolic.sizes import LETTERS

NAMES = ("gpt-2", "chen-v1-extractor", "chen-v2", "transformer-base", "terroa-vlsa-2", "decoder")
SIZES = {"L": 3, "l": 20, "e": 5, "d": 8, "n": 2, "u": 11, "f": 6, "v": 2}


def small(name: str) -> networks.Network:
    return networks.model(name, sizes={"f": 6})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("p", "q"), [(1, 1), (4, 1), (1, 6), (5, 7)])
def test_decode_is_the_sum_of_its_steps(name: str, p: int, q: int) -> None:
    net = small(name)
    found = generation(net).new.at(p=p, q=q, **SIZES)
    step = net.count("inference")
    each = [step.at(t=t, **SIZES) for t in range(p + 1, p + q)]
    for name_ in found.by_class():
        assert found.by_class()[name_] == sum(counts.by_class().get(name_, 0) for counts in each)
    assert found.total == sum(counts.total for counts in each)


@pytest.mark.parametrize("name", NAMES)
def test_prefill_is_the_forward_pass_without_loss_and_with_one_row_of_scores(name: str) -> None:
    net = small(name)
    p = 5
    whole = {part.use.name: part for part in net.costs()}
    row = {part.use.name: part for part in net.costs("inference")}
    made = generation(net, "dropout=mul")
    for part in made.prefill:
        of = row if part.use.label in ("head", "softmax") else whole
        expected = of[part.use.name].total
        assert not isinstance(expected, Missing) and not isinstance(part.total, Missing)
        at = {**SIZES, "l": p, "t": p}
        assert part.total.at({**SIZES, "p": p}) == expected.at(at), part.use.name
    names = {part.use.label for part in made.prefill}
    assert "loss" not in names and "dropout" not in names and "head" in names


def test_prompt_and_new_tokens_of_a_causal_network_make_one_forward_pass() -> None:
    """Reading p tokens at once and q - 1 of the q new ones is reading p + q - 1, but for a prompt's
    scores."""
    net = networks.model("gpt-2", loss=False)
    made = generation(net)
    p, q = 3, 4
    parts = {part.use.name: part for part in net.costs()}
    for before, after in zip(made.prefill, made.decode, strict=True):
        if before.use.last:
            continue
        whole = parts[before.use.name].total
        for part in (whole, before.total, after.total):
            assert not isinstance(part, Missing)
        assert whole.at({**SIZES, "l": p + q - 1}) == (  # type: ignore[union-attr]
            before.total.at({**SIZES, "p": p})  # type: ignore[union-attr]
            + after.total.at({**SIZES, "p": p, "q": q})  # type: ignore[union-attr]
        ), before.use.name


@pytest.mark.parametrize("name", NAMES)
def test_one_new_token_is_the_prompt_s_own(name: str) -> None:
    """The prompt's forward pass scores the first new token: no step is left."""
    assert generation(small(name)).new.at(p=5, q=1, **SIZES).total == 0


def test_state_is_that_after_the_last_step() -> None:
    made = generation(small("transformer-base"))
    held = sum((part.of(state_of).exact for part in made.decode), Exact())
    assert held.at({**SIZES, "p": 3, "q": 4}) == 3 * 2 * 8 * ((3 + 4 - 1) + 5)


def test_an_encoder_runs_with_the_prompt_and_not_again() -> None:
    made = generation(networks.model("transformer-base"))
    encoders = [part for part in made.decode if part.use.section == "encoder"]
    assert encoders and all(part.total == Exact() for part in encoders)
    read = [part for part in made.prefill if part.use.section == "encoder"]
    assert {part.use.label for part in read} >= {"self-attention+bidirectional", "FFN"}
    assert all("p" not in part.total.letters for part in read if isinstance(part.total, Exact))


def windowed(folder: Path) -> str:
    file = folder / "window.py"
    file.write_text(
        "import costmodel as cm\n"
        "m = cm.Mixer('window')\n"
        "l, d, w = m.sizes('l d w')\n"
        "x, y = m.input('x', l, d), m.output('y', l, d)\n"
        "with m.form('direct') as f:\n"
        "    i, a = f.index('i', 1, l), f.index('a', 1, d)\n"
        "    j = f.index('j', cm.max_(1, i - w + 1), i)\n"
        "    y[i, a] = cm.sum_(x[j, a], over=j)\n"
    )
    return f"{file}:m"


@pytest.mark.parametrize("w", [1, 4, 30])
def test_a_window_splits_the_steps_of_generation_into_cases(tmp_path: Path, w: int) -> None:
    """A window of w tokens costs a step min(t, w) - 1 additions an entry."""
    net = networks.model("decoder", mixers=(windowed(tmp_path),), positions="none")
    (own,) = [part for part in generation(net).decode if "window" in part.use.name]
    for p, q in ((1, 1), (2, 7), (6, 3)):
        expected = sum(min(t, w) - 1 for t in range(p + 1, p + q))
        assert isinstance(own.total, Exact)
        assert own.total.at({**SIZES, "w": w, "p": p, "q": q}) == 3 * 8 * expected


def test_steps_without_a_closed_form_are_added_up_at_sizes() -> None:
    t, d = Poly.atom("t"), Poly.atom("d")
    step = Exact.of(call("ceil_log2", t) * d + 1)
    with pytest.raises(Unsupported, match="over index step has no formula that is known here"):
        over_steps(step)
    assert over_steps_at(step, {"d": 3, "p": 2, "q": 4}) == 3 * (2 + 2 + 3) + 3
    with pytest.raises(Unsupported, match="are too many to add up one by one"):
        over_steps_at(step, {"d": 3, "p": 2, "q": 2_000_000})


def test_networks_that_generate_nothing() -> None:
    for name in ("bert-base", "simpletron-classification"):
        choices = networks.preset(name)
        chosen = networks.changed(choices, {"mixers": "self-attention+bidirectional"})
        with pytest.raises(Unanswered, match="has no head over the vocabulary"):
            generation(networks.network(chosen))
    made = generation(networks.model("bert-base-masked-lm"))
    with pytest.raises(Unanswered, match="not causal"):
        _ = made.new
    assert made.prompt.at(p=4, l=8).total > 0


@pytest.mark.grid(3)
@pytest.mark.parametrize("name", mixer_names())
def test_every_mixer_generates_as_its_steps_cost_or_says_why_not(name: str) -> None:
    """The closed sum over steps, with its first steps and windows, for every built-in mixer."""
    net = networks.model("decoder", mixers=(name,), positions="none")
    sizes = {entry.letter: entry.default or 1 for entry in LETTERS.values() if entry.letter != "h"}
    sizes |= {"L": 2, "l": 40, "d": 12, "f": 48, "n": 2, "u": 11, "w": 3, "C": 4, "g": 1}
    if reason := answers(net.uses[2].mixer, net.uses[2].mixer.default_form, "inference",
                         Convention()).unanswered:  # fmt: skip
        with pytest.raises(Unanswered, match=r"not causal|whole token axis"):
            _ = generation(net).new
        assert reason
        return
    step = net.count("inference")
    made = generation(net)
    for p, q in ((1, 1), (1, 9), (3, 6)):
        at = {**sizes, "p": p, "q": q}
        found = sum(part.total.at(at) for part in made.decode_at(at)
                    if not isinstance(part.total, Missing))  # fmt: skip
        each = (step.at(**{**sizes, "t": t}).total for t in range(p + 1, p + q))
        assert found == sum(each), (p, q)
