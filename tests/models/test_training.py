"""Are the backward pass and the kept activations of a network the sums over its parts and joins?"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cli
from costmodel import Unanswered, networks
from costmodel.errors import ModelError
from costmodel.networks import network, part_costs
from costmodel.networks.answers import PartAnswers, answers_of
from costmodel.networks.assembly import Assembly
from costmodel.networks.choices import Choices
from costmodel.networks.live_set import _Simulation, largest_live_set
from costmodel.networks.memory_budget import MemoryBudget, MemoryOptions
from costmodel.networks.network import Network
from costmodel.networks.part_costs import part_sizes
from costmodel.networks.schedule import Wire, repetition, schedule
from costmodel.networks.training import Graph, _kept_entries, graph_of
from costmodel.oracle.execute import Execution, random_arrays, run
from costmodel.questions.activations import Activations, activations_of
from costmodel.questions.question import Missing
from costmodel.questions.subject import system_of
from costmodel.symbolic.piecewise import Exact
from tests.models.test_network import NETWORKS
from tests.stand_ins import Instead

SIZES = {"L": 2, "d": 6, "n": 2, "l": 5, "u": 7, "f": 4, "z": 3, "e": 3, "K": 3, "V": 4, "v": 2}


def kinds() -> dict[str, Network]:
    """One network of each kind that a preset has, at small sizes, and those of this folder."""
    words = {"name", "title", "source", "place", "remark", "assumed", "sizes", "widths", "dropout"}
    found: dict[str, Network] = {}
    for name in reversed(networks.names()):
        choices = networks.preset(name)
        heads = (re.sub(r"\{n=\d+,h=\d+\}", "{n=2,h=4}", mixer) for mixer in choices.mixers)
        choices = replace(choices, mixers=tuple(heads))
        shown = repr(sorted((k, v) for k, v in vars(choices).items() if k not in words))
        small = replace(
            choices,
            sizes={"L": SIZES["L"]} if networks.description(choices).patterned else {},
            widths={},
        )
        found[shown] = network(small)
    named = {net.name: net for net in found.values()}
    return named | {name: network(choices) for name, choices in NETWORKS.items()}


KINDS = kinds()


def kept_of(graph: Graph, recompute: str = "none") -> Activations:
    """What a network keeps for its gradients."""
    return answers_of(graph.network, "backward", graph.counting, recompute).of(activations_of)


def total(part: PartAnswers, at: dict[str, int]) -> int:
    """All operations of a part."""
    assert not isinstance(part.total, Missing)
    return part.total.at(at)


every_kind = pytest.mark.parametrize("net", KINDS.values(), ids=KINDS)


def executed(graph: Graph, use: Any, sizes: dict[str, int]) -> Execution:
    """The gradients of a part, run entry by entry, its forward pass being ready."""
    system, own = graph.gradients(use).system, part_sizes(use, sizes)
    given = random_arrays(system.mixer.forms[system.form], own)
    given = {name: abs(values) for name, values in given.items()}
    return run(system, own, arrays=given, ready=system.forward.equations)


def sizes_of(net: Assembly) -> dict[str, int]:
    return {**SIZES, **({"L": net.layers} if net.layers else {})}


def by_hand(net: Network, at: dict[str, int]) -> int:
    """The additions that join gradients, by the choices, for one sequence.

    Each sublayer's input is read by the residual sum besides (or by the norm, and the residual
    sum); the encoder's output by every layer of the decoder; rows of look-ups are added to their
    tables; a table that two products share has two gradients.
    """
    c, L, d = net.choices, at["L"], at["d"]
    stacks = [(at["e"], 1 + c.ffn), (at["l"], 2 + c.ffn)]
    if c.kind != "encoder-decoder":
        stacks = [(at["l"], 1 + c.ffn)] * c.towers
    added = sum(L * sublayers * rows * d for rows, sublayers in stacks)
    if c.kind == "encoder-decoder":
        added += (L - 1) * at["e"] * d
    looked_up = c.embedding == "look-up"
    added += sum(rows * d * (looked_up + bool(c.segments)) for rows, _ in stacks)
    if not looked_up:
        tables = 2 if c.kind == "encoder-decoder" and c.shared_vocabulary else 1
        added += at["u"] * d * (tables + c.tied - 1)
    if c.towers > 1:
        # What both towers' runs share: all but what is looked up, and but the head's part.
        shared = {use.name for use in net.uses if use.runs != use.copies and not use.regularises}
        parameters = net.parameters().arrays
        dense = sum(
            n.at(at) for name, n in parameters.items()
            if name in shared and name not in ("embedding" if looked_up else "", "segments")
        )  # fmt: skip
        added += (c.towers - 1) * dense
    return added


@pytest.mark.grid(3)
@every_kind
def test_a_backward_pass_costs_what_its_execution_costs(net: Network) -> None:
    at = sizes_of(net)
    graph = graph_of(net, part_costs.counting("strict"))
    expected: Counter[str] = Counter(add=by_hand(net, at))
    for use in net.uses:
        if use.regularises:
            continue
        done = executed(graph, use, at)
        for tally, times in ((done.counts(), use.runs), (done.once(), use.copies)):
            for name, number in tally.items():
                expected[name] += number * times.at(at)
    counts = net.count("backward").at(**at)
    found = Counter({c: n for c, n in counts.by_class().items() if n})
    assert counts.once is not None
    found.update({c: n for c, n in counts.once.by_class().items() if n})
    assert found == +expected


@pytest.mark.grid(3)
@every_kind
def test_what_is_kept_is_what_the_execution_reads(net: Network) -> None:
    """The distinct entries that gradients read, an array between two parts taken once."""
    at = sizes_of(net)
    graph = graph_of(net, part_costs.counting("strict"))
    runs = schedule(net, at["L"])
    known = {use: executed(graph, use, at).kept() for use in {one.use for one in runs}}
    entries: set[Any] = set()
    for number, one in enumerate(runs):
        mixer = one.use.mixer
        for array, where in known[one.use]:
            wires = one.reads.get(array.name, ())
            if array.name == mixer.role("output").name:
                entries.add((id(one.writes), where))
            elif len(wires) == 1 and wires[0].first:
                per = where[1] - 1, part_sizes(one.use, at)["d"] // len(wires[0].first)
                entries.add((id(wires[0].first[per[0] // per[1]]), (1, per[0] % per[1] + 1)))
            elif wires:
                entries.add((id(wires[0]), where))
            elif array.role != "context":  # the gradient of the output
                entries.add((number, array.name, where))
    found = kept_of(graph)
    assert (found.each + found.alone).at(at) == len(entries)


def test_a_training_step_is_a_forward_and_a_backward_pass() -> None:
    for name in ("gpt-2", "transformer-base", "chen-v1", "simpletron-matching"):
        net = networks.model(name)
        at = {**net.sizes, "l": 8, "e": 4, "u": 11}
        forward, backward, both = (
            net.count(phase).at(b=3, **at) for phase in ("training", "backward", "training-step")
        )
        assert both.total == forward.total + backward.total
        parts = {
            phase: {p.use.name: p for p in net.costs(phase)} for phase in ("training", "backward")
        }
        for part in net.costs("training-step"):
            alone = [found[part.use.name] for found in parts.values() if part.use.name in found]
            assert total(part, at) == sum(total(p, at) for p in alone)


def test_gradients_of_parameters_are_added_up_over_a_batch() -> None:
    """Each but the rows that are looked up, b - 1 additions an entry; the rest b times."""
    for name in ("decoder", "chen-v1"):
        net = networks.model(name, sizes=SIZES)
        one, three = (net.count("backward").at(b=b) for b in (1, 3))
        assert one.once is not None and three.once is not None
        parameters = net.parameters()
        joined = parameters.at() - (SIZES["u"] * SIZES["d"] if name == "decoder" else 0)
        assert three.total - three.once.total == 3 * (one.total - one.once.total) + 2 * joined
        assert three.once.total == one.once.total


def test_joins_have_lines_of_their_own() -> None:
    found = {p.use.name: p for p in networks.model("transformer-base").costs("backward")}
    sums = {name: str(p.total.expr) for name, p in found.items() if name.startswith("sum of")}  # type: ignore[union-attr]
    assert sums == {
        "sum of gradients: encoder: residual stream": "2*L*d*e",
        "sum of gradients: encoder's output": "L*d*e - d*e",
        "sum of gradients: decoder: residual stream": "3*L*d*l",
    }
    tied = networks.model("chen-v1", tied=True).costs("backward")
    (shared,) = [p for p in tied if p.use.name == "sum of gradients: shared E"]
    assert not isinstance(shared.counts, Missing) and shared.counts.once is not None
    assert not shared.counts.classes and str(shared.counts.once.add) == "d*u"
    assert str(shared.runs) == "1"  # two uses of E give two gradients, which are added once


def test_a_parameter_of_several_layers_gets_a_gradient_from_each(tmp_path: Path) -> None:
    """The gain of 3 numbers that Gemma 4's 6 layers share: 5 sums of 3 additions."""
    file, fields = tmp_path / "config.json", {"num_hidden_layers": 6, "sliding_window": 3}
    fields |= {"vocab_size_per_layer_input": 7, "hidden_size_per_layer_input": 3}
    file.write_text(json.dumps({"model_type": "gemma4_text", **fields}), encoding="utf-8")
    costs = network(networks.described(None, file, {})).costs("backward")
    (shared,) = [p for p in costs if p.use.name == "sum of gradients: shared gain_P"]
    assert not isinstance(shared.counts, Missing) and shared.counts.once is not None
    assert (str(shared.runs), str(shared.counts.once.add)) == ("5", "15")


