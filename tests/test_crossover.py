"""Are the sizes at which mixers cross those that a scan finds, and are bad requests told why?"""

from __future__ import annotations

import json
import random
import shlex
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

import cli
import costmodel as cm
from costmodel.backwards.crossover import Cheaper, Crossover
from costmodel.claims.comparisons import OrderingClaim, ThresholdClaim
from costmodel.claims.identities import SEARCHED
from costmodel.errors import SizeError, Unanswered, WrongKind
from costmodel.language.equations import Mixer
from costmodel.mixers import builtin, names
from costmodel.program.chosen_sizes import combinations, fit, fitting, letters_of
from costmodel.questions.question import EVERY, Case, Value
from costmodel.questions.registry import FIGURES
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, sum_of
from costmodel.symbolic.sizes import LARGEST
from costmodel.symbolic.thresholds import Case as Holding, points, positive_in

NUMBERS = [
    name for name, figure in FIGURES.items()
    if figure.kind in ("number", "names") and name not in ("best_chunk", "optimiser")
]  # fmt: skip


def shown(found: Crossover) -> list[tuple[int, int, str]]:
    return [(one.first, one.last, " = ".join(one.least)) for one in found.ranges]


def test_linear_attention_and_self_attention_for_one_token() -> None:
    """Each value is that of `cm.count`."""
    found = cm.crossover("linear-attention", "self-attention", phase="inference", d=1024, n=16)
    assert shown(found) == [(1, 65, "self-attention"), (66, LARGEST, "linear-attention")]
    for t in (65, 66):
        count = {
            name: cm.count(cm.mixer(name), "inference").at(d=1024, n=16, t=t).total
            for name in found.names
        }
        assert found.values(t) == count


def test_a_crossover_prints_its_ranges() -> None:
    two = ("linear-attention", "self-attention")
    assert str(cm.crossover(*two, phase="inference", d=1024, n=16)) == (
        "Crossover of linear-attention, self-attention by total over t\n"
        "t = 1 to 65: self-attention\nt = 66 on: linear-attention"
    )
    assert str(cm.crossover("she", two[1], phase="training", over="d", l=64, n=16)) == (
        "Crossover of she, self-attention by total over d, of the multiples of 16\n"
        "d = 16 on: self-attention"
    )
    with pytest.raises(WrongKind, match="crossover: by must be a string, got nothing"):
        cm.crossover(*two, by=None)  # type: ignore[arg-type]  # as a user may
    same = str(cm.crossover(*two, by="parameters", phase="training", n=4))
    assert "linear-attention and self-attention have the same" in same


@pytest.mark.parametrize("b", [1, 8, 64, 4096])
def test_grouped_attention_and_mamba_2_by_traffic(b: int) -> None:
    """From more than 2,068 + 33,053/b tokens on, as tests/test_state_roles.py has by hand."""
    found = cm.crossover(
        "gqa{n=32,g=8}", "mamba-2{n=128,P=64,N=128,G=8,k=4}", by="traffic", phase="inference",
        d=4096, b=b, dtype="bf16", state_dtype="fp32",
    )  # fmt: skip
    last = 2068 + 33053 // b
    grouped, mamba = found.names
    assert shown(found) == [(1, last, grouped), (last + 1, LARGEST, mamba)]


def test_sizes_of_numpy_are_exact() -> None:
    found = cm.crossover("linear-attention", "self-attention", phase="training", d=65536, n=16)
    exact = found.values(10**7)
    assert found.values(np.int64(10**7)) == exact
    assert {type(value) for value in found.values(np.int64(10**7)).values()} == {int}
    several = found.values(np.array([10**7, 3]))
    assert {name: value.tolist() for name, value in several.items()} == {
        name: [exact[name], other] for name, other in found.values(3).items()
    }
    assert found.least(np.int64(66)) == found.least(66)


@pytest.mark.parametrize(
    "size",
    [1e8, 2.5, "66", None, True, {3}, [], [[1], [2, 3]], 0, -3, 2**41, 5, np.int64(5), [8, 5],
     np.ma.array([8, 16], mask=[False, True])],
)  # fmt: skip
def test_a_size_that_does_not_fit_is_refused_at_once(size: Any) -> None:
    """Four heads, so that d is a multiple of 4."""
    found = cm.crossover("linear-attention", "self-attention", over="d", l=64, n=4)
    for asked in (found.values, found.least):
        with pytest.raises(SizeError):
            asked(size)
    with pytest.raises(SizeError, match="size d: expected one value, got 2"):
        found.least([8, 16])


