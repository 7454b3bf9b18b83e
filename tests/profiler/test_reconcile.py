"""Does every gap between theory and dispatch have a cause, and is a gap without one reported?"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace as replace_field
from torch import Tensor, nn

import costmodel as cm
from costmodel.oracle.execute import execute
from costmodel.report.document import Document, Page, Paragraph
from costmodel.report.formats import pieces
from profiler.commands.measuring import emptied
from profiler.mixers.extractor import MeToeplitz, SheDirect
from profiler.mixers.self_attention import ExplicitSelfAttention, FusedSelfAttention
from profiler.modules import Implementation, implementations
from profiler.modules.described import description_of, executed_classes
from profiler.reconcile.derived import recounts
from profiler.reconcile.ladder import ladders
from profiler.reconcile.levels import Ladder
from profiler.reconcile.report import document, summary_record
from profiler.records.reading import MeasureError, Reading
from profiler.run.in_record import candidate_in_record
from profiler.run.measure import measure
from profiler.run.request import Request
from tests.implementations import every, label
from tests.ladders import reconciled
from tests.printing import printed
from tests.recorded import ATTENTION, latency
from tests.small import complete, distinct, without_inference
from tests.stand_ins import Instead

SIZES = (
    {"b": 1, "l": 1, "d": 1, "n": 1},
    {"b": 3, "l": 7, "d": 6, "n": 2},
)
ALL = every()
CASES = [
    (described, phase)
    for described in ALL
    for phase in ("training", *(["inference"] if described.step_form else []))
]

each_case = pytest.mark.parametrize(
    ("chosen", "phase"), CASES, ids=[f"{label(it)}-{phase}" for it, phase in CASES]
)


@cache
def swept(implementation: Implementation, phase: str, place: int) -> Ladder:
    """The ladder of an implementation at one of SIZES."""
    return reconciled(implementation.mixer, implementation, SIZES[place], phase)


def causes_lead_to(rung: str, result: Ladder) -> None:
    """Rung 1 and the causes of a ladder add up to a rung."""
    for name in {*result.rungs["1"], *result.rungs[rung]}:
        added = sum(cause.counts.get(name, 0) for cause in result.causes)
        assert result.rungs["1"].get(name, 0) + added == result.rungs[rung].get(name, 0)


@pytest.mark.grid(24)
@each_case
@pytest.mark.parametrize("place", range(len(SIZES)), ids=lambda place: str(SIZES[place]))
def test_reconcile_explains_every_operation(chosen: Implementation, phase: str, place: int) -> None:
    result = swept(chosen, phase, place)
    assert result.unexplained == {"1-2": {}, "2-3": {}}
    assert result.uncounted == ()
    assert [(p.name, p.printed) for p in result.peers] == [
        (p.name, p.predicted) for p in result.peers
    ]
    assert result.explained
    causes_lead_to("2", result)
    for peer in result.peers:
        assert sum(result.rungs["2"].values()) + sum(n for _, n in peer.causes) == peer.predicted


@pytest.mark.parametrize("chosen", [it for it in ALL if it.form == "fft"], ids=label)
def test_a_transform_of_a_length_that_is_a_power_of_two(chosen: Implementation) -> None:
    assert reconciled(chosen.mixer, chosen, {"b": 1, "l": 16, "d": 8, "n": 4}).explained


ONE_CUDA_KERNEL = {
    "aten::_cudnn_rnn",
    "aten::_thnn_fused_lstm_cell",
    "aten::_thnn_fused_gru_cell",
}
"""PyTorch's recurrent layers on a GPU: what cuDNN computes inside has no counting rule."""


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:RNN module weights")  # cuDNN packs them anew in every call
@each_case
def test_nothing_is_unexplained_on_a_gpu(chosen: Implementation, phase: str) -> None:
    """Other kernels carry the equations there, and FlopCounterMode knows fused attention."""
    sizes = {"b": 2, "l": 64, "d": 64, "n": 4}
    result = reconciled(chosen.mixer, chosen, sizes, phase, device="cuda")
    if "recurrent-layer" in (chosen.kernels or {}).values() and result.uncounted:
        assert set(result.uncounted) <= ONE_CUDA_KERNEL
        assert "no counting rule for" in result.reasons["3"] and not result.explained
        return
    assert result.explained, (result.unexplained, result.uncounted, result.peers)