def test_what_only_the_tokens_would_need_is_left_out() -> None:
    """A one-hot product's table gets a gradient, l u d products; its rows, the tokens, get none."""
    (first, *_) = networks.model("chen-v1").costs("backward")
    assert str(first.counts.mul) == "d*l*u"  # type: ignore[union-attr]


def test_gradients_of_a_part_are_derived_once() -> None:
    """A part that reads no rows by number has the equations that a mixer by itself has."""
    graph = graph_of(networks.model("gpt-2"), part_costs.counting("strict"))
    for use in graph.network.uses:
        if use.mixer.name.startswith("self-attention"):
            step = system_of(use.mixer, use.form_under(()), (), "training-step")
            assert graph.gradients(use).system is step


def test_conventions_reach_the_backward_pass() -> None:
    net = networks.model("gpt-2", sizes={"l": 8, "u": 11})
    strict, mac, safe = (net.count("backward", c).at() for c in ("strict", "mac", "safe-softmax"))
    assert mac.mul == strict.mul and mac.add > strict.add
    assert safe == strict, "the maximum that is subtracted gets no gradient"
    dropped = net.count("backward", "dropout=mul").at()
    assert dropped.mul - strict.mul == (1 + 2 * 12) * 8 * 768


def test_a_peer_s_count_of_gradients_is_derived_where_it_has_one() -> None:
    """Every factor of gpt-2's contractions gets a gradient: twice a forward pass."""
    net = networks.model("gpt-2", sizes={"l": 8, "u": 11})
    forward = net.count("training", "torch").at().total
    assert forward > 0 and net.count("backward", "torch").at().total == 2 * forward
    assert net.count("training-step", "torch").at().total == 3 * forward
    with pytest.raises(Unanswered, match="fvcore counts forward passes only"):
        net.count("backward", "fvcore")


