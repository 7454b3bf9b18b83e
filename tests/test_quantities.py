"""What does a derived answer offer in Python and in a notebook?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Protocol

import pytest

import costmodel as cm
from costmodel import Mixer
from costmodel.errors import Unsupported
from tests.small import LEFT_OPEN, distinct, without_inference


class Displayed(Protocol):
    """What a notebook shows as LaTeX."""

    def _repr_latex_(self) -> str: ...


QUESTIONS: Mapping[str, Callable[[Mixer, str], Displayed]] = {
    "count": lambda mixer, form: cm.count(mixer, form=form),
    "parameters": lambda mixer, form: cm.parameters(mixer),
    "span": lambda mixer, form: cm.span(mixer, form=form),
    "traffic": lambda mixer, form: cm.traffic(mixer, form=form),
    "critical_path": lambda mixer, form: cm.critical_path(mixer, form=form),
    "sequential": lambda mixer, form: cm.sequential(mixer, form=form),
    "path_length": lambda mixer, form: cm.path_length(mixer, form),
    "order": lambda mixer, form: cm.order(cm.count(mixer, form=form).exact_total),
}


def traffic_of_a_token(mixer: Mixer, form: str) -> Displayed:
    return cm.traffic(mixer, "inference", form)


OF_ONE_TOKEN: tuple[Callable[[Mixer, str], Displayed], ...] = (
    lambda mixer, form: cm.count(mixer, "inference", form),
    lambda mixer, form: cm.span(mixer, "inference", form),
    lambda mixer, form: cm.state(mixer, form),
    traffic_of_a_token,
    lambda mixer, form: cm.critical_path(mixer, "inference", form),
    lambda mixer, form: cm.sequential(mixer, "inference", form),
)


def displays_as_latex(answer: Displayed) -> None:
    shown = answer._repr_latex_()
    assert shown.startswith("$") and shown.endswith("$")
    assert shown.count("{") == shown.count("}")


@pytest.mark.grid(3)
@pytest.mark.parametrize(("name", "form"), distinct())
def test_every_answer_displays_as_latex(name: str, form: str) -> None:
    """Where one token has no cost of its own, every question about it gives the one reason."""
    mixer = cm.mixer(name)
    for asked, question in QUESTIONS.items():
        if (name, form, asked) in LEFT_OPEN:
            with pytest.raises(Unsupported, match=LEFT_OPEN[name, form, asked]):
                question(mixer, form)
            continue
        displays_as_latex(question(mixer, form))
    reason = without_inference(mixer, form)
    for question in OF_ONE_TOKEN:
        if question is traffic_of_a_token and (name, form, "traffic") in LEFT_OPEN:
            with pytest.raises(Unsupported, match=LEFT_OPEN[name, form, "traffic"]):
                question(mixer, form)
            continue
        if reason is None:
            displays_as_latex(question(mixer, form))
            continue
        with pytest.raises(cm.Unanswered, match=re.escape(reason)):
            question(mixer, form)


def test_counts_display_every_class_and_the_total() -> None:
    shown = cm.count(cm.mixer("me"), form="fft")._repr_latex_()
    for name in ("mul", "add", "mul, once", "add, once", "total"):
        assert rf"\text{{{name}}}" in shown


def test_a_peer_is_not_asked_for_what_it_does_not_count() -> None:
    she = cm.mixer("she")
    found = cm.count(she, convention="fvcore")
    assert found.at(d=128, l=128).total == 272_629_760
    assert found.at(d=128, l=128).by_class() == {"mul": 272_629_760}
    for ask in (lambda: found.add, lambda: found.at(d=2, l=2).div):
        with pytest.raises(cm.Unanswered, match="fvcore does not count"):
            ask()
    both = cm.count(she, convention="torch").at(d=128, l=128)
    assert (both.mul, both.add, both.total) == (272_629_760, 272_629_760, 545_259_520)


def test_a_peer_meets_complex_products_as_complex_ones() -> None:
    """What FlopCounterMode prints for the module: see the ladder's tests."""
    found = cm.count(cm.mixer("she"), form="fft", convention="torch")
    assert found.at(d=128, l=128).total == 12_615_680