@pytest.mark.parametrize(
    ("mixer", "unread"),
    [
        ("mamba", {"mul": -4}),  # log_A.grad = A.grad A, of 2 channels with 2 states each
        ("rg-lru", {"mul": -12, "add": -6, "div": -6, "exp": -6}),
    ],
)
def test_gradients_that_nothing_reads_are_a_cause(mixer: str, unread: dict[str, int]) -> None:
    """At l = 1 no row reads a decay, and the equations count with sums of no term: a loop hands
    decays no gradient, a scan computes with zeros in the gradient's place."""
    for name in ("recurrent", "scan"):
        sizes = {"b": 2, "l": 1, "d": 6, "n": 2}
        result = reconciled(mixer, implementations(mixer)[name], sizes, "training-step")
        assert result.explained, result.unexplained
        causes = {cause.name: cause.counts for cause in result.causes}
        assert causes["unread"] == unread
        padded = causes.get("zeros", {})
        assert (name == "scan") == all(padded.get(x, 0) + n >= 0 for x, n in unread.items())


def test_gradients_of_drawn_rows_that_are_none_are_zeros() -> None:
    """At l = 1 every row of BigBird is global: the rows drawn for others are a selection of none,
    whose gradients (zeros, of keys and of values) are added to those of the global rows."""
    explicit = implementations("bigbird")["explicit"]
    result = reconciled("bigbird", explicit, {"b": 2, "l": 1, "d": 6, "n": 2}, "training-step")
    assert result.explained, result.unexplained


WHOLE = [chosen for chosen in ALL if not chosen.step_form]


@pytest.mark.parametrize("chosen", WHOLE, ids=label)
def test_what_mixes_no_new_token_says_why(chosen: Implementation) -> None:
    """A ladder of one token is refused before anything is built, in the equations' own words."""
    equations = cm.mixer(chosen.mixer)
    why = without_inference(equations, chosen.form)
    assert why is not None
    with pytest.raises(ValueError, match=" cannot compute one new token: ") as refused:
        description_of(equations, chosen, "inference")
    reason = str(refused.value).partition(" cannot compute one new token: ")[2]
    assert reason and reason in why
    sizes = complete(equations, {"b": 1, "l": 4, "d": 4, "n": 2, "t": 4})
    with pytest.raises(MeasureError, match=re.escape(reason)):
        measure(Request(equations, chosen, sizes, "inference"))


DESCRIBED = [(it, phase) for it, phase in CASES if (it.mixer, it.form) in distinct()]


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("chosen", "phase"), DESCRIBED, ids=[f"{label(it)}-{phase}" for it, phase in DESCRIBED]
)
def test_rung_2_is_what_executing_the_description_does(chosen: Implementation, phase: str) -> None:
    """The oracle runs the form under the rewrites, entry by entry, and shares no code with
    counting."""
    equations = cm.mixer(chosen.mixer)
    does = description_of(equations, chosen, phase)
    for wanted in ({"l": 1, "d": 1, "n": 1}, {"l": 5, "d": 6, "n": 3}):
        sizes = complete(equations, wanted)
        sizes = {k: v for k, v in sizes.items() if k in ("l", *equations.letters)}
        ahead = sizes["l"] + 2 if phase == "inference" else None
        run = execute(equations.forms[does.form], sizes, rewrites=does.rewrites, length=ahead)
        if phase == "training":
            found = [(sizes, Counter(run.counts()) + Counter(run.once()))]
        else:
            tokens = range(1, sizes["l"] + 1)
            found = [({**sizes, "t": t}, Counter(run.counts_inference(t))) for t in tokens]
        for at, done in found:
            assert +Counter(executed_classes(equations, does, phase, at)) == done, at


