"""Does a study plan what its file states, and does its page show exactly the records?"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from cli import run
from costmodel.data import data_dir
from costmodel.networks import model
from costmodel.report.document import Table
from profiler.meters.disturbances import BlockObservation
from profiler.meters.energy.protocol import EnergyLimits
from profiler.meters.sampler import latency_summary
from profiler.meters.timers import ClockTimer
from profiler.records.grades import grade_of
from profiler.records.measurement import Measurement
from profiler.records.reading import Reading, Unavailable
from profiler.records.store import append, read
from profiler.scaling.derived import executed_operations, live_set_bytes
from profiler.studies.grid import LAUNCHES, GridStudy, Launches, derived
from profiler.studies.grid_page import cell, over_lengths, shows, standing
from profiler.studies.pairs import pairs, settings
from profiler.studies.plan import Amount
from profiler.studies.published_times import claim, printed_times
from profiler.studies.ratios import Ratio, bytes_ratio, energy_ratio, fastest, ratio
from profiler.studies.registry import studies, study
from profiler.studies.study import Manner, StudyError, grouped
from profiler.studies.training import latest, step_operations
from profiler.studies.training_rounds import Step, Training
from profiler.sweep.failures import MEMORY
from profiler.sweep.recorded import recorded as records_of
from tests.fake_devices import ScriptedWatch
from tests.growing import ENVIRONMENT, NO_ENERGY, along_l, joules, record
from tests.printing import printed
from tests.stand_ins import Instead
from tests.sweeping import one_worker

LENGTHS = (128, 256, 512)
BASE = "self-attention"
THESIS = study("thesis-training")


def grid(name: str) -> GridStudy:
    found = study(name)
    assert isinstance(found, GridStudy)
    return found


EXTRACTORS, ADDITIVE = map(grid, ("extractors", "additive-against-dot-product"))


# Ratios and their words


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Ratio(0.5, 0.4, 0.625), "faster by 1.60 to 2.50 times"),
        (Ratio(2.0, 1.5, 2.5), "slower by 1.50 to 2.50 times"),
        (Ratio(1.0, 0.9, 1.2), "no difference shown (0.90 to 1.20)"),
        (Ratio(1.0, 1.0, 1.2), "no difference shown (1.00 to 1.20)"),
        (Ratio(refused="nobody looked"), "not compared: nobody looked"),
        (Ratio(0.5, 0.5, 0.5, exact=True), "faster by 2.00 times"),
        (Ratio(1.0, 1.0, 1.0, exact=True), "equal"),
    ],
)
def test_a_verdict_follows_from_the_interval(found: Ratio, words: str) -> None:
    assert found.words() == words


def point(seconds: float, round_: int = 0, l: int = 128, **more: Any) -> Measurement:
    return record("me", "toeplitz", {"b": 1, "l": l, "d": 64}, seconds, round_=round_, **more)


def test_an_interval_holds_those_of_all_rounds() -> None:
    first = [point(1.0, r, noise=0.01) for r in range(2)]
    second = [point(2.0, 0, noise=0.01), point(2.2, 1, noise=0.01)]
    found = ratio(first, second)
    assert found.low is not None and found.high is not None and found.value is not None
    assert found.low < 2.0 and found.high > 2.2
    assert found.value == pytest.approx(math.sqrt(2.0 * 2.2), rel=0.01)
    # a round that only one of them has is in no pair
    assert ratio(first, [point(9.0, 7)]).refused == "the two mixers have no round in common"


def test_of_a_busy_time_a_page_claims_nothing() -> None:
    calm, other = point(1.0), point(2.0)
    latency = other.readings["latency"]
    latency = structs.replace(latency, details={**latency.details, "grade": "busy", "ci_low": 0.0})
    busy = structs.replace(other, readings={"latency": latency})
    said = "no claim: a time is an estimate of a busy machine"
    assert ratio([calm], [busy]).refused == ratio([busy], [calm]).refused == said


def test_many_comparisons_widen_the_interval() -> None:
    first, second = [point(1.0, noise=0.05)], [point(1.5, noise=0.05)]
    one, many = ratio(first, second), ratio(first, second, comparisons=100)
    assert one.low is not None and many.low is not None
    assert many.low < one.low
    # 40 samples cannot hold 10^12 comparisons together
    assert "too few" in ratio(first, second, comparisons=10**12).refused


def test_graph_replays_are_compared_where_both_have_them() -> None:
    def with_graph(r: Measurement, seconds: float) -> Measurement:
        samples = tuple([seconds] * 40)
        graph = Reading("latency_graph", seconds, "s", samples, latency_summary(samples))
        return structs.replace(r, readings={**r.readings, "latency_graph": graph})

    first, second = point(5.0), point(5.0)
    assert ratio([with_graph(first, 1.0)], [with_graph(second, 3.0)]).words() == (
        "slower by 3.00 to 3.00 times"
    )
    assert ratio([with_graph(first, 1.0)], [second]).reading == "latency"


def test_launches_bind_a_hot_time_and_no_replay() -> None:
    one = point(1.0)
    latency = one.readings["latency"]
    bound = structs.replace(latency, details={**latency.details, "launch_bound": True})
    graph = Reading("latency_graph", 0.1, "s", (0.1,) * 40, latency.details)
    one = structs.replace(one, readings={"latency": bound, "latency_graph": graph})
    assert cell([one], "latency", "s") == "(1 s)"
    assert cell([one], "latency_graph", "s") == "100 ms"


def test_bytes_are_compared_exactly_and_energy_by_its_ends() -> None:
    one, other = point(1.0, memory=100.0, energy=2.0), point(1.0, memory=50.0, energy=8.0)
    assert bytes_ratio([one], [other]).words("less", "more") == "less by 2.00 times"
    assert bytes_ratio([one], [one]).words() == "equal"
    assert "differ from round to round" in bytes_ratio([one, other], [one]).refused
    # 4 times, 1 % to each side of both: 4 * 0.99 / 1.01 to 4 * 1.01 / 0.99
    assert energy_ratio([one], [other]).words("less", "more") == "more by 3.92 to 4.08 times"
    assert energy_ratio([one], [point(1.0)]).refused == NO_ENERGY
    # of an energy whose interval is unknown, the samples give the ends
    bare = Reading("energy", 2.0, "J", (1.0, 4.0), {"ci_low": None, "ci_high": None})
    other = structs.replace(one, readings={"energy": bare})
    assert energy_ratio([other], [other]).words() == "no difference shown (0.25 to 4.00)"


def test_the_fastest_is_that_of_the_least_mean() -> None:
    slow, fast = [point(2.0, 0), point(2.0, 1)], [point(1.0, 0), point(1.2, 1)]
    assert fastest({"a": slow, "b": fast}) == "b"
    assert fastest({}) is None


# Plans


def test_every_study_is_known_by_its_name() -> None:
    assert set(studies()) == {"extractors", "thesis-training", "additive-against-dot-product"}
    with pytest.raises(StudyError, match="did you mean 'extractors'"):
        study("extractor")


@pytest.mark.grid(3)
@pytest.mark.parametrize("own", [EXTRACTORS, ADDITIVE])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_plan_keeps_to_its_limits_and_says_what_it_leaves_out(
    own: GridStudy, device: str
) -> None:
    found, scale = own.planned(Manner(device, rounds=1)), own.plan.devices[device]
    asked = [p.request for block in found.blocks for p in block.points]
    assert {r.device for r in asked} == {device}
    assert {r.mixer.name for r in asked} == set(own.plan.mixers)
    assert all(derived(executed_operations, r) <= scale.operations for r in asked)
    if scale.live_bytes is not None:
        assert all(derived(live_set_bytes, r) <= scale.live_bytes for r in asked)
    assert all(map(LAUNCHES.__ge__, map(Launches(), asked)))
    for sentence in found.left_out:
        limited = "operations by its equations" in sentence or "launches" in sentence
        assert limited and "l = " in sentence


def test_the_plan_of_the_extractors_has_what_is_asked_for() -> None:
    found = EXTRACTORS.planned(Manner("cuda"))
    asked = [p.request for block in found.blocks for p in block.points]
    assert {r.phase for r in asked} == {"training", "training-step", "inference"}
    assert {r.dtype for r in asked} == {"fp32", "bf16"}
    assert {r.sizes["d"] for r in asked} == {128, 1024}
    assert min(r.sizes["l"] for r in asked) == 128
    # a convolution by FFT of one width goes on to the end of the grid
    assert max(r.sizes["l"] for r in asked) == 131072
    # every implementation of every mixer
    from profiler.modules import implementations

    named = {(r.mixer.name, r.implementation.name) for r in asked}
    assert named == {(m, i) for m in EXTRACTORS.plan.mixers for i in implementations(m)}


def test_the_hidden_layer_of_additive_attention_is_as_wide_as_the_model() -> None:
    found = ADDITIVE.planned(Manner("cuda", rounds=1))
    sizes = [p.request.sizes for b in found.blocks for p in b.points if "f" in p.request.sizes]
    assert sizes and all(each["f"] == each["d"] for each in sizes)
    assert {each["d"] for each in sizes} == {64, 512}


def test_smaller_runs_and_parts_are_parts_of_the_plan() -> None:
    whole = EXTRACTORS.planned(Manner("cpu", rounds=1))
    small = EXTRACTORS.planned(Manner("cpu", rounds=1, largest=256))
    keys = {p.key for b in whole.blocks for p in b.points}
    assert {p.key for b in small.blocks for p in b.points} < keys
    parts = [EXTRACTORS.planned(Manner("cpu", rounds=1, shard=f"{i}/3")) for i in (1, 2, 3)]
    dealt = [p.key for part in parts for b in part.blocks for p in b.points]
    assert len(dealt) == len(keys) and set(dealt) == keys
    with pytest.raises(StudyError, match="none of which is at most 64: give a larger --largest"):
        EXTRACTORS.planned(Manner("cpu", largest=64))
    with pytest.raises(StudyError, match="no plan for 'tpu'"):
        EXTRACTORS.planned(Manner("tpu"))


def test_a_grid_is_measured_into_its_file_and_resumed(tmp_path: Path, instead: Instead) -> None:
    instead(processes=lambda *_: one_worker())
    file = tmp_path / "runs.jsonl"
    manner = Manner("cpu", rounds=1, largest=32)
    done = ADDITIVE.measure(manner, file, lambda *_: None, lambda _: None)
    planned = {p.key for b in ADDITIVE.planned(manner).blocks for p in b.points}
    assert done.complete and not done.failures
    assert len(read(file)[0]) == len(planned)
    before = file.read_bytes()
    assert ADDITIVE.measure(manner, file, lambda *_: None, lambda _: None).complete
    assert file.read_bytes() == before


def test_a_grid_with_other_limits_of_energy_needs_a_file_of_its_own(
    tmp_path: Path, instead: Instead
) -> None:
    instead(processes=lambda *_: one_worker())
    file, own = tmp_path / "runs.jsonl", tmp_path / "own.jsonl"
    plain, brief = (Manner("cpu", rounds=1, largest=32, energy_trials=n) for n in (None, 3))
    quiet: dict[str, Any] = {"progress": lambda *_: None, "tell": lambda _: None}
    ADDITIVE.measure(plain, file, **quiet)
    with pytest.raises(StudyError, match=r"with the study's own options, and .* energy_trials=3: "):
        ADDITIVE.measure(brief, file, **quiet)
    ADDITIVE.measure(brief, own, **quiet)
    records = read(own)[0]
    assert {str(r.sweep["options"]) for r in records} == {"{'energy_trials': 3}"}
    assert ADDITIVE.measure(Manner("cpu", 1, largest=32, energy_trials=3), own, **quiet).complete
    assert len(read(own)[0]) == len(records)
    with pytest.raises(StudyError, match="measure each into a file of its own"):
        ADDITIVE.page([*read(file)[0], *records], "both.jsonl")


def test_a_page_misses_no_point_for_its_limits_of_energy() -> None:
    found = additive_records(0.25, 0.5)
    others = [structs.replace(r, sweep={**r.sweep, "options": {"energy_trials": 3}}) for r in found]
    plain, other = (
        printed(ADDITIVE.page(records, "r.jsonl"), "markdown") for records in (found, others)
    )
    lacking = [line for line in plain.splitlines() if "of the plan that no record is of" in line]
    assert lacking and lacking == [
        line for line in other.splitlines() if "of the plan that no record is of" in line
    ]


# Pages of mixers


def extractor_records(
    speed: Mapping[str, float], energy: Callable[[int], float] | None = None, device: str = "cpu"
) -> list[Measurement]:
    """Forward passes whose latency is so many times that of self-attention."""
    found: list[Measurement] = []
    for mixer, implementation in (
        ("self-attention", "sdpa"), ("she", "fft"), ("he", "fft"), ("we", "fft"), ("me", "fft"),
    ):  # fmt: skip
        factor = speed.get(mixer, 1.0)
        found += along_l(
            mixer, implementation, LENGTHS, lambda l, factor=factor: 1e-6 * factor * l,  # type: ignore[misc]  # bound now
            rounds=1, d=128, noise=0.002, energy=energy, device=device,
        )  # fmt: skip
    return found


def test_the_page_of_the_extractors_answers_from_the_records() -> None:
    text = printed(
        EXTRACTORS.page(extractor_records({"she": 0.5, "he": 2.0}), "runs.jsonl"), "markdown"
    )
    assert text.startswith("# Does the shorter critical path of the Extractors show")
    # she by FFT at these lengths takes more operations than attention (d times as many filters), at
    # half the time: the path shows, by what was invented here
    assert (
        "**she**: its critical path has fewer steps than that of self-attention at 3 of 3" in text
    )
    assert "faster at 3 (by 1.9" in text
    assert "**he**:" in text and "slower at 3 (by 1.9" in text
    assert "**we**:" in text and "no difference is shown at" in text
    assert "These are figures of a CPU" in text
    assert f"- energy (15 of 15 records): {NO_ENERGY}" in text
    assert "no width of 1024" in text  # what the plan for a CPU leaves out
    assert "points of the plan that no record is of" in text
    assert "Invented 1" in text  # the machine
    assert "--from runs.jsonl" in text


def test_only_a_faster_mixer_with_as_many_operations_shows_its_path() -> None:
    found = pairs(extractor_records({"she": 0.5, "me": 0.5}), "self-attention", ("she", "me"))
    she = next(p for p in found if p.second[0] == "she")
    me = next(p for p in found if p.second[0] == "me")
    # she: l^2 d^2 operations and more, me: l^2 d; attention has both l d^2 and l^2 d terms
    assert she.operations is not None and she.operations > 1 and shows(she) == "yes"
    assert me.operations is not None and me.operations < 1
    assert shows(me) == "faster, with fewer operations"
    assert shows(replace(she, time=Ratio(1.0, 0.9, 1.1))) == "no"
    assert shows(replace(she, steps=(5, 5))) == "its path is no shorter"
    assert shows(replace(she, time=Ratio(refused="why"))) == "not known"
    assert shows(replace(she, bound=True)) == "not known: bound by launches"
    # the paths by hand: adj: x W (mul, sum), times ext (mul), W_out (mul, sum)
    assert she.steps == (12, 5)


def test_a_path_that_grows_has_the_steps_of_its_length_and_an_unknown_one_is_no_verdict() -> None:
    records = [
        record(mixer, name, {"b": 1, "l": l, "d": 16} | more, 1e-3, noise=0.002)
        for mixer, name, more in ((BASE, "sdpa", {"n": 8}), ("gru", "explicit", {}))
        for l in (1, 8)
    ]
    found = pairs(records, "self-attention", ("gru",))
    # 8 for one token; each further one waits for 11 steps of the one before
    assert [p.steps for p in found] == [(12, 8), (12, 85)]
    assert [p.shorter for p in found] == [True, False]
    assert "fewer steps than that of self-attention at 1 of 2 points" in standing(found, BASE)
    unknown = replace(found[0], steps=None)
    assert shows(unknown) == "not known: paths not derived"
    assert "at 0 of 1 point, not derived at 1" in standing([unknown], BASE)


def test_where_launches_decide_no_path_shows() -> None:
    records = [
        structs.replace(r, readings={**r.readings, "launch_estimate": Reading(
            "launch_estimate", r.readings["latency"].value, "s", (), {"operations": 9}
        )})
        for r in extractor_records({"she": 0.5})
    ]  # fmt: skip
    assert all(p.bound for p in pairs(records, "self-attention", ("she",)))
    text = printed(EXTRACTORS.page(records, "runs.jsonl"), "markdown")
    assert "at 3 launches dominate and hide the effect of the path" in text
    assert "in brackets: bound by launches" in text


def test_a_busy_time_is_an_estimate_on_a_page() -> None:
    records = extractor_records({})
    at = next(k for k, r in enumerate(records) if r.mixer == "me")
    calm = records[at].readings["latency"]
    busy = structs.replace(calm, value=651e-6, details={**calm.details, "grade": "busy"})
    records[at] = structs.replace(records[at], readings={**records[at].readings, "latency": busy})
    text = printed(EXTRACTORS.page(records, "runs.jsonl"), "markdown")
    table = text.partition("Latency, hot: ")[2].partition("\n\n#")[0]
    assert table.count("≈") == table.count("(busy) |") == 1


def test_the_page_does_not_depend_on_the_order_of_the_records() -> None:
    records = extractor_records({"she": 0.5})
    backwards = [structs.replace(r) for r in reversed(records)]
    one, other = (printed(EXTRACTORS.page(each, "r.jsonl")) for each in (records, backwards))
    assert one == other


def test_a_page_with_energy_says_joules_a_token() -> None:
    records = extractor_records({}, energy=lambda l: 0.128 * l, device="cuda")
    text = printed(EXTRACTORS.page(records, "runs.jsonl"), "markdown")
    # 0.128 l J a call of l tokens
    table = text.partition("### Energy, gross, a token: forward pass, fp32, d = 128")[2]
    assert "| she | fft | 128 mJ | 128 mJ | 128 mJ |" in table
    one = next(r for r in records if r.mixer == "me")
    blind = structs.replace(one, reasons={"energy": "the sensor slept"}, readings={
        name: reading for name, reading in one.readings.items() if name != "energy"
    })  # fmt: skip
    others = [r for r in records if r is not one]
    text = printed(EXTRACTORS.page([*others, blind], "runs.jsonl"), "markdown")
    table = text.partition("### Energy, gross, a token: forward pass, fp32, d = 128")[2]
    assert "| me | fft | – [1] | 128 mJ | 128 mJ |" in table
    assert "[1] the sensor slept" in table
    assert "figures of a CPU" not in text
    assert "Energy, gross, a call: forward pass" in text


def test_failed_points_are_named_by_their_kind() -> None:
    records = extractor_records({})
    gone = Measurement(
        mixer="self-attention",
        implementation="explicit",
        form="direct",
        sizes={"b": 1, "l": 512, "d": 128, "n": 8},
        dtype="fp32",
        phase="training",
        device="cpu",
        reasons={"measurement": "20.00 GiB were asked for"},
        environment=ENVIRONMENT,
        failure={"kind": MEMORY},
    )
    text = printed(EXTRACTORS.page([*records, gone], "runs.jsonl"), "markdown")
    assert "- out of memory, 1 point: self-attention explicit (forward pass, fp32, " in text
    assert "20.00 GiB were asked for" in text
    (cells,) = settings([*records, gone])
    grid = over_lengths(cells, "latency")
    assert grid is not None and "out of memory" in grid.footnotes


def test_records_of_others_make_no_page() -> None:
    with pytest.raises(StudyError, match="holds no measurement of self-attention, she"):
        EXTRACTORS.page(along_l("linear-attention", "recurrent", LENGTHS, float), "runs.jsonl")
    mixed = [*extractor_records({}), *extractor_records({}, device="cuda")]
    with pytest.raises(StudyError, match=r"one kind of device.*: measure each kind"):
        EXTRACTORS.page(mixed, "runs.jsonl")


def additive_records(dot: float, memory: float) -> list[Measurement]:
    return [
        *along_l("additive-attention", "explicit", LENGTHS, lambda l: 1e-8 * l * l, rounds=1,
                 noise=0.002, memory=lambda l: 64.0 * l * l),
        *along_l("dot-product-attention", "explicit", LENGTHS, lambda l: dot * 1e-8 * l * l,
                 rounds=1, noise=0.002, memory=lambda l: memory * 64.0 * l * l),
    ]  # fmt: skip


def test_the_page_on_additive_attention_quotes_the_claim_and_counts_for_and_against_it() -> None:
    text = printed(ADDITIVE.page(additive_records(0.25, 0.5), "runs.jsonl"), "markdown")
    assert f"> {claim('vaswani.s3.2.1.additive').claimed}" in text
    assert "**dot-product-attention**: " in text and "at 3 of 3 points" in text
    assert "faster at 3 (by 3.9" in text
    assert "less memory at 3 (by 2.00 to 2.00 times), more at 0" in text
    assert "less energy" not in text and NO_ENERGY in text
    assert "with f = d" in text
    other = printed(ADDITIVE.page(additive_records(4.0, 1.0), "runs.jsonl"), "markdown")
    assert "faster at 0, slower at 3 (by" in other
    assert "less memory at 0, more at 0, and no difference is shown at 3" in other


def test_a_column_that_nobody_has_anything_for_is_left_out() -> None:
    def headings(records: list[Measurement]) -> set[str]:
        parts = EXTRACTORS.page(records, "runs.jsonl").parts()
        return {
            c.name for p in parts if isinstance(p, Table)
            if str(p.title).startswith("Beside") for c in p.columns
        }  # fmt: skip

    found = extractor_records({})
    paid = extractor_records({}, energy=lambda l: 0.128 * l, device="cuda")
    assert headings(paid) - headings(found) == {"energy"}


def test_one_who_was_not_measured_is_compared_nowhere() -> None:
    records = [r for r in extractor_records({}) if r.mixer != "we"]
    text = printed(EXTRACTORS.page(records, "runs.jsonl"), "markdown")
    assert "**we**: no point was measured at which this mixer and self-attention can be" in text


def test_equal_reasons_are_said_once() -> None:
    assert grouped({"a": ["x", "x"], "b": ["y", "x"]}) == ["a, b: x", "b: y"]


# The thesis


NAMES = ("terroa-confirmatory", "terroa-ssa", "terroa-vlsa-1", "terroa-vlsa-2", "terroa-vlsa-3")


def test_printed_ratios_are_read_from_the_published_table() -> None:
    # Table 7.4 of the thesis: 1:15:45, 1:32:55, 1:22:12, 1:50:38, 2:17:29
    seconds = (4545, 5575, 4932, 6638, 8249)
    found = {p.model: p for p in printed_times("Table 7.4")}
    assert set(found) == set(NAMES[1:])
    for name, time in zip(NAMES[1:], seconds[1:], strict=True):
        assert found[name].ratio == pytest.approx(time / seconds[0], abs=1e-4)
        assert found[name].low < found[name].ratio < found[name].high
        assert found[name].high - found[name].low == pytest.approx(1e-4)
    with pytest.raises(StudyError, match="Table 99"):
        printed_times("Table 99")


def trained(
    ratios: Mapping[str, float], rounds: int = 12, run_: str = "one", energy: bool = False
) -> list[Measurement]:
    """A run in which the networks take so many times the baseline's second, drifting together."""
    chance = random.Random(1)
    drift = [1 + 0.2 * chance.random() for _ in range(rounds)]
    found = []
    for name, factor in ratios.items():
        samples = tuple(factor * d * (1 + 0.001 * chance.gauss(0, 1)) for d in drift)
        details = latency_summary(samples) | {"comparison": run_, "candidate": name, "labels": []}
        details |= {"stop_rule": "rounds done"}
        readings = {
            "latency": Reading("latency", samples[0], "s", samples, details),
            "peak_memory": Reading("peak_memory", 1e6 * factor, "B", (1e6 * factor,)),
        }
        if energy:
            readings["energy"] = joules(254 * 2.0 * factor)
        made = Measurement(
            mixer=name,
            implementation="twin",
            form="",
            sizes={"b": 2, "l": 254, "d": 256},
            dtype="fp32",
            phase="training-step",
            device="cpu",
            readings=readings,
            reasons={} if energy else {"energy": NO_ENERGY},
            counts={"seed": 0, "network": {"steps": 2 * rounds}},
            environment=ENVIRONMENT,
        )
        found.append(made)
    return found


