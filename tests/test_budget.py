"""Is the largest size within a budget what a scan over all smaller sizes finds?"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import costmodel as cm
from costmodel.backwards.amounts import amount
from costmodel.backwards.budget import Budget
from costmodel.errors import EquationError, SizeError
from costmodel.mixers import names
from costmodel.program.conventions import Convention
from costmodel.questions.question import answers
from costmodel.report.backwards.sizes import ordinal, words
from tests.scanned import SCANNED, blocks, costs, opened, random_sizes, scanned
from tests.typed import Capture, printed, refused

BYTES = ("state", "peak")
"""The quantities that are limited in bytes, here four an element."""

GOLDEN = {
    "self-attention": 38_146,
    "self-attention+grouped{g=8}": 152_587,
    "he": 76_293,
    "we": 76_293,
    "linear-attention": None,
}
"""Mixer -> the most tokens in 40 GB at d = 4096, n = 32, b = 64 in bf16, by hand:
40e9 // (64 sequences * 2 bytes * entries a token)."""


@pytest.mark.parametrize("name", GOLDEN)
def test_the_most_tokens_in_forty_gigabytes(name: str) -> None:
    found = cm.budget(name, state="40GB", d=4096, n=32, b=64, dtype="bf16")
    assert found.largest == GOLDEN[name]
    assert found.by == (("state",) if GOLDEN[name] else ())


def held(found: Budget, costs_at: Mapping[str, Mapping[int, int]], most: Mapping[str, int]) -> None:
    """Compare an answer with what a scan finds."""
    values = [*next(iter(costs_at.values()))]
    over = {x: {name for name in most if costs_at[name][x] > most[name]} for x in values}
    first = next((x for x in values if over[x]), None)
    largest = SCANNED if found.largest is None else found.largest
    if first is None:
        assert largest >= values[-1]
        return
    assert largest == max((x for x in values if x < first), default=0)
    assert {*found.by} == over[first]
    at = largest or values[0]
    each = {name: 4 if name in BYTES else 1 for name in most}
    assert found.values == {name: each[name] * costs_at[name][at] for name in most}
    again = {x for x in values if any(x in range(*a) for a in ranged(found))}
    assert again == {x for x in values if x > first and not over[x]}


@pytest.mark.parametrize("phase", ["training", "inference"])
@pytest.mark.parametrize("name", names())
@pytest.mark.grid(16)
def test_a_scan_finds_the_same(name: str, phase: str) -> None:
    """Every mixer at random sizes, with one limit or two, each size open in turn."""
    draw, mixer = random.Random(f"{name} {phase}"), cm.mixer(name)
    if answers(mixer, mixer.default_form, phase, Convention()).unanswered:
        pytest.skip("no one-token inference")
    sizes = random_sizes(mixer, phase, draw)
    known = costs(mixer, phase)
    for letter in [x for x in sizes if x not in mixer.given]:
        equal, given = opened(letter, sizes)
        names_ = draw.sample([*known], draw.randint(1, 2))
        found = {name: scanned(known[name], given, equal) for name in names_}
        most = {
            name: max(0, draw.choice([*values.values()]) + draw.randint(-1, 1))
            for name, values in found.items()
        }
        asked: dict[str, Any] = {**given, "largest": letter, "phase": phase}
        asked |= {name: f"{4 * n}B" if name in BYTES else n for name, n in most.items()}
        held(cm.budget(mixer, **asked), found, most)


def test_the_readme_says_these_numbers() -> None:
    said = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    for name, of in (("self-attention", "of self-attention"), ("he", "of HE")):
        assert re.search(rf"{GOLDEN[name]:,}( tokens)? {of}", said)


def test_a_size_tied_to_the_open_one_is_open_with_it() -> None:
    """Heads of one channel each: n = d."""
    attention = cm.mixer("self-attention")
    cost = {d: cm.count(attention).at(d=d, n=d, l=9).total for d in range(1, 60)}
    found = cm.budget(attention, total=cost[40], largest="d", n="d", l=9)
    assert (found.largest, found.sizes) == (40, {"b": 1, "l": 9})