@settings(max_examples=15)
@given(l=st.integers(1, 20), h=st.integers(1, 5), n=st.integers(1, 5), b=st.integers(1, 3))
def test_explicit_attention_reconciles_at_any_size(l: int, h: int, n: int, b: int) -> None:
    sizes = {"b": b, "l": l, "d": n * h, "n": n}
    explicit = implementations("self-attention")["explicit"]
    assert reconciled("self-attention", explicit, sizes).explained


def test_the_causal_gap_in_numbers() -> None:
    """Explicit attention at n = 32 computes d l^2 - d l masked products."""
    d = l = 128
    sizes = {"b": 1, "l": l, "d": d, "n": 32}
    result = reconciled("self-attention", implementations("self-attention")["explicit"], sizes)
    causes = {cause.name: cause.counts for cause in result.causes}
    assert causes["dense"]["mul"] == d * l**2 - d * l
    assert result.rungs["3"]["mul"] - result.rungs["1"]["mul"] == d * l**2 - d * l
    assert set(causes["safe-softmax"]) == {"add", "compare"}
    assert result.explained
    printed = {peer.name: peer.printed for peer in result.peers}
    assert printed == {"torch": 25_165_824, "fvcore": 12_582_912}


def test_she_as_a_convolution_as_peers_print_it() -> None:
    sizes = {"b": 1, "l": 128, "d": 128}
    result = reconciled("she", implementations("she")["conv"], sizes)
    printed = {peer.name: peer.printed for peer in result.peers}
    assert printed == {"torch": 545_259_520, "fvcore": 272_629_760}
    assert result.explained


class ExtraAdd(MeToeplitz):
    """One more addition per output entry."""

    def mix(self, x: Tensor) -> Tensor:
        return super().mix(x) + 1.0


class DoubledExp(ExplicitSelfAttention):
    """Every score is exponentiated once more than the softmax does."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        torch.exp(q @ k.transpose(-1, -2))
        return super().attend(q, k, v, causal=causal)


class WithoutRule(MeToeplitz):
    """Runs an operation that has no counting rule, beside the work described."""

    def mix(self, x: Tensor) -> Tensor:
        torch.frexp(x)
        return super().mix(x)


class DroppedMask(FusedSelfAttention):
    """Attends to later tokens as well."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class Upcast(SheDirect):
    """Computes the gate in another precision."""

    def mix(self, x: Tensor) -> Tensor:
        return super().mix(x.double().float())


def doctored(mixer: str, name: str, module: type[nn.Module], phase: str = "training") -> Ladder:
    described = replace(implementations(mixer)[name], made=module)
    return reconciled(mixer, described, {"b": 2, "l": 5, "d": 6, "n": 2}, phase)


def test_an_extra_addition_is_unexplained() -> None:
    assert doctored("me", "toeplitz", ExtraAdd).unexplained["2-3"] == {"add": 2 * 5 * 6}


def test_a_doubled_exponential_is_unexplained() -> None:
    """Its scores too: b n l l products of width h = 3."""
    scores = 2 * 2 * 5 * 5
    found = doctored("self-attention", "explicit", DoubledExp).unexplained["2-3"]
    assert found == {"exp": scores, "mul": scores * 3, "add": scores * 2}


def test_what_has_no_counting_rule_leaves_the_ladder_unexplained() -> None:
    """No class shows a gap, because the operation could not be counted: it must not pass."""
    found = doctored("me", "toeplitz", WithoutRule)
    assert found.unexplained["2-3"] == {}
    assert found.uncounted == ("aten::frexp",)
    assert "no counting rule for aten::frexp" in found.reasons["3"]
    assert not found.explained
    assert "no counting rule for aten::frexp" in found.findings