def row_of(text: str, network: str) -> list[str]:
    """The cells of a network's row of the first table that has one."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {network} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


AS_PRINTED = dict(zip(NAMES, (1.0, 1.2267, 1.0852, 1.4605, 1.8150), strict=True))


def test_the_page_says_that_printed_ratios_lie_inside() -> None:
    text = printed(THESIS.page(trained(AS_PRINTED), "runs.jsonl"), "markdown")
    assert "Of 4 printed ratios, 4 lie in the measured interval" in text
    assert "The measured medians stand in the order of the printed ones" in text
    assert "24 timed training steps of each network, in place of 40,000 iterations" in text
    assert "2 sequences in a batch, in place of 64" in text
    assert NO_ENERGY in text and "figures of a CPU" in text
    row = row_of(text, "terroa-vlsa-1")
    assert row[1].startswith("1.08") and row[3] == "yes" and row[4] == "1.0852"


def test_the_page_says_on_which_side_printed_ratios_lie() -> None:
    text = printed(
        THESIS.page(trained({**AS_PRINTED, "terroa-ssa": 1.5, "terroa-vlsa-3": 1.2}), "r.jsonl"),
        "markdown",
    )
    assert row_of(text, "terroa-ssa")[4:6] == ["1.2267", "below the interval"]
    assert row_of(text, "terroa-vlsa-3")[4:6] == ["1.8150", "above the interval"]
    assert "in the order terroa-vlsa-1, terroa-vlsa-3, terroa-vlsa-2, terroa-ssa" in text


def test_too_few_rounds_judge_nothing() -> None:
    text = printed(THESIS.page(trained(AS_PRINTED, rounds=3), "runs.jsonl"), "markdown")
    assert row_of(text, "terroa-ssa")[1] == "– [1]"
    assert "[1] 3 rounds are too few to show a difference" in text
    assert "No ratio was measured with an interval" in text


def test_the_page_is_of_the_last_run_and_needs_the_baseline() -> None:
    first = trained({**AS_PRINTED, "terroa-ssa": 3.0}, run_="one")
    last = trained(AS_PRINTED, run_="two")
    text = printed(THESIS.page(last[:-1], "runs.jsonl"), "markdown")
    assert f"{NAMES[-1]} was not measured" in text and row_of(text, NAMES[1])[3] == "yes"
    assert latest([*first, *last]) == {r.mixer: r for r in last}
    with pytest.raises(StudyError, match="lacks terroa-confirmatory"):
        THESIS.page(last[1:], "runs.jsonl")


def test_joules_a_token_of_a_network() -> None:
    text = printed(THESIS.page(trained(AS_PRINTED, energy=True), "runs.jsonl"), "markdown")
    # 254 * 2 J for 2 sequences of 254 tokens
    assert "| terroa-confirmatory | " in text and "| 508 J | 1 J |" in text


def test_derived_operations_are_the_networks_own() -> None:
    # a training step by the network's own count, under the convention that the claim names
    own = model("terroa-ssa").count("training-step", "strict,dense").at(b=2).total
    assert step_operations("terroa-ssa", ("strict", "dense"), 2) == own


class Clock:
    """A clock that only work moves."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        self.ns += 1
        return self.ns