def test_without_a_gradient_the_reason_is_the_parts_own() -> None:
    net = networks.model("bert-base", head="vocabulary", loss=True)
    with pytest.raises(Unanswered, match="the pooler has no gradient"):
        net.count("backward")


L, l, d, n, f, u = 12, 1024, 768, 12, 3072, 50257


def test_memory_of_gpt_2_by_hand() -> None:
    """A norm keeps centred rows, the quotients before the gain, and the deviation of each row.

    Attention keeps its input, Q, K, V and the heads' output, and of the l(l+1)/2 pairs of each head
    an exponential and a weight, with a sum for each row. The FFN keeps its input; of each of its
    entries the gelu's argument x, 0.044715 x, that times x, the cubic term's factors, the tanh,
    0.5 x and 1 + tanh, and the result: 7 f in all. The loss keeps exponentials and their sums, the
    head its input.
    """
    net = networks.model("gpt-2")
    graph = graph_of(net, part_costs.counting("strict"))
    norm = 2 * l * d + l
    attention = 5 * l * d + n * (2 * (l * (l + 1) // 2) + l)
    ffn = l * d + 7 * l * f
    layer = 2 * norm + attention + ffn
    activations = L * layer + norm + l * d + l * u + 2 * l
    assert kept_of(graph).each.at(net.sizes) == activations
    parameters = 124_439_808
    budget = MemoryBudget(
        net, graph.counting, MemoryOptions("adamw", "fp32"), {**net.sizes, "b": 1}
    )
    lines = {one.name: one for one in budget.lines()}
    found = {name: one.elements.at({**net.sizes, "b": 1}) for name, one in lines.items()}  # type: ignore[union-attr]
    # While the loss hands its gradient on, its powers and three arrays of their shape are there,
    # the sums are not; the tokens and the gradient of the loss itself are.
    peak = activations - l + 3 * l * u + l + 1
    assert found == {
        "parameters": parameters,
        "their gradients": parameters,
        "state of the optimiser (adamw)": 2 * parameters,
        "activations": activations,
        "these together": 4 * parameters + activations,
        "largest live set": peak,
        "with parameters, gradients and optimiser": 4 * parameters + peak,
    }
    assert lines["largest live set"].says[0].startswith("largest live set: during the gradients of")
    for optimiser, each in {"none": 0, "sgd": 0, "momentum": 1, "adamw": 2}.items():
        other = replace(budget, memory_options=MemoryOptions(optimiser))
        held = other.optimiser
        assert isinstance(held, Exact) and held.at(net.sizes) == each * parameters


def test_each_role_has_its_own_type() -> None:
    """As with torch's autocast, and with a master copy as in Megatron."""
    net = networks.model("gpt-2")
    sizes = {**net.sizes, "b": 1}
    types = {"parameters": "bf16", "gradients": "fp32", "activations": "bf16", "master": "fp32"}
    options = MemoryOptions(dtype="fp32", precision=types)
    budget = MemoryBudget(net, part_costs.counting(), options, sizes)
    lines = {one.name: one.at(sizes, settled=True) for one in budget.lines()}
    parameters, kept = lines["parameters"].elements, lines["activations"].elements
    assert isinstance(parameters, int) and isinstance(kept, int)
    assert lines["master copy"].bytes == lines["their gradients"].bytes == 4 * parameters
    assert lines["these together"].bytes == (2 + 4 + 8 + 4) * parameters + 2 * kept
    assert lines["these together"].elements == 5 * parameters + kept
    plain = MemoryBudget(net, part_costs.counting(), MemoryOptions(dtype="fp32"), sizes)
    assert {one.name: one for one in plain.lines()}.keys() == lines.keys() - {"master copy"}


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("parameters=bf16", "--precision says nothing of gradients: add gradients=TYPE"),
        ("weights=bf16", "--precision 'weights': expected one of parameters, gradients"),
        ("parameters=bf17", "--precision: unknown dtype 'bf17'"),
        ("bf16", "--precision 'bf16': expected ROLE=TYPE, such as parameters=bf16"),
        ("parameters=bf16,parameters=fp32", "'parameters=fp32': expected ROLE=TYPE"),
    ],
)
def test_precision_that_is_refused(typed: str, sentence: str) -> None:
    with pytest.raises(ModelError) as raised:
        networks.memory_options(("training-step",), precision=typed)
    assert sentence in str(raised.value)