def test_a_dropped_mask_is_unexplained() -> None:
    pairs = 2 * 2 * (5 * 5 - 5 * 6 // 2)
    found = doctored("self-attention", "sdpa", DroppedMask).unexplained["2-3"]
    assert found["exp"] == pairs
    assert found["mul"] == pairs * (3 + 3 + 1)


def test_the_gradients_of_a_dropped_mask_are_unexplained() -> None:
    """Scores and their scale, dV, dP, dQ and dK are 3 products a pair each; a weight's gradient is
    one more, and its value an exponential."""
    pairs = 2 * 2 * (5 * 5 - 5 * 6 // 2)
    found = doctored("self-attention", "sdpa", DroppedMask, "backward").unexplained["2-3"]
    assert found["exp"] == pairs
    assert found["mul"] == pairs * (3 + 1 + 3 + 3 + 1 + 3 + 3)


@pytest.mark.parametrize(
    ("phase", "of"), [("training", ""), ("training-step", " of the forward pass")]
)
def test_a_rewrite_that_the_description_lacks_is_named(phase: str, of: str) -> None:
    chosen = implementations("self-attention")["explicit"]
    lacking = replace(chosen, rewrites=tuple(r for r in chosen.rewrites if r != "safe-softmax"))
    found = reconciled(chosen.mixer, lacking, SIZES[1], phase).findings
    said = f"; rewrites={chosen.rewrites} explains the whole difference{of}"
    assert found[0].startswith("unexplained: ") and found[0].endswith(said), found


def test_an_upcast_is_unexplained() -> None:
    assert doctored("she", "direct", Upcast).unexplained["2-3"] == {"convert": 2 * 2 * 5 * 6}


def test_rungs_that_were_not_measured_say_what_they_need() -> None:
    result = reconciled("me", implementations("me")["fft"], SIZES[1])
    assert result.rungs["4"] is None
    assert result.reasons["4"] == "the record holds no hardware counters"
    assert result.reasons["1-2"].startswith("each cause is the difference between two counts")
    assert result.rungs["5"]["latency_s"] is None
    assert "latency was not measured" in result.reasons["latency_s"]


def test_a_missing_time_takes_nothing_with_it() -> None:
    readings = {
        "peak_memory": Reading("peak_memory", 4096, "B", (4096.0,)),
        "energy": Reading("energy", 0.5, "J", (0.5,)),
    }
    result = reconciled("me", implementations("me")["toeplitz"], SIZES[1], readings=readings)
    line = summary_record(result)
    assert (line["peak_memory_bytes"], line["energy_J"], line["latency_s"]) == (4096, 0.5, None)
    assert line["reasons"]["latency_s"] == "latency was not measured"
    assert "peak_memory_bytes" not in line["reasons"]
    assert result.reasons["operations_per_s"] == "latency was not measured"


def test_a_busy_time_is_printed_as_an_estimate_and_gives_no_rates() -> None:
    busy = latency(0.9e-3, 1e-3, 2e-3, grade="busy", labels=["preempted", "one thread"])
    result = reconciled(
        "me", implementations("me")["toeplitz"], SIZES[1], readings={"latency": busy}
    )
    assert result.rungs["5"]["operations_per_s"] is None
    text = printed(document([result]), "rich")
    assert "≈ 1 ms (busy, one thread)" in text and "95" not in text
    assert "time not comparable" in text and "one thread: timed on one thread" in text


@pytest.mark.parametrize(("floor", "verdict"), [(0.2, "comparable"), (0.9, "not comparable")])
def test_rates_are_given_only_where_the_device_is_busy(floor: float, verdict: str) -> None:
    readings = {
        "latency": latency(0.9, 1.0, 1.1),
        "launch_estimate": Reading("launch_estimate", floor, "s", details={"operations": 3}),
    }
    result = reconciled("me", implementations("me")["toeplitz"], SIZES[1], readings=readings)
    cost = result.rungs["5"]
    assert cost["verdict"].startswith(verdict)
    rate = sum(result.rungs["3"].values()) if verdict == "comparable" else None
    assert cost["operations_per_s"] == rate


@pytest.mark.parametrize(
    ("samples", "rule", "words"),
    [
        ((1.0, 1.5, 2.1), "median settled",
         "the samples spread from 1 s to 2.1 s (3 samples, stopped once the median had settled)"),
        ((1.0, 1.1, 1.2), "time cap",
         "the median is not known to 5% (3 samples, stopped by the time cap)"),
        ((1.0, 1.5, 2.1), "stable noise",
         "the samples spread from 1 s to 2.1 s (3 samples, stopped once the noise no longer "
         "changed)"),
    ],
)  # fmt: skip
def test_a_latency_that_something_else_disturbed_gives_no_rates(
    samples: tuple[float, ...], rule: str, words: str
) -> None:
    readings = {"latency": latency(*samples, stop_rule=rule)}
    result = reconciled("me", implementations("me")["toeplitz"], SIZES[1], readings=readings)
    cost = result.rungs["5"]
    assert cost["verdict"].startswith(f"not comparable: {words}, as if other programs")
    assert "OMP_NUM_THREADS=1" in cost["verdict"]
    for rate in ("operations_per_s", "bytes_per_s", "J_per_operation"):
        assert cost[rate] is None and result.reasons[rate] == cost["verdict"]
    assert (cost["latency_p20_s"], cost["latency_p80_s"]) == (samples[0], samples[-1])
    assert (cost["latency_samples"], cost["latency_stop_rule"]) == (3, rule)


WAITING = "launch-bound, the device waits for the host most of the time"
VARIED = "the samples spread from 1 s to 2.1 s (3 samples, stopped by the time cap),"


@pytest.mark.parametrize(
    ("bound", "longest", "words"),
    [
        (True, 0.5, f"{WAITING}; compare the replays"),
        (True, 0.7, WAITING),
        (False, 0.5, f"{VARIED} while the replays of its CUDA graph are steady, as the host's "
         "launches vary; compare the replays"),
        (False, 0.7, f"{VARIED} as if other programs used the machine; a quieter machine or a "
         "longer --seconds may help"),
    ],
)  # fmt: skip
def test_launches_of_the_host_are_the_reason_where_replays_are_steady(
    bound: bool, longest: float, words: str
) -> None:
    timed = latency(1.0, 1.5, 2.1, stop_rule="time cap", launch_bound=bound)
    replayed = replace_field(latency(0.3, 0.5, longest), name="latency_graph")
    record = replace_field(
        ATTENTION, device="cuda", readings={"latency": timed, "latency_graph": replayed}
    )
    (found,), _ = ladders([record])
    assert found.rungs["5"]["verdict"] == f"not comparable: {words}"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.06, 1.14, "comparable"), (1.04, 1.14, "not comparable"), (1.06, 1.16, "not comparable"),
     (None, None, "not comparable")],
)  # fmt: skip
def test_a_median_that_is_known_gives_rates_whatever_ended_the_sampling(
    low: float | None, high: float | None, verdict: str
) -> None:
    timed = latency(1.0, 1.1, 1.2, stop_rule="time cap", ci_low=low, ci_high=high)
    described = implementations("me")["toeplitz"]
    result = reconciled("me", described, SIZES[1], readings={"latency": timed})
    assert result.rungs["5"]["verdict"].startswith(verdict)