def invented(ratios: Mapping[str, float], amount: Amount) -> tuple[Training, dict[str, int], Clock]:
    """Networks whose steps take so many milliseconds of an invented clock, and count themselves."""
    clock, calls = Clock(), dict.fromkeys(ratios, 0)

    def step(name: str) -> Callable[[], None]:
        def one() -> None:
            calls[name] += 1
            clock.ns += round(ratios[name] * 1e6)

        return one

    steps = {name: step(name) for name in ratios}
    sizes: dict[str, Mapping[str, int]] = {name: {"b": 2, "l": 254} for name in ratios}
    training = Training(
        list(ratios), amount, "cpu", timer=ClockTimer(clock), steps=steps, sizes=sizes,
        watch=ScriptedWatch(BlockObservation()),
    )  # fmt: skip
    return training, calls, clock


def test_rounds_of_networks_become_records(instead: Instead) -> None:
    instead(peak_memory=lambda *_, **__: Unavailable("no memory"))
    training, calls, _ = invented(AS_PRINTED, Amount(batch=2, steps=3, rounds=10))
    records = training.records()
    assert [r.mixer for r in records] == list(NAMES)
    for r in records:
        latency = r.readings["latency"]
        assert latency.value == pytest.approx(AS_PRINTED[r.mixer] * 1e-3, rel=1e-3)
        assert len(latency.samples) == 10
        assert r.reasons["peak_memory"] == "no memory" and r.reasons["energy"]
        assert r.counts["network"]["steps"] == 2 * 3 * 10
        assert r.readings["latency"].details["candidate"] == r.mixer
        # each visit is an untimed step and three timed ones, twice a round, after the warm-up
        assert calls[r.mixer] > 10 * 2 * 4
    text = printed(THESIS.page(records, "runs.jsonl"), "markdown")
    assert "Of 4 printed ratios, " in text