def test_a_window_that_is_full_ends_the_growth() -> None:
    """w - 1 rows of keys and values beside the new one; from there on no token adds any."""
    found = cm.budget("restricted-attention-causal", state="1GB", w=7, d=16, n=2)
    assert found.largest is None
    assert [(kink.at, kink.constant) for kink in found.kinks] == [(6, True)]
    assert found.values["state"] == 4 * 2 * 16 * 6


def test_slow_growth_is_no_end_of_growth() -> None:
    """A span with the logarithm of the length is constant for long before 2**40, not for good."""
    found = cm.budget("self-attention", span=500, d=64)
    assert (found.largest, found.by) == (2**40, ())
    assert found.ends == "every l up to 2**40 fits, the largest that a size may be"


def test_of_several_limits_the_smallest_binds_and_is_named() -> None:
    sizes: dict[str, Any] = {"d": 64, "n": 4}
    alone = {
        name: cm.budget("self-attention", largest="t", **{name: most}, **sizes).largest or 0
        for name, most in (("state", "100kB"), ("total", "50k"))
    }
    both = cm.budget("self-attention", largest="t", state="100kB", total="50k", **sizes)
    assert both.largest == min(alone.values())
    assert both.by == tuple(name for name, largest in alone.items() if largest == both.largest)


def test_weights_and_state_share_a_memory() -> None:
    """4*d**2 weights, and 2*d entries of the state a token, of two bytes each."""
    found = cm.budget("self-attention", memory="1MiB", d=256, n=4, dtype="bf16")
    assert found.largest == (2**20 - 2 * 4 * 256**2) // (2 * 2 * 256)
    typed = cm.budget(
        "self-attention", memory="1MiB", d=256, n=4, dtype="bf16", weight_dtype="int8"
    )
    assert typed.largest == (2**20 - 4 * 256**2) // (2 * 2 * 256)


def test_only_sizes_that_fit_the_others_count() -> None:
    """4*d**2 parameters of four bytes: d <= 7905, of which multiples of 8 exist; heads divide d."""
    assert cm.budget("self-attention", weights="1GB", largest="d", n=8).largest == 7904
    found = cm.budget("self-attention", total="1G", largest="n", d=12, l=64)
    assert (found.largest, found.by, found.ends) == (
        12, (), "every n that fits the other sizes is within the limits",
    )  # fmt: skip


def test_weights_for_positions_end_the_sequence() -> None:
    """aft-simple-like mixers aside, weights w[i - j] of l positions serve no token beyond l."""
    found = cm.budget("long-convolution", state="1GB", l=50, d=4)
    assert (found.largest, found.by) == (50, ())
    assert "position t = 51 would read past the end" in found.ends


def test_later_sizes_that_fit_again_are_mentioned() -> None:
    """Of blocks of 8, a token at the beginning of a block reads fewer rows than one at its end."""
    fixed = cm.mixer("fixed-attention")
    cost = {t: cm.count(fixed, "inference").at(l=t, t=t, d=8, n=1, B=8, s=2).total
            for t in range(1, 40)}  # fmt: skip
    found = cm.budget(fixed, total=cost[8] - 1, largest="t", d=8, n=1, B=8, s=2)
    fitting = {t for t in cost if any(t in range(*a) for a in ranged(found))}
    assert found.largest is not None and found.largest < 8 < max(fitting)
    assert fitting == {t for t in cost if t > found.largest and cost[t] < cost[8]}


@pytest.mark.parametrize("block", [2, 8])
def test_sizes_that_fit_again_at_every_block_go_on(block: int) -> None:
    """2*e - 1 operations of the e-th token of a block: every first one takes one operation."""
    mixer, largest = blocks(), block // 2
    found = cm.budget(mixer, total=2 * largest - 1, largest="t", d=1, B=block)
    assert (found.largest, found.by) == (largest, ("total",))
    fitting = {t for t in range(1, 99) if t > largest and (t - 1) % block < largest}
    assert {t for t in range(1, 99) if any(t in range(*a) for a in ranged(found))} == fitting
    assert all(words(part).endswith(f" on, every {ordinal(block)}") for part in found.again)


def ranged(found: Budget) -> list[tuple[int, int, int]]:
    """The larger sizes that fit again, as arguments of `range`."""
    return [(first, last + 1, step) for first, last, step in found.again]