def test_what_is_counted_as_documented_says_so() -> None:
    said = {
        "sdpa": "nominal for fused attention: counted by documented arithmetic, not observed",
        "explicit": None,
    }
    for name, words in said.items():
        described = implementations("self-attention")[name]
        assert reconciled("self-attention", described, SIZES[1]).reasons.get("3") == words
    fft = reconciled("we", implementations("we")["fft"], SIZES[1])
    assert fft.reasons["3"].startswith("nominal for Fourier transforms: ")


@pytest.mark.parametrize(("phase", "option"), [("training", "kernels="),
                                               ("inference", "step_kernels=")])  # fmt: skip
def test_an_equation_without_a_kernel_class_has_no_prediction(phase: str, option: str) -> None:
    full = implementations("self-attention")["explicit"]
    kernels = {k: v for k, v in (full.kernels or {}).items() if k not in ("Z", "R")}
    for given_kernels, unnamed in ((kernels, "Z, R"), (None, "Q, K, V, Z, R, y")):
        part = replace(full, kernels=given_kernels, step_kernels=given_kernels)
        result = reconciled("self-attention", part, SIZES[1], phase)
        for peer in result.peers:
            assert peer.printed is not None
            assert peer.predicted is None and peer.unexplained is None
            assert (
                peer.reasons["predicted"]
                == peer.reasons["unexplained"]
                == (
                    f"no kernel class for {unnamed}: name them in {option} of the module's "
                    f"@implementation"
                )
            )
        assert result.explained