def test_a_visit_in_which_the_device_was_disturbed_is_taken_anew(
    instead: Instead,
) -> None:
    """Ten visits a round; the first visits of rounds 2 and 3 are hot."""
    instead(peak_memory=lambda *_, **__: Unavailable("no memory"))
    training, _, _ = invented(AS_PRINTED, Amount(batch=2, steps=1, rounds=7))
    hot = BlockObservation(slowed=("hardware thermal slowdown",))
    training.watch = ScriptedWatch(
        *[BlockObservation()] * 10, hot, *[BlockObservation()] * 9, hot, BlockObservation()
    )
    details = [record.readings["latency"].details for record in training.records()]
    assert {each["n"] for each in details} == {7}
    assert sum(each["left_out_blocks"] for each in details) == 2
    assert all(each["labels"] == [] for each in details)


def test_steps_that_waited_for_a_processor_are_graded_busy(
    instead: Instead,
) -> None:
    instead(peak_memory=lambda *_, **__: Unavailable("no memory"))
    training, _, _ = invented(AS_PRINTED, Amount(batch=2, steps=1, rounds=7))
    training.watch = ScriptedWatch(BlockObservation(waited_s=1.0))
    assert {grade_of(record.readings["latency"]) for record in training.records()} == {"busy"}


def test_networks_that_stay_disturbed_have_no_median(instead: Instead) -> None:
    instead(peak_memory=lambda *_, **__: Unavailable("no memory"))
    two = dict.fromkeys(NAMES[:2], 1.0)
    training, _, _ = invented(two, Amount(batch=2, steps=1, rounds=7))
    training.watch = ScriptedWatch(BlockObservation(slowed=("hardware thermal slowdown",)))
    records = training.records()
    assert len(records) == len(two)
    for each in records:
        assert "latency" not in each.readings
        assert "0 rounds were undisturbed, and 6 are needed" in each.reasons["latency"]
    assert latest(records) == {}