@pytest.mark.parametrize("typed", ["layers,", " layers", "layers,layers"])
def test_names_of_what_is_recomputed_count_once(typed: str) -> None:
    assert networks.memory_options(("backward",), recompute=typed).recompute == "layers"
    with pytest.raises(ModelError, match="--recompute ',': expected one of none, layers"):
        networks.memory_options(("backward",), recompute=",")


def test_recomputed_layers_by_hand() -> None:
    """Of a layer its input is kept, and its forward pass counted again."""
    net = networks.model("gpt-2")
    graph = graph_of(net, part_costs.counting("strict"))
    norm = 2 * l * d + l
    activations = L * l * d + norm + l * d + l * u + 2 * l
    assert kept_of(graph, "layers").each.at(net.sizes) == activations
    at = {**net.sizes, "b": 1}
    assert largest_live_set(graph, at, "layers").elements == activations - l + 3 * l * u + l + 1
    again = net.answers("training-step", graph.counting, "layers").parts
    plain = net.costs("training-step")
    forward = {p.use.name: p for p in net.costs("training")}
    inside = ("norm, before", "self-attention+bias", "FFN", "residual sum")
    difference = sum(total(a, at) - total(b, at) for a, b in zip(again, plain, strict=True))
    assert difference == sum(total(forward[name], at) for name in inside)
    # Of dropout, the product after each sublayer, not that after the embedding.
    dropped = part_costs.counting("dropout=mul")
    more, less = (
        sum(total(p, at) for p in net.answers("backward", dropped, r).parts)
        for r in ("layers", "none")
    )
    assert more - less == difference + 2 * L * l * d