def test_a_ladder_says_what_has_no_cause() -> None:
    holds = reconciled("me", implementations("me")["fft"], SIZES[1])
    assert (holds.findings, holds.unexplained_operations) == ([], 0)
    bare = doctored("me", "toeplitz", ExtraAdd)
    added = bare.unexplained["2-3"]["add"]
    assert bare.unexplained_operations == added
    assert bare.findings == [f"unexplained: +{added} add"]


def test_only_what_is_unexplained_is_shown_below_the_summary() -> None:
    holds = reconciled("me", implementations("me")["fft"], SIZES[1])
    bare = doctored("me", "toeplitz", ExtraAdd)
    summary, shown = printed(document([holds, bare])).split("\n\nOperations: ")
    assert "fft" in summary and "toeplitz" in summary
    assert shown.startswith("me toeplitz, forward pass") and "What other counters" not in shown
    assert printed(document([holds])).count("Operations: ") == 0
    assert printed(document([holds, bare], full=True)).count("Operations: ") == 2


# Gradients

SPREAD = (
    "self-attention", "she", "he", "we", "me", "recurrent", "lstm", "gru", "linear-attention",
    "ssa", "lsa", "vlsa-trained", "convolution", "convolution-same", "restricted-attention",
    "additive-attention", "dot-product-attention", "simple-resl", "simple-causal", "fastformer",
    "lstm+two-biases", "gru+two-biases", "gru+reset-before", "self-attention+cross",
)  # fmt: skip
TRAINED = [
    (described, "backward" if place else "training-step")
    for mixer in SPREAD
    for place, described in enumerate(implementations(mixer).values())
]
each_trained = pytest.mark.parametrize(
    ("chosen", "phase"), TRAINED, ids=[f"{label(it)}-{phase}" for it, phase in TRAINED]
)


@pytest.mark.grid(6)
@each_trained
def test_gradients_are_explained(chosen: Implementation, phase: str) -> None:
    for place in range(len(SIZES)):
        result = swept(chosen, phase, place)
        assert result.uncounted == () and result.unexplained == {"1-2": {}, "2-3": {}}
        assert result.explained
        causes_lead_to("3", result)


def causes(result: Ladder) -> dict[str, dict[str, int]]:
    """What every switch adds, by name."""
    return {cause.name: cause.counts for cause in result.causes}


def test_a_training_step_is_both_passes() -> None:
    described = implementations("she")["conv"]
    one, two, both = (
        swept(described, phase, 1).rungs["3"] for phase in ("training", "backward", "training-step")
    )
    assert both == {name: n + two.get(name, 0) for name, n in one.items()}


def test_the_gradient_of_a_softmax_comes_from_its_result() -> None:
    """b n l^2 quotients u = g / sum are not taken."""
    found = causes(swept(implementations("self-attention")["explicit"], "backward", 1))
    assert found["softmax-gradient"]["div"] == -3 * 2 * 7 * 7


