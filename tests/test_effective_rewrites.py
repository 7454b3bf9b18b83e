"""Which rewrites change a form's equations? All others leave every count as it is."""

from __future__ import annotations

import pytest

import costmodel as cm
from costmodel.errors import Unanswered
from costmodel.program.conventions import OF_FORWARD, SCALES
from costmodel.program.lowering import effective, lower

CHANGED = {
    "me": {"dense"},
    "self-attention": {"dense", "safe-softmax", "mask=add", *SCALES[1:]},
    "gru": {"zero-state"},
    "mamba-2+core": {"dense", "unread-rows", "zero-state"},
    "reformer": {"dense", "mask=add", "norm=rsqrt", "safe-softmax", "sort=merge", *SCALES[1:]},
}


@pytest.mark.parametrize("name", CHANGED)
def test_rewrites_that_change_equations(name: str) -> None:
    mixer = cm.mixer(name)
    assert effective(mixer.forms[mixer.default_form]) == CHANGED[name]


@pytest.mark.parametrize("name", ["she", "gru", "gated-deltanet"])
def test_other_rewrites_change_no_count(name: str) -> None:
    mixer = cm.mixer(name)
    form = mixer.forms[mixer.default_form]
    others = OF_FORWARD - effective(form)
    assert others
    for rewrite in sorted(others):
        for before in ((), ("dense",)):
            for phase in ("training", "inference"):
                plain, changed = (
                    _counted(mixer, phase, names) for names in (before, (*before, rewrite))
                )
                assert changed == plain, (rewrite, before, phase)


def _counted(mixer: cm.Mixer, phase: str, rewrites: tuple[str, ...]) -> object:
    try:
        return cm.count(mixer, phase, convention=("strict", *rewrites)).classes
    except Unanswered as reason:
        return str(reason)


def test_equations_are_shared_by_rewrites_that_change_none() -> None:
    form = cm.mixer("self-attention").forms["direct"]
    lower.cache_clear()  # other tests may have dropped the system, but not the form, from a cache
    assert lower(form, ("zero-state",)) is lower(form)
    assert lower(form, ("norm=rsqrt", "safe-softmax")) is lower(form, ("safe-softmax",))
    assert lower(form, ("safe-softmax",)) is not lower(form)