@pytest.mark.parametrize("section", ["encoder", "decoder"])
def test_recomputed_layers_of_one_stack_repeat_the_dropout_of_this_stack(section: str) -> None:
    net, dropped = networks.model("transformer-base"), part_costs.counting("dropout=mul")
    (stack,) = (one for one in net.described.stacks if one.section == section)
    at = {**net.sizes, "l": 5, "e": 3, "b": 1}
    plain, again = (net.answers("backward", dropped, r).parts for r in ("none", *stack.names))
    forward = net.answers("training", dropped).parts
    found = {
        (a.use.section, total(f, at)): total(b, at) - total(a, at)
        for a, b, f in zip(plain, again, forward, strict=False)
        if a.use.regularises
    }
    # one product an entry: after the embedding, and after 2 (encoder) or 3 sublayers of 6 layers
    e, l = 3 * net.sizes["d"], 5 * net.sizes["d"]
    inside = {("encoder", 12 * e): 12 * e, ("decoder", 18 * l): 18 * l}
    expected = {key: number if key[0] == section else 0 for key, number in inside.items()}
    assert found == {("encoder", e): 0, ("decoder", l): 0, **expected}


def test_the_largest_live_set_by_hand() -> None:
    """A layer of ME without norm and FFN: l tokens, rows of d, scores of u.

    At the loss's gradients: tokens and targets, the embedding's rows (ME reads them again), the
    rows that the head reads, the powers and three arrays of their shape, the loss's own gradient.
    With a wide d and a small u the largest set is another one: at ME's gradients there are tokens,
    targets, its input, the gradients of its output, of the residual stream and of its input.
    """
    net = network(Choices(norm="none", ffn=False, positions="none", mixers=("me",)))
    graph = graph_of(net, part_costs.counting("strict"))
    rows, scores = 4 * 3, 4 * 7
    found = largest_live_set(graph, {"L": 1, "l": 4, "d": 3, "u": 7, "b": 1})
    assert (found.elements, found.when) == (2 * 4 + 2 * rows + 4 * scores + 1, "gradients of loss")
    wide = largest_live_set(graph, {"L": 1, "l": 4, "d": 50, "u": 2, "b": 2})
    rows, scores = 2 * 4 * 50, 2 * 4 * 2
    assert wide.elements == 2 * 2 * 4 + 4 * rows
    assert wide.when in ("gradients of residual sum", "gradients of me")


@every_kind
@pytest.mark.parametrize("recompute", ["none", "layers"])
def test_the_schedule_holds_what_is_kept(net: Network, recompute: str) -> None:
    """Between the forward pass and the gradients: what is kept, and what the network is given."""
    at = {**sizes_of(net), "b": 3}
    graph = graph_of(net, part_costs.counting("strict"))
    simulation = _Simulation(graph, at, recompute, net.layers or at["L"])
    for k, event in enumerate(simulation.events):
        if event.kind == "backward":
            break
        one = simulation.runs[event.run]
        simulation._during(event, one)
        simulation._after(k, event, one)
    hot = {w.name for w in simulation.live if isinstance(w, Wire) and "u" in w.entries.letters}
    numbers_of_rows = {"tokens", "which"} - hot
    live = sum(
        number
        for what, number in simulation.live.items()
        if not (isinstance(what, Wire) and what.source and what.name in numbers_of_rows)
    )
    found = kept_of(graph, recompute)
    # Of a classifier, the last rows are there, of which a first row is kept.
    apart = sum(
        3 * (sum(w.entries.at(at) for w in wire.first) - wire.entries.at(at))
        for wire in {w for one in simulation.runs for ws in one.reads.values() for w in ws}
        if wire.first and any(w in simulation.live for w in wire.first)
    )
    assert live == 3 * found.each.at(at) + found.alone.at(at) + apart