def test_gradients_of_parts_are_added_up_with_zeros() -> None:
    """SHE lag by lag: the gradient of W_ext is the sum of l whole arrays with one lag each, that of
    x of l whole sequences, of which the later lags reach l - lag rows."""
    b, l, d = 3, 7, 6
    found = causes(swept(implementations("she")["direct"], "backward", 1))
    assert found == {"zeros": {"add": (l - 1) * l * d * d + b * d * l * (l - 1) // 2}}


def test_zeros_around_a_sequence_have_gradients() -> None:
    """HE as a convolution: b d l(l-1)/2 products of taps with what lies before the first row."""
    found = causes(swept(implementations("he")["toeplitz"], "backward", 1))
    assert found["padded-rows"]["mul"] == 3 * 6 * 7 * 6 // 2


def test_a_gate_that_the_first_row_lacks() -> None:
    """No gradient that is zero goes through the sigmoid of the forget gate and both maps there."""
    found = causes(swept(implementations("lstm")["explicit"], "backward", 1))
    assert {*found["zeros"]} == {"add"}


def test_peers_of_gradients_are_printed_and_not_predicted() -> None:
    result = swept(implementations("self-attention")["explicit"], "backward", 1)
    torch_, fvcore = result.peers
    assert torch_.printed is not None and torch_.printed > 0
    for peer in (torch_, fvcore):
        assert peer.predicted is None and peer.unexplained is None
        assert peer.reasons["predicted"] == (
            f"the count of {peer.name} for a backward pass is only measured, not derived"
        )
    assert fvcore.printed is None
    assert result.explained


class Squared(MeToeplitz):
    """One more product per output entry, and two for its gradient."""

    def mix(self, x: Tensor) -> Tensor:
        y = super().mix(x)
        return y * y


class Sliced(MeToeplitz):
    """Two rows are added to themselves by hand: their gradient is added up."""

    def mix(self, x: Tensor) -> Tensor:
        y = super().mix(x)
        return y + torch.exp(y)


@pytest.mark.parametrize(("module", "left"), [
    (Squared, {"mul": 2, "add": 1}),  # 2 y as two products of the gradient, added up
    (Sliced, {"mul": 1, "add": 1}),  # g exp(y), and the sum with g itself
])  # fmt: skip
def test_an_operation_put_in_surfaces_in_its_gradient(
    module: type[nn.Module], left: dict[str, int]
) -> None:
    described = replace(implementations("me")["toeplitz"], made=module)
    sizes = {"b": 2, "l": 5, "d": 6}
    found = reconciled("me", described, sizes, "backward")
    assert found.unexplained["2-3"] == {name: n * 2 * 5 * 6 for name, n in left.items()}
    assert not found.explained


def test_what_one_new_token_holds_is_its_state() -> None:
    token = reconciled("me", implementations("me")["toeplitz"], SIZES[1], "inference")
    assert "the memory of one new token is the state" in token.memory["peak"].reason


def test_the_equations_are_asked_once_for_all_rounds_of_a_point(
    instead: Instead,
) -> None:
    """And once for all sizes: the equations are derived in the sizes. The implementation that the
    records name is looked up once."""
    ladders([ATTENTION])
    asked: list[object] = []
    named: list[object] = []

    def looking_up(*args: Any) -> Any:
        named.append(args)
        return candidate_in_record(*args)

    instead(candidate_in_record=looking_up)

    def counting(*args: Any) -> Any:
        asked.append(args)
        return recounts(*args)

    instead(recounts=counting, executed_counts=None)
    other = {**ATTENTION.sizes, "l": ATTENTION.sizes["l"] + 3}
    rounds = [replace_field(ATTENTION, sizes=sizes) for sizes in (ATTENTION.sizes, other) * 3]
    made, problems = ladders(rounds)
    assert not problems and len(asked) <= 2 and len(named) == 1
    assert [x.sizes["l"] for x in made] == [sizes["l"] for sizes in (ATTENTION.sizes, other) * 3]
    assert made[0].rungs["1"] == made[2].rungs["1"] != made[1].rungs["1"]


def test_a_record_is_let_go_once_its_ladder_is_made() -> None:
    """And a part of a document once it is written: the last part here cannot be written."""
    records = [ATTENTION, replace_field(ATTENTION, id="second")]
    ids = [(record.id, len(records)) for record in emptied(records)]
    assert ids == [(ATTENTION.id, 1), ("second", 0)]
    broken: Any = None
    unfinished = Document(lambda: [Paragraph(("one",)), Paragraph(("two",)), broken])
    given = pieces(unfinished, "rich", Page())
    assert "".join(islice(given, 4)) == "one\n\ntwo"
