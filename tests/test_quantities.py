"""What does a derived answer offer in Python and in a notebook?"""

from __future__ import annotations

import pytest

import costmodel as cm
from costmodel.mixers import names


@pytest.mark.parametrize("name", names())
def test_every_answer_displays_as_latex(name: str) -> None:
    mixer = cm.mixer(name)
    answers = (
        cm.count(mixer),
        cm.count(mixer, "inference"),
        cm.parameters(mixer),
        cm.span(mixer),
        cm.state(mixer),
        cm.traffic(mixer),
        cm.critical_path(mixer),
        cm.order(cm.count(mixer).exact_total),
    )
    for answer in answers:
        shown = answer._repr_latex_()
        assert shown.startswith("$") and shown.endswith("$")
        assert shown.count("{") == shown.count("}")


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