def drawn(draw: random.Random, given: float = 0.6) -> Crossover | None:
    """A random request, with a part of the sizes given; None where a candidate is drawn twice."""
    phase = draw.choice(EVERY)
    by = draw.choice([name for name in NUMBERS if phase in FIGURES[name].phases] + ["total"] * 9)
    mixers = [builtin(draw.choice(names())) for _ in range(draw.choice([2, 2, 3]))]
    forms = [(mixer, draw.choice([*mixer.forms])) for mixer in mixers]
    letters = {x for mixer, form in forms for x in letters_of(mixer, phase, form)}
    usual = "t" if phase == "inference" else "l"
    over = draw.choice([usual, usual, draw.choice(sorted(letters))])
    values = {x: draw.choice([1, 2, 3, 4, 6, 8, 12, 16, 48, 96]) for x in sorted(letters - {over})}
    sizes: Any = {x: size for x, size in values.items() if draw.random() < given}
    if len({*forms}) < len(forms):
        return None
    typed = [f"{mixer.name}:{form}" for mixer, form in forms]
    return cm.crossover(*typed, by=by, over=over, phase=phase, **sizes)


def values(found: Crossover, size: int) -> list[Value] | None:
    """The figure of each candidate at one size, as tables show it; None at a size that does not
    fit."""
    result = []
    try:
        lines = [(one.about, one.line.sizes(size)) for one in found.candidates]
        for about, sizes in lines:
            fit(about.mixer, sizes)
    except SizeError:
        return None
    for about, sizes in lines:
        case = Case(about, sizes, symbolic=False, dtypes=found.dtypes)
        result.append(case.figure(found.figure))
    return result


def winners(found: Crossover, size: int) -> tuple[str, ...] | None:
    """The candidates with the least value; () where one has none; None where the size does not
    fit."""
    told = values(found, size)
    if told is None:
        return None
    numbers = [value for value in told if isinstance(value, (int, Fraction))]
    if len(numbers) < len(told):
        return ()
    return tuple(n for n, v in zip(found.names, numbers, strict=True) if v == min(numbers))


SCANNED = 70


def test_beyond_its_positions_a_network_has_parameters_alone() -> None:
    """GPT-2's table has 1,024 positions."""
    pair = ("gpt-2", "gpt-2-medium")
    found = cm.crossover(*pair, by="total", phase="inference", over="t")
    assert found.least(1025) == () != found.least(1024) == ("gpt-2",)
    with pytest.raises(Unanswered, match="gpt-2: learned positions: position t = 1025 would lie"):
        found.values(1025)
    held = cm.crossover(*pair, by="parameters", phase="inference", over="t")
    assert held.least(1025) == ("gpt-2",) == min(held.values(1025).items(), key=itemgetter(1))[:1]


@pytest.mark.grid(40)
@pytest.mark.parametrize("seed", range(600))
def test_random_requests_against_a_scan(seed: int) -> None:
    """At the smallest sizes, at random ones, and at both sides of every break-even."""
    draw = random.Random(seed)
    found = None
    while found is None:
        found = drawn(draw)
    small = {x: winners(found, x) for x in range(1, SCANNED)}
    refused = ""
    try:
        ranges = found.ranges
    except (SizeError, Unanswered) as reason:
        refused = str(reason)
    if refused:
        there = {who for who in small.values() if who}
        allowed = {found.names} if "have the same" in refused else set()
        # a form whose cost has numbers at given sizes alone is refused
        assert there <= allowed or ": no formula of " in refused, refused
        return
    ends = {x for r in ranges[:20] for x in (r.first - 1, r.first, r.last, r.last + 1)}
    others = {*ends, *(draw.randint(1, LARGEST) for _ in range(5))}
    large = {x: winners(found, x) for x in others if SCANNED <= x <= LARGEST}
    step = found.domain.step if isinstance(found.domain, range) else 1
    for size, who in (small | large).items():
        inside = [
            each.least
            for each in ranges
            if each.first <= size <= each.last
            and (size - each.first) % step == 0
            and (size - each.first) // step % each.step < each.width
        ]
        assert (size in found.domain) == (who is not None)
        if who is not None:
            assert inside == ([who] if who else []), (size, found.names, found.figure.name)