def test_networks_are_measured_within_the_limits_that_were_asked_for(
    tmp_path: Path, instead: Instead
) -> None:
    """With other limits than those of the file the networks are measured anew."""
    given: list[EnergyLimits] = []

    def metered(calls: object, *, limits: EnergyLimits, **_: object) -> Unavailable:
        given.append(limits)
        return Unavailable("not now")

    def made(names: object, amount: Amount, device: str, **more: Any) -> Training:
        training, _, _ = invented(AS_PRINTED, Amount(batch=2, steps=1, rounds=2))
        training.options = more["options"]
        return training

    instead(peak_memory=lambda *_, **__: Unavailable("no memory"))
    instead(energies_in_turn=metered, training_study=made)
    file = tmp_path / "runs.jsonl"
    typed: list[dict[str, Any]] = [
        {},
        {"energy_trials": 6},
        {"energy_trials": 4},
        {"energy_trials": 4},
    ]
    for options in (*typed, {"energy": False}):
        THESIS.measure(Manner("cpu", **options), file, lambda *_: None, lambda _: None)
    assert [limits.trials for limits in given] == [6, 4]  # six are its own, and four were there
    runs = [r.sweep.get("options", {}) for r in read(file)[0][:: len(AS_PRINTED)]]
    assert runs == [{}, {"energy_trials": 4}, {"energy": False}]