@pytest.mark.grid(4)
@pytest.mark.parametrize("recompute", ["none", "layers"])
@every_kind
def test_many_layers_are_as_each_one_run_through(net: Network, recompute: str) -> None:
    counted, choices = part_costs.counting("strict"), net.choices
    mixed = replace(choices, mixers=("me", "me", "self-attention"), form="")
    for changed, layers in ((choices, 7), (mixed, 7), (mixed, 19)):
        many = network(changed, L=layers)
        at = {**sizes_of(net), "L": layers, "b": 3}
        graph, again = graph_of(many, counted), repetition(many, layers)
        assert again is not None or layers <= 5 * many.described.period + 2
        found = largest_live_set(graph, at, recompute)
        whole = max(
            _Simulation(graph, at, recompute, layers).during(), key=lambda held: held.elements
        )
        assert found == whole
        tally = _kept_entries(graph, schedule(many, layers), recompute)
        held = sum(entries.at(at) * times for (_, entries), times in tally.items())
        assert kept_of(graph, recompute).each.at(at) == held


def test_an_encoder_with_a_depth_of_its_own_beside_many_layers() -> None:
    bart = {"model_type": "bart", "encoder_layers": 3, "decoder_layers": 7, "d_model": 8}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 9}
    whole = {"architectures": ["BartForConditionalGeneration"]}
    net = networks.model({**bart, **heads, **whole})
    graph, at = graph_of(net, part_costs.counting()), {**sizes_of(net), "L": 7, "b": 2}
    assert repetition(net, 7)
    every = _Simulation(graph, at, "none", 7).during()
    assert largest_live_set(graph, at) == max(every, key=lambda held: held.elements)


@pytest.mark.parametrize("mixer", ["self-attention", "self-attention,me,she"])
def test_a_hundred_thousand_layers_take_as_long_as_ten(
    mixer: str, capsys: pytest.CaptureFixture[str], instead: Instead
) -> None:
    asked: list[int] = []

    def counted(net: Network, layers: int) -> Any:
        asked.append(layers)
        return schedule(net, layers)

    instead(schedule=counted)
    command = f"model gpt-2 --mixer {mixer} --phase training-step --L 100000 --format json"
    assert cli.run(command.split()) == 0
    assert json.loads(capsys.readouterr().out) and max(asked) <= 18