def test_the_sizes_that_fit_are_those_that_a_scan_finds() -> None:
    """Of every mixer, each of its sizes between others that fit; one size is bounded twice."""
    between = cm.Mixer("between")
    P, Q, R = (between.size(x, "a width", width) for x, width in (("P", 3), ("Q", 5), ("R", 9)))
    between.at_most(P, Q)
    between.at_most(Q, R)
    for mixer in [between, *map(builtin, names())]:
        (sizes,) = combinations(letters_of(mixer, "training"), {}, mixer)
        for letter in mixer.letters:
            found = fitting(mixer, letter, sizes)
            for size in range(1, 40):
                fits = does_fit(mixer, {**sizes, letter: size})
                assert (size in found) == fits, (mixer.name, letter, size)


def does_fit(mixer: Mixer, sizes: dict[str, int]) -> bool:
    try:
        fit(mixer, sizes)
    except SizeError:
        return False
    return True


def test_an_order_without_end_is_told_in_blocks() -> None:
    """A chunk of 16: at each t from 16 on, its remainder by 16 decides; against all counts."""
    found = cm.crossover("linear-attention:chunked", "linear-attention", phase="inference", C=16)
    chunked, recurrent = found.names
    assert [(x.first, x.step, x.width, *x.least) for x in found.ranges] == [
        (1, 1, 1, chunked), (16, 16, 1, recurrent), (17, 16, 8, chunked), (25, 16, 7, recurrent),
    ]  # fmt: skip
    assert found.ranges[0].last == 15 and all(map(found.goes_on, found.ranges[1:]))
    assert str(found).splitlines()[1:] == [
        f"t = 1 to 15: {chunked}", f"t = 16 of every 16, on: {recurrent}",
        f"t = 17 to 24 of every 16, on: {chunked}", f"t = 25 to 31 of every 16, on: {recurrent}",
    ]  # fmt: skip
    for t in range(1, 100):
        assert found.least(t) == ((chunked,) if t < 16 or t % 16 in range(1, 9) else (recurrent,))


def test_the_figures_that_are_listed_can_be_asked() -> None:
    with pytest.raises(ValueError, match="the figures are ") as refused:
        cm.crossover("self-attention", "linear-attention", by="nosuch")
    listed = str(refused.value).partition("figures are ")[2].split(", ")
    assert {"total", "intensity", "to_forward"} < {*listed}
    for by in listed:
        found = cm.crossover("self-attention", "self-attention+bias", by=by)
        assert len(found.values(64)) == 2, by