def test_a_run_of_other_rounds_or_another_device_does_not_answer(
    tmp_path: Path, instead: Instead
) -> None:
    def made(names: object, amount: Amount, device: str, **more: Any) -> Training:
        training = invented(AS_PRINTED, structs.replace(amount, batch=2, steps=1))[0]
        training.options = more["options"]
        return training

    instead(peak_memory=lambda *_, **__: Unavailable("no memory"), training_study=made)
    file = tmp_path / "runs.jsonl"
    runs = []
    for rounds in (1, 1, 2):
        manner = Manner("cpu", rounds, energy=False)
        THESIS.measure(manner, file, lambda *_: None, lambda _: None)
        runs.append(len(read(file)[0]) // len(AS_PRINTED))
    assert runs == [1, 1, 2]
    file.write_text(file.read_text().replace('"device": "cpu"', '"device": "cuda:0"'))
    THESIS.measure(manner, file, lambda *_: None, lambda _: None)
    assert len(read(file)[0]) == 3 * len(AS_PRINTED)


@pytest.mark.parametrize("kind", [RuntimeError, TypeError, IndexError])
def test_a_network_that_fails_is_said_and_the_others_go_on(
    kind: type[Exception], instead: Instead
) -> None:
    instead(peak_memory=lambda *_, **__: Unavailable("no memory"))
    training, _, _ = invented(AS_PRINTED, Amount(batch=2, steps=1, rounds=2))

    def broken() -> None:
        raise kind("CUDA out of memory. Tried to allocate 2 GiB")

    training.steps.pop("terroa-ssa")
    training.names = ["terroa-ssa"]
    instead(training_step=lambda *_: broken())
    records = training.records()
    assert "terroa-ssa" not in {r.mixer for r in records} and len(records) == 4
    assert "out of memory" in training.failed["terroa-ssa"]


def test_a_step_trains_the_network() -> None:
    step = Step("terroa-vlsa-1", 1, "cpu")
    before = [p.detach().clone() for p in step.network.parameters()]
    step()
    after = list(step.network.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(torch.isfinite(p).all() for p in after)
    assert step.given.shape == step.wanted.shape == (1, 254)


@pytest.mark.gpu
def test_networks_are_trained_in_turns_on_a_gpu(instead: Instead) -> None:
    instead(energies_in_turn=lambda *_, **__: Unavailable("not in a test"))
    found = Training(NAMES[:2], Amount(batch=2, steps=2, rounds=2), "cuda").records()
    assert [r.mixer for r in found] == list(NAMES[:2])
    for r in found:
        assert len(r.readings["latency"].samples) == 2 and r.readings["latency"].value > 0
        assert r.readings["peak_memory"].value > 0
        assert r.environment["device"] == "cuda"


# What is recorded


def test_pages_are_what_their_records_give(monkeypatch: pytest.MonkeyPatch) -> None:
    # tables/measured/DEVICE/STUDY.jsonl -> tables/generated/measured-DEVICE-STUDY.md, written in
    # the root of the checkout; what is not recorded has no page
    root = data_dir("measured").parent.parent
    monkeypatch.chdir(root)
    recorded = {
        (file.parent.name, file.stem): file
        for file in sorted(data_dir("measured").glob("*/*.jsonl"))
        if file.stem in studies()
    }
    pages = {
        page.stem: page.read_text(encoding="utf-8")
        for page in data_dir("generated").glob("measured-*.md")
    }
    assert set(pages) == {f"measured-{device}-{name}" for device, name in recorded}
    for (device, name), file in recorded.items():
        source = str(file.relative_to(root))
        assert pages[f"measured-{device}-{name}"] == printed(
            study(name).page(records_of([file])[0], source), "markdown"
        )


# The command


PLAN = """
question = "Does the mean cost less?"
base = "self-attention"
others = ["me"]
phases = ["training"]
[devices.cpu]
lengths = "8,16"
widths = "16"
dtypes = "fp32"
rounds = 1
seconds = 0.01
operations = 1_000_000_000
"""


@pytest.mark.parametrize(
    ("written", "instead", "said"),
    [
        (PLAN, "question = ", "is not a readable plan of a study: Invalid value"),
        ('base = "self-attention"', "", "object missing required field `base`"),
        ("rounds = 1", "", "devices.cpu: object missing required field `rounds`"),
        ("rounds = 1", "roundz = 1", "devices.cpu: object contains unknown field `roundz`"),
        ("phases", 'name = "x"\nphases', "object contains unknown field `name`"),
        ("rounds = 1", "rounds = 0", "devices.cpu.rounds: expected `int` >= 1"),
        ('others = ["me"]', "others = []", "others: expected `array` of length >= 1"),
        ('["me"]', '["mee"]', "others: unknown mixer 'mee'; did you mean 'me'?"),
        (
            '["me"]',
            '["self-attention"]',
            "others: self-attention is named in 'base' already: leave one out",
        ),
        ('["me"]', '["mine.py:x"]', "others: a data file names 'mine.py'"),
        (
            '["training"]',
            '["trainin"]',
            "unknown phase 'trainin': did you mean 'training'? expected",
        ),
        ("devices.cpu", "devices.tpu", "devices: 'tpu' is no kind of device: expected cpu or cuda"),
        ('"8,16"', '"8:4"', "devices.cpu.lengths: size l: '8:4' is no range"),
        ('widths = "16"', 'widths = "x"', "devices.cpu.widths: size d must be a positive integer"),
        ('"fp32"', '"fp33"', "devices.cpu.dtypes: unknown dtype 'fp33'"),
        (
            "phases",
            'as_wide = ["f"]\nphases',
            "as_wide: 'f' is no size of self-attention, me besides l and d, which the grid sets: "
            "expected one of n",
        ),
        (
            'base = "self-attention"\n',
            'base = "he"\nas_wide = ["f"]\n',
            "as_wide: 'f' is no size of he, me besides l and d, which the grid sets: "
            "these mixers have no other size",
        ),
        ("phases", 'claim = "x"\nphases', "claim: no claim has the id 'x'"),
    ],
)
def test_a_plan_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str, instead: str, said: str
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(PLAN.replace(written, instead))
    assert run(["study", str(file), "-o", str(tmp_path / "runs.jsonl")]) == 2
    shown = capsys.readouterr()
    assert f"{file}" in shown.err and said in shown.err and shown.err.count("\n") == 1


def test_a_plan_of_ones_own_is_measured_and_its_page_says_how(
    tmp_path: Path, instead: Instead, capsys: pytest.CaptureFixture[str]
) -> None:
    instead(processes=lambda *_: one_worker())
    file, runs = tmp_path / "mine.toml", tmp_path / "runs.jsonl"
    file.write_text(PLAN)
    assert run(["study", str(file), "--device", "cpu", "-o", str(runs), "--no-energy"]) == 0
    assert {(r.mixer, r.sizes["l"]) for r in read(runs)[0]} == {
        (mixer, l) for mixer in ("self-attention", "me") for l in (8, 16)
    }
    capsys.readouterr()
    assert run(["study", str(file), "--from", str(runs)]) == 0
    page = capsys.readouterr().out
    assert "# Does the mean cost less?" in page and "**me**: " in page
    assert f"costmodel study {file} --from {runs}" in page
    file.write_text(PLAN.replace('"me"', '"he"').replace('"self-attention"', '"she"'))
    assert run(["study", str(file), "--from", str(runs)]) == 2
    assert f"measure with costmodel study {file} -o" in capsys.readouterr().err


def test_the_command_lists_and_writes_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["study", "extractor", "--list"]) == 2
    assert "no study 'extractor': did you mean 'extractors'?" in capsys.readouterr().err
    assert run(["study", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in studies()) and "FILE.toml" in listed
    file, page = tmp_path / "runs.jsonl", tmp_path / "page.md"
    for each in additive_records(0.25, 0.5):
        append(file, each)
    typed = ["study", "additive-against-dot-product", "--from", str(file), "--page", str(page)]
    assert run(typed) == 0
    first, _, title, *_ = page.read_text().splitlines()
    assert first.startswith("<!-- costmodel study additive-against-dot-product --from")
    assert title.startswith("# Is dot-product attention faster")
    assert run(typed) == 2
    assert "exists already" in capsys.readouterr().err
    assert run([*typed, "--force"]) == 0


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["nobody"], "no study 'nobody'"),
        (["extractors"], "name one, -o FILE.jsonl"),
        (["extractors", "--from", "a.jsonl", "--rounds", "2"], "leave out --rounds"),
        (["thesis-training", "--device", "cpu", "-o", "x.jsonl", "--shard", "1/2"], "--shard"),
        (["thesis-training", "-o", "x.jsonl", "--energy-trials", "3"], "expected an even number"),
        (["extractors", "-o", "x.jsonl", "--energy-window", "1"], "expected 2 s or more"),
        (["extractors", "--from", "a.jsonl", "--no-energy"], "leave out --energy"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    typed: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["study", *typed]) == 2
    shown = capsys.readouterr()
    assert said in shown.err and shown.err.count("\n") == 1