def test_a_mixer_without_a_gradient(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "largest.py"
    file.write_text(
        "import costmodel as cm\n"
        "m = cm.Mixer('largest')\n"
        "l, d = m.sizes('l d')\n"
        "x, y = m.input('x', l, d), m.output('y', l, d)\n"
        "with m.form('direct') as f:\n"
        "    i, b, a = f.index('i', 1, l), f.index('b', 1, d), f.index('a', 1, d)\n"
        "    j = f.index('j', 1, i)\n"
        "    y[i, b] = x[i, b] + cm.max_over(x[j, a], over=(j, a))\n"
    )
    net = networks.model("decoder", mixers=(f"{file}:largest",))
    with pytest.raises(Unanswered, match=r"largest: y.1: the gradient of a maximum over several"):
        net.count("backward")
    (row,) = json.loads(
        printed(f"{TINY} --mixer {file}:largest --phase training-step --format json", capsys)
    )["models"]
    assert row["total"] is None and "the gradient of a maximum" in row["reasons"]["total"]
    assert row["activations"] is None
    assert all("maximum" in line["reason"] for line in row["memory"]["lines"] if "reason" in line)
    assert [line["elements"] is None for line in row["memory"]["lines"]] == [
        False, True, False, True, True, True, True,
    ]  # fmt: skip


def test_the_tests_of_this_file_would_notice_a_lost_join() -> None:
    net = KINDS["plain"]
    at = sizes_of(net)
    joins = [p for p in net.costs("backward") if p.use.name.startswith("sum of gradients")]
    lost = sum(total(p, at) for p in joins)
    assert lost == at["L"] * 2 * at["l"] * at["d"]
    assert by_hand(net, at) == lost + at["l"] * at["d"]


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.run(shlex.split(f"model {command}")) == 0
    found = capsys.readouterr()
    assert found.err == ""
    return found.out


TINY = "decoder --L 2 --l 4 --d 6 --n 3 --u 7"


def test_lines_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(f"{TINY} --phase training-step --dtype bf16 --optimiser momentum", capsys)
    assert "no backward pass" not in text
    parameters = networks.model("decoder").parameters().at(L=2, l=4, d=6, n=3, u=7)
    rows = {line.split("  ")[0]: line.split()[-2:] for line in text.splitlines() if "  " in line}
    assert rows["parameters"] == [f"{parameters:,}", f"{2 * parameters:,}"]
    assert rows["state of the optimiser (momentum)"] == rows["their gradients"]
    assert "scatter: the gradient of each row that a token names" in text
    assert "bytes" not in printed(f"{TINY} --phase training-step", capsys)
    assert "Memory of a training step" not in printed(f"{TINY} --phase backward", capsys)
    every = printed(f"{TINY} --phase all", capsys)
    for title in ("Forward pass over l", "One new token", "Backward pass", "Training step"):
        assert title in every


def test_every_format_has_the_same_totals(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = json.loads(printed(f"{TINY} --phase training-step --b 2 --format json", capsys))[
        "models"
    ]
    net, at = networks.model("decoder"), {"L": 2, "l": 4, "d": 6, "n": 3, "u": 7}
    assert row["total"] == net.count("training-step").at(b=2, **at).total
    found = kept_of(graph_of(net, part_costs.counting("strict")))
    assert row["activations"] == 2 * found.each.at(at)
    assert row["activations"] == sum(part["activations"] for part in row["parts"])
    held = {line["held"]: line["elements"] for line in row["memory"]["lines"]}
    assert held["activations"] == row["activations"] and row["memory"]["dtype"] is None
    csv = printed(f"{TINY} --phase training-step --format csv", capsys).splitlines()
    assert "activations" in csv[0].split(",")
    latex = printed(f"{TINY} --phase all --label x --format latex", capsys)
    for ending in ("training", "inference", "backward", "training-step", "memory"):
        assert rf"\label{{x-{ending}}}" in latex
    assert "### Memory of a training step" in printed(
        f"{TINY} --phase training-step --format markdown", capsys
    )
    swept = printed("decoder --d 8 --l 2,4 --phase training-step", capsys)
    assert swept.count("Memory of a training step at ") == 2


def test_symbolic_memory_keeps_the_letters(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = json.loads(printed("decoder --symbolic --phase training-step --format json", capsys))[
        "models"
    ]
    held = {line["held"]: line for line in row["memory"]["lines"]}
    assert "L" in held["activations"]["elements"]
    assert held["largest live set"]["elements"] is None
    assert held["largest live set"]["reason"] == (
        "the largest live set needs a number for every size"
    )


REFUSED = [
    ("--phase backwards", "expected one of training, forward, inference, decode, backward, "
     "training-step, generate, both, all"),
    ("--phase training-step --optimiser adam", "--optimiser 'adam': expected one of none, sgd, "
     "momentum, adamw"),
    ("--phase training-step --recompute all", "--recompute 'all': expected one of none, layers"),
    ("--phase training-step --dtype int3", "--dtype: unknown dtype 'int3': expected one of"),
    ("--phase training --dtype fp32", "--dtype is about what a training step holds: add "
     "--phase training-step"),
    ("--phase backward --optimiser sgd", "add --phase training-step"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "sentence"), REFUSED)
def test_a_wrong_input_is_refused_in_a_sentence(
    options: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(shlex.split(f"model {TINY} {options}")) == 2
    found = capsys.readouterr()
    assert found.out == "" and found.err.count("\n") == 1
    assert sentence in found.err


def test_holdings_that_are_refused() -> None:
    with pytest.raises(ModelError, match="expected one of none, sgd, momentum, adamw"):
        MemoryOptions(optimiser="lion")