def run(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.run(["crossover", *shlex.split(line)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize(
    ("line", "said"),
    {
        "self-attention": "expected at least two candidates",
        "self-attention self-attention": "self-attention is given twice",
        "self-attention+bias self-attention --by exp": "have the same exp",
        "self-attention he --by foo": "unknown figure 'foo'",
        "self-attention he --by totl": "did you mean 'total'?",
        "self-attention he --by path": "is no number: mixers are compared by numbers, such as",
        "self-attention he --by state --phase training": "exists in inference only",
        "self-attention he --by total --dtype bf16": "total is the same for all element types",
        "self-attention he --phase both": "--phase 'both': expected one of training",
        "self-attention he --by traffic --dtype bf17": "dtype 'bf17': did you mean 'bf16'?",
        "self-attention he --by optimiser": "compare parameters",
        "self-attention he --by ratio": "compare total",
        "self-attention he --by best_chunk": "compare total over that size",
        "self-attention he --over l,d,n": "expected the letters of two sizes",
        "self-attention he --over ,d": "expected the letters of two sizes",
        "self-attention he --phase inference --t t": "size t is solved for and has a value",
        "self-attention he --over length": "expected the letter of one size",
        "fastfood-rks he --over l,n --d 96": "no power of two is a possible n: give --n 3",
        "she: he": "unknown mixer 'she:'",
        "self-attention he --over w": "is a size of none of these mixers: expected one of b, d",
        "self-attention he --over t": "t is a size of inference",
        "self-attention he --w 3": "is a size of none of these mixers: expected one of b, d",
        "self-attention he --l 5": "leave out its value",
        "self-attention he --d 100": "needs d/n to be whole",
        "self-attention he --h 5": "has no option --h",
        "self-attention he --b n --n b": "is tied to",
        "self-attention he --form recurrent": "self-attention has no form 'recurrent'",
        "self-attention nobody:direct": "unknown mixer 'nobody'",
        "self-attention fnet --phase inference": "fnet: not causal",
        "fastfood-rks self-attention --over n --d 7 --phase inference": "fastfood-rks",
    }.items(),
)
def test_a_bad_request_gets_one_sentence(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(line, capsys)
    assert code == 2 and not out
    assert said in err and err.count("\n") == 1


def test_the_sizes_that_fit_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run("self-attention he --l 512 --over d", capsys)
    assert "values of d that fit: the multiples of 8" in out
    _, out, _ = run("self-attention he --d 96 --over n", capsys)
    assert "values of n that fit: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96" in out


def test_all_candidates_with_the_least_at_every_size_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = run("she me me:fft --by parameters --over d", capsys)
    assert "By parameters, me and me:fft are the cheapest at every d." in out


def test_a_map_has_exact_ranges_at_each_step_of_the_second_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mixers = ("self-attention", "linear-attention", "she")
    _, out, _ = run(f"{' '.join(mixers)} --over l,d --format csv", capsys)
    rows = [row.split(",") for row in out.splitlines()[1:]]
    assert [*dict.fromkeys(int(row[3]) for row in rows)] == [2**k for k in range(3, 13)]
    for row in rows:
        d, first, last, least = int(row[3]), int(row[5]), int(row[6]), row[9]
        for l in {first, last} - {LARGEST}:
            totals = {m: cm.count(cm.mixer(m)).at(l=l, d=d, n=8).total for m in mixers}
            assert least == " = ".join(m for m in mixers if totals[m] == min(totals.values()))
    _, out, _ = run(f"{' '.join(mixers)} --over l,d --d 64,128", capsys)
    assert [line.split()[0] for line in out.splitlines() if line[:4].strip().isdecimal()] == [
        "64", "128",
    ]  # fmt: skip


def test_of_many_candidates_those_are_shown_that_have_the_least_somewhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mixers = "self-attention she he we me linear-attention recurrent gru"
    _, out, _ = run(mixers, capsys)
    assert "never the least: self-attention, she, he, we, linear-attention, gru" in out
    assert "she" in run(f"{mixers} --format csv", capsys)[1].splitlines()[0]


def test_json_and_csv_have_every_range(capsys: pytest.CaptureFixture[str]) -> None:
    line = "linear-attention self-attention --phase inference --n 16 --d 512,1024"
    _, out, _ = run(f"{line} --format json", capsys)
    small, large = json.loads(out)["crossovers"]
    assert [each["least"] for each in large["ranges"]] == [
        ["self-attention"], ["linear-attention"]
    ]  # fmt: skip
    before, after = (each["first"] for each in large["ranges"])
    assert (before, after) == (1, 66) and small["ranges"][1]["first"] < 66
    _, out, _ = run(f"{line} --format csv", capsys)
    assert [row.split(",")[6:8] for row in out.splitlines()[3:]] == [
        ["1", "65"],
        ["66", str(LARGEST)],
    ]


def holds(case: Holding, sizes: dict[str, int]) -> bool:
    """Whether a case holds at sizes, by its bounds and constraints, in exact arithmetic."""
    if any(guard.rational(sizes) < 0 for guard in case.where):
        return False
    for bound in case.bounds:
        above, below, root = (
            Fraction(p.rational(sizes)) for p in (bound.above, bound.below, bound.root)
        )
        assert below > 0 and root >= 0
        gap = (sizes[bound.letter] * below - above) * bound.sign  # to be compared with the root
        larger = (gap > 0 and gap * gap > root) or (gap == 0 and root < 0)
        smaller = gap < 0 or gap * gap < root
        if bound.sign < 0:
            larger, smaller = smaller, larger
        if not (larger if bound.relation == ">" else smaller):
            return False
    return True


@pytest.mark.parametrize("seed", range(30))
def test_conditions_in_letters_are_right_at_small_sizes(seed: int) -> None:
    """Random polynomials of degree two at most in l, with d and n, and with cases."""
    draw = random.Random(seed)
    l, d, n = map(Poly.atom, "ldn")

    def part(degree: int) -> Poly:
        return sum_of(
            l**power * draw.choice([-3, -2, -1, 0, 1, 2]) * draw.choice([Poly.of(1), d, n, d - n])
            for power in range(degree + 1)
        )

    difference = Exact.of(part(draw.choice([1, 2])))
    if draw.random() < 0.4:
        difference = difference + Exact(((frozenset({l - draw.randint(2, 5)}), part(1)),))
    if draw.random() < 0.3:
        difference = difference + Exact(((frozenset({d - l}), part(1)),))
    found = positive_in(difference, "l")
    for sizes in points(frozenset("ldn"), 9):
        assert any(holds(case, sizes) for case in found) == (difference.rational(sizes) > 0), sizes


@pytest.mark.grid(200)
@pytest.mark.parametrize("seed", range(400))
def test_conditions_of_random_mixers_are_right_at_random_sizes(seed: int) -> None:
    draw = random.Random(seed)
    told: tuple[Cheaper, ...] = ()
    while not told:
        found = drawn(draw, given=0.3)
        with suppress(SizeError, Unanswered):
            told = found.conditions if found is not None else ()
    assert found is not None
    by_name = dict(zip(found.names, found.forms, strict=True))
    for _ in range(20):
        letters = {x for form in found.forms for x in letters_of(form.mixer, found.phase)}
        sizes = {x: draw.choice([1, 2, 3, 4, 6, 8, 12, 16, 48, 96, 1000]) for x in sorted(letters)}
        sizes["t"] = draw.randint(1, sizes["l"])
        sizes |= {x: size for x, size in found.given.items() if isinstance(size, int)}
        values: dict[str, int | Fraction] = {}
        for name, form in by_name.items():
            own = {**sizes, **form.mixer.given}
            if does_fit(form.mixer, own):
                case = Case(form, own, symbolic=False, dtypes=found.dtypes)
                value = case.figure(found.figure)
                if isinstance(value, (int, Fraction)):
                    values[name] = value
        for each in told:
            if {each.name, each.other} <= values.keys():
                less = any(holds(case, sizes) for case in each.cases)
                assert less == (values[each.name] < values[each.other]), (each, sizes)


def test_the_condition_on_traffic_is_the_one_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """From more than 2,068 + 33,053/b tokens on: 528,851/16 is 33,053 3/16."""
    mixers = "'gqa{n=32,g=8}' 'mamba-2{n=128,P=64,N=128,G=8,k=4}'"
    types = "--by traffic --phase inference --d 4096 --dtype bf16 --state-dtype fp32"
    _, out, _ = run(f"{mixers} {types} --symbolic --format csv", capsys)
    grouped, mamba = out.splitlines()[1:]
    assert grouped.endswith(",t < 2068 + 528851/(16*b)")
    assert mamba.endswith(",t > 2068 + 528851/(16*b)")
    _, out, _ = run(f"{mixers} {types} --symbolic", capsys)
    assert "t > 2068 + 528851/(16b) (≈ 2068 + 33053/b)" in out


@pytest.mark.parametrize(
    ("line", "said"),
    {
        "self-attention local-attention": "the difference of the two formulas has a floor",
        "self-attention she --by span": "the difference of the two formulas has a function of l",
        "self-attention mamba --by peak": "is the largest of several formulas",
        "self-attention convolution --over h": "size h is d/n",
        "self-attention self-attention+bias --by exp": "the same exp at every size",
        "self-attention she --d 3,4": "takes one value of each size",
    }.items(),
)
def test_without_a_short_condition_the_sizes_are_asked_for(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(f"{line} --symbolic", capsys)
    assert code == 2 and not out
    assert said in err and err.count("\n") == 1


def threshold(mixer: str, start: int = 0, **sizes: int) -> ThresholdClaim:
    return ThresholdClaim(
        id="one", source="test", place="here", claimed=f"{mixer} is cheaper", mixer=mixer,
        against="self-attention", quantity="total", relation="<", sizes=sizes, start=start,
        phase="inference" if mixer == "linear-attention" else "training",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mixer", "start", "sizes"),
    [
        ("linear-attention", 66, {"d": 1024, "n": 16}),
        ("local-attention", 27, {"d": 128, "n": 8, "B": 16}),
    ],
)
def test_a_claim_says_from_which_size_on(mixer: str, start: int, sizes: dict[str, int]) -> None:
    """Also where the counts go by cases, as those of blocks."""
    right, wrong = (threshold(mixer, at, **sizes) for at in (start, start + 1))
    found = right.finding(right.interpretation)
    assert found.holds and found.derived.endswith(f"= {start} on")
    found = wrong.finding(wrong.interpretation)
    assert not found.holds and [*found.counterexample.values()] == [start]


def test_a_claim_is_refuted_by_a_size_from_which_the_relation_holds() -> None:
    """At d = 64 she is cheaper from no length on, at d = 2 from a length that refutes the claim."""
    claim = replace(threshold("she", 5, n=1), sizes={"d": [64, 2], "n": 1})
    found, alone = (
        one.finding(one.interpretation) for one in (claim, threshold("she", 5, d=2, n=1))
    )
    assert not found.holds and found.counterexample == alone.counterexample != {}


def test_a_threshold_of_counts_by_cases_is_solved() -> None:
    claim = threshold("local-attention", d=128, n=8, B=16, l=64)
    found = claim.finding(claim.interpretation)
    assert found.in_limit and found.note.endswith("from l = 27 on")


def test_an_ordering_at_every_length_is_solved_where_counts_go_by_cases() -> None:
    """The first failure lies beyond the sizes that a search tries; without one there is a proof."""
    claim = OrderingClaim(
        id="one", source="test", place="here", claimed="me is cheaper", mixer="me",
        against="local-attention", quantity="total", relation="<", phase="training",
        sizes={"d": 640, "n": 8, "B": 16},
    )  # fmt: skip
    found = claim.finding(claim.interpretation)
    assert not found.holds and found.counterexample["l"] == 5180 > SEARCHED
    before, after = (
        [cm.count(cm.mixer(name)).at(**claim.given, l=l).total for name in ("me", claim.against)]
        for l in (5179, 5180)
    )
    assert before[0] < before[1] and after[0] >= after[1]
    fewer = replace(claim, mixer="she", against="local-attention", quantity="div")
    found = fewer.finding(fewer.interpretation)
    assert found.holds and found.note == "proven"


@pytest.mark.parametrize("name", ["linear-attention", "retnet", "h3:fft"])
def test_logarithms_over_the_number_of_heads_are_compared(name: str) -> None:
    """ceil_log2(d/n) at d = 64 is 6 + ceil_log2(1/n): the argument is a fraction."""
    found = cm.crossover("self-attention", name, by="span", over="n", l=16, d=64, phase="training")
    for n in found.domain:
        told = values(found, n)
        assert told is not None and [*found.values(n).values()] == told
    assert found.ranges[0].first == 1


def test_a_number_over_a_sum_is_split_where_its_quotient_changes() -> None:
    """A path of floor((l - 2)/(w - 1)) steps has about 2*sqrt(l) lengths."""
    found = cm.crossover(
        "self-attention+window", "he", "we", by="path_length", over="w", l=64, d=24, n=4
    )
    for w in range(1, 99):
        (one,) = (x for x in found.ranges if x.first <= w <= x.last)
        assert one.least == winners(found, w), w
    largest = cm.budget("self-attention+window", path_length=10, largest="w", l=64)
    fits = [w for w in range(1, 99) if found.values(w)["self-attention+window"] <= 10]
    assert (largest.largest, [range(*x)[0] for x in largest.again]) == (1, [fits[1]])
    with pytest.raises(ValueError, match="give w a value, and solve for another size"):
        cm.budget("self-attention+window", path_length=10, largest="w", l=400_000)


@pytest.mark.parametrize(
    "line",
    [
        "crossover linear-attention self-attention --phase inference",
        "crossover linear-attention self-attention --phase inference --over t,d",
        "budget self-attention --state 1MB",
        "match self-attention --to linear-attention --by state --vary t",
    ],
)
def test_the_position_may_be_tied_to_the_length_as_is_assumed(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for options in ("", " --t l"):
        assert cli.run(shlex.split(f"{line} --format csv{options}")) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
