"""Is the size at which a mixer costs as much as another one what a scan over sizes finds?"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

import costmodel as cm
from costmodel.backwards.match import Match
from costmodel.errors import EquationError, Unanswered
from costmodel.language.equations import Mixer
from costmodel.mixers import names
from costmodel.program.chosen_sizes import combinations, letters_of
from costmodel.program.conventions import Convention
from costmodel.questions.question import answers
from tests.scanned import costs, opened, random_sizes, scanned
from tests.typed import Capture, printed, refused


def held(found: Match, costs_at: dict[int, int], target: int) -> None:
    """Compare an answer with what a scan finds."""
    assert found.target == target
    said = {
        value: one.value
        for one in found.candidates
        for value in costs_at
        if value in range(one.at.first, one.at.last + 1, one.at.step)
    }
    exact = {value for value, cost in costs_at.items() if cost == target}
    if any(one.value == target for one in found.candidates):
        assert said == dict.fromkeys(exact, target)
        return
    assert not exact
    for way, best in ((-1, max), (1, min)):
        nearest = best((x for x in costs_at.values() if (x - target) * way > 0), default=None)
        told = [one.value for one in found.candidates if (one.value - target) * way > 0]
        if nearest is not None:
            assert told and best((told[0], nearest)) == told[0]
    assert all(costs_at[value] == cost for value, cost in said.items())


@pytest.mark.parametrize("phase", ["training", "inference"])
@pytest.mark.parametrize("name", names())
@pytest.mark.grid(24)
def test_a_scan_finds_the_same(name: str, phase: str) -> None:
    """Every mixer at random sizes, against itself and against self-attention, each size open in
    turn."""
    draw, mixer = random.Random(f"{name} {phase}"), cm.mixer(name)
    if answers(mixer, mixer.default_form, phase, Convention()).unanswered:
        pytest.skip("no one-token inference")
    sizes = random_sizes(mixer, phase, draw)
    for letter in [x for x in sizes if x not in mixer.given]:
        equal, given = opened(letter, sizes)
        by, cost = draw.choice([*costs(mixer, phase).items()])
        found = scanned(cost, given, equal)
        other = draw.choice((mixer, cm.mixer("self-attention{n=1}")))
        given[letter] = draw.choice([*found])
        target = costs(other, phase)[by](own_sizes(other, phase, given))
        asked: dict[str, Any] = {**given, "by": by, "vary": letter, "phase": phase}
        try:
            answer: Match | str = cm.match(mixer, to=other, **asked)
        except Unanswered as reason:
            answer = str(reason)
        if isinstance(answer, Match):
            held(answer, found, target)
        else:
            assert f"{by} of {name} is " in answer and f" at every {letter}, " in answer
            assert len({*found.values()}) == 1


def own_sizes(mixer: Mixer, phase: str, given: Mapping[str, int]) -> dict[str, int]:
    """All sizes of a mixer, with defaults for those that are not given."""
    (found,) = combinations(
        letters_of(mixer, phase, mixer.default_form), {x: (n,) for x, n in given.items()}, mixer
    )
    return found


def test_values_are_told_by_hand() -> None:
    """3*d**2 of we + d entries of its mean are nearest to 4*512**2 at d = 692 or 693."""
    found = cm.match("we", to="self-attention", by="parameters", vary="d", d=512)
    assert found.target == 4 * 512**2
    entries = {d: cm.parameters(cm.mixer("we")).at(d=d, l=128) for d in (692, 693)}
    assert {one.at.first: one.value for one in found.candidates} == entries
    assert entries[692] < found.target < entries[693]


def test_several_sizes_that_cost_the_same_are_all_named() -> None:
    """Rows of a window of at least t - 1 rows beside the new one are all rows."""
    found = cm.match("restricted-attention-causal", to="self-attention", by="state", vary="w", t=9)
    (one,) = found.candidates
    assert (one.at.first, one.at.last) == (10, 2**40)


def test_the_nearest_value_lies_between_greater_ones() -> None:
    """Short chunks and long chunks of 32 rows take more operations than chunks of three rows, and
    all more than the recurrence."""
    sizes: dict[str, Any] = {"l": 32, "d": 8, "n": 2}
    retnet = cm.mixer("retnet")
    cost = {C: cm.count(retnet, form="chunked").at(**sizes, v=2, C=C).total for C in range(1, 70)}
    found = cm.match(retnet, form="chunked", to=retnet, by="total", vary="C", **sizes)
    assert found.target == cm.count(retnet).at(**sizes, v=2).total < min(cost.values())
    (one,) = found.candidates
    assert (one.value, one.at.first) == min((total, C) for C, total in cost.items())
    assert 1 < one.at.first == one.at.last < 69


REFUSED = {
    "we --to self-attention --by parametres --vary d":
        "unknown figure 'parametres'; did you mean 'parameters'?",
    "we --to self-attention --by latency --vary d": "is measured, not derived",
    "we --to self-attention --by total --vary Q": "size Q is a size of none of these mixers",
    "we --to self-attention --by total --vary n": "we: there is no size n: expected one of",
    "we{d=8} --to self-attention --by total --vary d": "we{d=8}: size d has a value already",
    "we --to self-attention --by total --vary d --d 8,16": "expected one value, got 2",
    "we --to self-attention --by state --vary t --phase training":
        "state (held after t tokens) exists in inference only, not in training",
    "we --to self-attention --by parameters --vary b":
        "parameters of we is 49,152 at every b, and that of self-attention is 65,536",
    "we --to he --by total --vary d --n 4": "size n is a size of none of these mixers",
    "we --to he --by total --vary d --t 4": "in this phase: t is a size of inference",
    "we --to he --by total --vary d --form x": "we has no form 'x': expected one of direct, fft",
    "we --to he:all --by total --vary d": "he has no form 'all': expected one of direct",
    "we --to fnet --by state --vary t": "fnet: not causal",
    "wee --to self-attention --by total --vary d": "unknown mixer 'wee'",
}  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
def test_a_mistake_gets_a_sentence(line: str, capsys: Capture) -> None:
    assert REFUSED[line] in refused(capsys, "match", *line.split())


def test_a_form_is_named_behind_each_mixer(capsys: Capture) -> None:
    retnet = cm.mixer("retnet")
    given: dict[str, Any] = {"by": "total", "vary": "l", "d": 16, "n": 2, "phase": "training"}
    found = cm.match("retnet:parallel", to="retnet:chunked", **given, l=40, C=4)
    assert found.target == cm.count(retnet, form="chunked").at(l=40, d=16, n=2, v=2, C=4).total
    values = {one.at.first: one.value for one in found.candidates}
    assert values == {
        l: cm.count(retnet, form="parallel").at(l=l, d=16, n=2, v=2).total for l in values
    }
    assert found == cm.match("retnet", form="parallel", to="retnet:chunked", **given, l=40, C=4)
    with pytest.raises(EquationError, match="retnet has no form 'nosuch': expected all, "):
        cm.match("retnet", to="retnet:nosuch", **given)
    line = "retnet:parallel --to retnet:chunked --by total --vary l --phase training"
    assert "retnet in form chunked: total" in printed(capsys, "match", *line.split())