REFUSED = {
    "": "budget needs a limit: --state 40GB",
    "--state 40": "'40' has no unit",
    "--state 40gb": "did you mean GB?",
    "--state 40XB": "the units are B, kB, MB",
    "--state -5GB": "expected a limit of 0 or more, got '-5GB'",
    "--state forty": "got 'forty'",
    "--total 3GB": "'3GB' is an amount of bytes",
    "--total 1e99": "at most 10**40",
    f"--total {'9' * 5000}": "expected a number, such as 1000000, 1e12 or 3T, got '999",
    "--total 1e40 --limit total=1": "total has two limits, 1e40 and 1",
    "--state 1GB --largest Q": "size Q is a size of none of these mixers",
    "--state 1GB --largest w": "self-attention: there is no size w: expected one of",
    "--state 1GB --t 5": "size t is given and asked for",
    "--state 1GB --phase training": "exists in inference only, not in training",
    "--limit foo=3": "no limit can be set for 'foo': choose from",
    "--limit stat=3GB": "did you mean 'state'?",
    "--limit peak": "expected FIGURE=AMOUNT",
    "--state 1GB --limit kv-cache=2GB": "state has two limits, 1GB and 2GB",
    "--state 40GB --state 30GB": "state has two limits, 40GB and 30GB",
    "--limit span=3 --limit span=4": "span has two limits, 3 and 4",
    "--state 1GB --t l --l 5": "size t is given and asked for",
    "--limit latency=3": "is measured, not derived",
    "--state 1GB --d 100 --n 7": "needs d/n to be whole",
    "--state 1GB --dtype fp13": "--dtype 'fp13': did you mean 'fp32'? expected one of",
    "--state 1GB --phase both": "--phase 'both': expected one of",
}


@pytest.mark.parametrize("options", REFUSED)
def test_a_mistake_gets_a_sentence(options: str, capsys: Capture) -> None:
    assert REFUSED[options] in refused(capsys, "budget", "self-attention", *options.split())


def test_python_refuses_in_sentences() -> None:
    given: dict[str, Any] = {"t": 5}
    with pytest.raises(SizeError, match="size t is given and asked for"):
        cm.budget("self-attention", state="1GB", **given)
    with pytest.raises(SizeError, match="'1000' has no unit"):
        cm.budget("self-attention", state=1000)
    with pytest.raises(EquationError, match="self-attention has no form 'x': expected one of"):
        cm.budget("self-attention", state="1GB", form="x")
    with pytest.raises(SizeError, match="size q is a size of none of these mixers"):
        cm.budget("self-attention", q=3)
    with pytest.raises(SizeError, match="did you mean 'state'"):
        cm.budget("self-attention", staet="1GB")


@pytest.mark.parametrize(("typed", "number"), {0.9999999: 0, 7.9999999: 7, 1e22: 10**22}.items())
def test_a_limit_that_is_a_float_is_rounded_down(typed: float, number: int) -> None:
    assert amount("total", typed, in_bytes=False) == number


def test_what_does_not_fit_at_all_says_so(capsys: Capture) -> None:
    out = printed(capsys, "budget", "self-attention", "--state", "1kB", "--d", "128")
    assert "state: does not fit at t = 1" in " ".join(out.split())


def test_without_names_all_mixers_are_shown_or_named(capsys: Capture) -> None:
    out = printed(capsys, "budget", "--state", "40GB", "--format", "json")
    rows = json.loads(out)["rows"]
    assert {row["mixer"] for row in rows} == {*names()}
    assert all(row["reason"] for row in rows if "values" not in row)


def test_a_form_is_named_behind_its_mixer(capsys: Capture) -> None:
    """Two forms of a mixer are two rows; `--form` is for names without a form."""
    options = ("--total", "1T", "--phase", "training", "--format", "json")
    out = printed(capsys, "budget", "retnet:parallel", "retnet", *options)
    largest = {row["form"]: row["largest"] for row in json.loads(out)["rows"]}
    assert largest == {
        form: cm.budget(name, form=given, total="1T", phase="training").largest
        for form, name, given in (
            ("recurrent", "retnet", None), ("parallel", "retnet", "parallel"),
            ("parallel", "retnet:parallel", None),
        )
    }  # fmt: skip
