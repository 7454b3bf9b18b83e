"""Is the cost of a network the sum over its parts, and does it equal published figures?"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

import costmodel as cm
from costmodel import Unanswered, networks
from costmodel.errors import ConventionError, ModelError, SizeError
from costmodel.networks import network, part_costs
from costmodel.networks.choices import Choices
from costmodel.networks.network import Network
from costmodel.networks.part_costs import counting, part_sizes
from costmodel.oracle.execute import execute, random_arrays
from costmodel.questions.count import counted
from costmodel.questions.counting.counts import Counts
from costmodel.questions.question import Missing
from costmodel.symbolic.piecewise import Exact

PARAMETERS = {
    # Counted by transformers: GPT2LMHeadModel of gpt2, -medium, -large, -xl, their heads tied.
    "gpt-2": 124_439_808,
    "gpt-2-medium": 354_823_168,
    "gpt-2-large": 774_030_080,
    "gpt-2-xl": 1_557_611_200,
    # google-research/bert, issue 1225: BERT-Base, Uncased, with its pooler.
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    # BertForMaskedLM: without pooler (768*769), with 768*769 + 2*768 before the head and 30522.
    "bert-base-masked-lm": 109_482_240 - 768 * 769 + 768 * 769 + 2 * 768 + 30_522,
    # Terroa, Tables 7.4 and 7.7, in millions: 3.3959, 3.9202, 3.5270, 4.9688, 6.6727; to the digit
    # as sums over the weights of ng-video-lecture's gpt.py with those heads.
    "terroa-confirmatory": 3_395_924,
    "terroa-ssa": 3_920_212,
    "terroa-vlsa-1": 3_526_996,
    "terroa-vlsa-2": 4_968_788,
    "terroa-vlsa-3": 6_672_724,
    # u*d + l*d + 6*(4*d*d + 2*d*f) + d*u with d = l = 128, f = 512, u = 5000.
    "chen-v1": 2_476_032,
    "chen-v1-one-head": 2_476_032,
    # A layer has l*d*d + 2*d*d where self-attention has 4*d*d.
    "chen-v1-extractor": 2_476_032 + 6 * (128**3 - 2 * 128**2),
    # 13 norms of 2*d, FFN biases f + d in 6 layers, u of the head.
    "chen-v2": 2_476_032 + 13 * 256 + 6 * 640 + 5000,
}


@pytest.mark.parametrize(("name", "total"), PARAMETERS.items())
def test_parameters_equal_published_totals(name: str, total: int) -> None:
    assert networks.model(name).parameters().at() == total


@pytest.mark.parametrize("name", ["bert-large", "gpt-2"])
def test_a_table_of_positions_has_its_rows_whatever_l_is(name: str) -> None:
    net = networks.model(name)
    assert net.parameters().at(l=128) == PARAMETERS[name]
    assert networks.model(name, sizes={"l": 128}).parameters().at() == PARAMETERS[name]
    d, rows = net.sizes["d"], net.choices.position_rows
    halved = networks.model(name, position_rows=rows // 2)
    assert halved.parameters().at(l=128) == PARAMETERS[name] - rows // 2 * d
    costs = {part.use.name: part for part in net.costs("training-step")}
    added = costs["learned positions"].total
    assert isinstance(added, Exact) and added.at({**net.sizes, "l": 128}) == 128 * d


@pytest.mark.parametrize("position", ["l", "t", "p"])
def test_a_position_beyond_the_table_is_refused(position: str) -> None:
    net = networks.model("gpt-2")
    assert net.count().at(l=1024).total > net.count().at(l=1023).total
    with pytest.raises(SizeError, match=f"{position} = 1025 would lie beyond the table, which cov"):
        net.count().at(**{position: 1025})


def test_the_product_with_one_hot_rows_has_the_table_s_rows() -> None:
    net = networks.model("gpt-2", embedding="one-hot", position_rows=7)
    (part,) = [part for part in net.costs() if part.use.label == "learned positions"]
    assert isinstance(part.counts, Counts) and part.counts.once is not None
    assert part.counts.once.at(l=5, d=3).mul == 5 * 7 * 3
    assert part.parameters.at({"d": 3}) == 7 * 3


def test_parameters_of_terroa_as_printed() -> None:
    """Table 7.4 prints millions with four digits."""
    printed = {"terroa-confirmatory": 3.3959, "terroa-ssa": 3.9202, "terroa-vlsa-1": 3.5270,
               "terroa-vlsa-2": 4.9688, "terroa-vlsa-3": 6.6727}  # fmt: skip
    for name, millions in printed.items():
        assert round(networks.model(name).parameters().at() / 1e6, 4) == millions


VASWANI = {
    # Table 3 of the paper, parameters in millions, and those without the embedding's u*d by hand:
    # 6 encoder layers 4dd + 2df + f + d + 4d, 6 decoder layers 8dd + 2df + f + d + 6d.
    "transformer-base": (65, 44_101_632),
    "transformer-b-k16": (58, 44_101_632 - 18 * 2 * 512 * (512 - 128)),
    "transformer-b-k32": (60, 44_101_632 - 18 * 2 * 512 * (512 - 256)),
    "transformer-c-l2": (36, 44_101_632 // 3),
    "transformer-c-l4": (50, 44_101_632 * 2 // 3),
    "transformer-c-l8": (80, 44_101_632 * 4 // 3),
    "transformer-c-d256": (28, 17_344_512),
    "transformer-c-d1024": (168, 125_927_424),
    "transformer-c-f1024": (53, 44_101_632 - 12 * (2 * 512 + 1) * 1024),
    "transformer-c-f4096": (90, 44_101_632 + 12 * (2 * 512 + 1) * 2048),
    "transformer-big": (213, 176_283_648),
}


@pytest.mark.parametrize("name", VASWANI)
def test_parameters_of_vaswani_without_the_embedding(name: str) -> None:
    _, without = VASWANI[name]
    found = networks.model(name).parameters()
    assert found.without_tables.at() == without
    assert found.at() == without + 37_000 * networks.model(name).sizes["d"]


def test_one_vocabulary_gives_the_ten_smaller_rows_of_vaswani() -> None:
    """u = 41,100 rounds to every printed figure but that of the big model, which needs 36,000."""
    for name, (millions, _) in VASWANI.items():
        u = 36_000 if name == "transformer-big" else 41_100
        assert round(networks.model(name).parameters().at(u=u) / 1e6) == millions, name


def test_rows_of_vaswani_without_other_parameters() -> None:
    base = networks.model("transformer-base").parameters()
    for name in ("transformer-a-n1", "transformer-a-n32", "transformer-d-drop0",
                 "transformer-d-smooth0"):  # fmt: skip
        assert networks.model(name).parameters().poly == base.poly
    learned = networks.model("transformer-e").parameters()
    assert learned.at(l=3, e=5) == base.at() + (3 + 5) * 512


def test_flops_of_gpt2_equal_those_of_nanogpt() -> None:
    """GPT-2 at 1024 tokens as nanoGPT's transformer_sizing notebook counts it: 291,648,307,200
    FLOPs of dense products, 2 a multiply-add, all pairs of tokens."""
    counts = networks.model("gpt-2").count(convention="torch").at()
    assert counts.mul + counts.add == 291_648_307_200


L, l, d, n, f, u = 2, 4, 6, 3, 5, 7


def test_a_layer_of_chen_equals_tables_and_equations_of_the_paper() -> None:
    """Tables 3 and 4 of version 1 for the sublayer, the other parts from equations (3) to (17)."""
    counts = networks.model("chen-v1").count().at(L=L, l=l, d=d, n=n, f=f, u=u)
    attention = l * l * d + 4 * l * d * d + l * d
    assert counts.mul == u * l * d + L * (attention + 2 * l * d * f) + l * d * u
    attention = l * l * d + 4 * l * d * d - 4 * l * d - l * n
    ffn = (d - 1) * l * f + (f - 1) * l * d
    softmax, loss = l * (u - 1), l - 1
    assert counts.add == (
        (u - 1) * l * d + l * d + L * (attention + ffn + 2 * l * d) + (d - 1) * l * u
        + softmax + loss
    )  # fmt: skip
    assert counts.div == L * (n * l * l + n * l) + l * u + 1
    assert counts.exp == L * (n * l * l + n * l) // 2 + l * u
    assert counts.other == {"compare": L * l * f, "log": l}
    assert counts.once is not None
    assert (counts.once.mul, counts.once.add) == (l * l * d, l * (l - 1) * d)
    token = networks.model("chen-v1").count("inference").at(L=L, d=d, n=n, f=f, u=u, t=3)
    assert token.mul == u * d + L * (2 * 3 * d + 4 * d * d + 2 * d * f) + d * u
    assert token.exp == L * 3 * n + u
    assert token.once is not None and token.once.total == 0


def by_execution(net: Network, sizes: dict[str, int], phase: str) -> Counter[str]:
    """The operations of every part, run entry by entry, so often as the choices say."""
    found: Counter[str] = Counter()
    for use in net.uses:
        if phase not in use.when or use.regularises:
            continue
        own = part_sizes(use, sizes)
        form = use.mixer.forms[use.form or use.mixer.default_form]
        length = None if phase == "training" else max(own["l"], sizes["t"])
        given = {x: abs(v) for x, v in random_arrays(form, own).items()}
        run = execute(form, own, length=length, arrays=given if length == own["l"] else None)
        tally: Counter[str] = Counter()
        if phase == "training":
            tally.update(run.counts())
            tally.update(run.once())
        else:
            tally.update(run.counts_inference(sizes["t"]))
        for name, number in tally.items():
            found[name] += number * use.runs.at(sizes)
    return +found


NETWORKS: dict[str, Choices] = {
    "plain": Choices(),
    "printed": Choices(embedding="one-hot", norm="none", biases=False),
    "post, tied": Choices(norm="post", tied=True, head_bias=True, activation="gelu-tanh"),
    "scaled": Choices(scale="all", positions="learned", embedding="one-hot"),
    "extractors in turn": Choices(mixers=("she", "self-attention", "me"), sizes={"L": 4}),
    "no FFN": Choices(ffn=False, positions="none"),
    "encoder": Choices(
        kind="encoder",
        mixers=("self-attention+bidirectional",),
        head="classes",
        towers=2,
        hidden=2,
        segments=2,
        embedding_norm=True,
    ),
    "encoder-decoder": Choices(
        kind="encoder-decoder",
        norm="post",
        positions="sinusoidal",
        scale="tokens",
        tied=True,
        shared_vocabulary=True,
        smoothing=True,
    ),
}
SMALL = {"L": 4, "l": 5, "e": 3, "d": 6, "n": 3, "f": 4, "u": 7, "z": 2, "t": 4}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("phase", ["training", "inference"])
def test_a_network_costs_what_its_execution_costs(name: str, phase: str) -> None:
    net = network(NETWORKS[name])
    if phase == "inference" and net.choices.kind == "encoder":
        with pytest.raises(Unanswered, match="not causal"):
            net.count(phase)
        return
    counts = net.count(phase).at(**SMALL)
    found = Counter({c: v for c, v in counts.by_class().items() if v})
    assert counts.once is not None
    found.update({c: v for c, v in counts.once.by_class().items() if v})
    assert found == by_execution(net, SMALL, phase)
    assert counts.total == found.total()


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_are_the_entries_of_the_arrays(name: str) -> None:
    """Every part's parameter arrays, so many sets of them as the network has."""
    net = network(NETWORKS[name])
    held = 0
    for use in net.uses:
        own = part_sizes(use, SMALL)
        for array in use.mixer.parameters:
            if array.name not in use.shared:
                entries = 1
                for extent in array.shape:
                    entries *= extent.at(own)
                held += entries * use.copies.at(SMALL)
    assert net.parameters().at(**SMALL) == held


def test_parts_add_up_to_the_total() -> None:
    for name in ("gpt-2", "transformer-base", "chen-v1-extractor"):
        net = networks.model(name)
        for phase in ("training", "inference"):
            at = {**net.sizes, "l": 8, "e": 4, "t": 8, "u": 11}
            parts = [part.total for part in net.costs(phase)]
            total = sum(t.at(at) for t in parts if not isinstance(t, Missing))
            assert total == net.count(phase).at(**at).total
        parameters = net.parameters()
        assert sum(p.at(at) for p in parameters.arrays.values()) == parameters.at(l=8, e=4, u=11)


def test_batch_multiplies_the_work_and_not_what_is_done_once() -> None:
    net = networks.model("chen-v1")
    one, three = (net.count().at(b=b, l=8, u=11) for b in (1, 3))
    assert one.once is not None and three.once is not None
    assert three.once.total == one.once.total > 0
    assert three.total == 3 * (one.total - one.once.total) + one.once.total


def test_layers_take_the_mixers_in_turn() -> None:
    """Layer i has the mixer i mod 3: of 5 layers two have the first and the second."""
    chosen = replace(networks.preset("chen-v1"), mixers=("she", "he", "we"))
    found = {p.use.name: str(p.runs) for p in network(chosen, L=5).costs()}
    assert (found["she"], found["he"], found["we"]) == ("2", "2", "1")
    assert network(chosen, L=1).costs()[2].use.name == "she"
    assert "he" not in {p.use.name for p in network(chosen, L=1).costs()}
    with pytest.raises(ModelError, match=r"she, he, we in turn.*such as --L 12"):
        network(replace(chosen, sizes={}))
    with pytest.raises(SizeError, match="L of this network is fixed by the pattern she, he, we"):
        network(chosen, L=5).count().at(L=6)
    repeated = network(replace(chosen, mixers=("she", "she"), sizes={}))
    assert {p.use.name: str(p.runs) for p in repeated.costs()}["she"] == "L"


def test_every_answer_keeps_its_letters() -> None:
    net = networks.model("gpt-2")
    assert str(net.parameters().expr) == "12*L*d**2 + 13*L*d + d*u + 1026*d"
    assert str(net.state().expr) == "2*L*d*t"
    own = networks.model("gpt-2", sizes={"f": 100})
    assert str(own.parameters().expr) == "4*L*d**2 + 2*L*d*f + 9*L*d + L*f + d*u + 1026*d"
    with pytest.raises(SizeError, match=r"f of this network is fixed by other sizes \(4\*d\)"):
        net.parameters().at(f=100)
    assert net.parameters().at(f=4 * 768) == net.parameters().at()


def test_state_of_cross_attention_is_that_of_the_source() -> None:
    assert str(networks.model("transformer-base").state().expr) == "2*L*d*e + 2*L*d*t"


def test_dropout_costs_nothing_unless_a_convention_says_so() -> None:
    net = networks.model("gpt-2")
    free, counted = (net.count(convention=c) for c in ("strict", "dropout=mul"))
    difference = counted.exact("mul") - free.exact("mul")
    # After the embedding, and after both sublayers of each layer: (1 + 2 L) l d products.
    assert str(difference.expr) == "2*L*d*l + d*l"
    assert counted.exact("add") == free.exact("add")
    assert net.count("inference", "dropout=mul").mul == net.count("inference").mul
    assert part_costs.counting("dropout=mul").names == ("strict", "dropout=mul")
    assert part_costs.counting("mac,dropout=free").names == ("mac",)
    for wrong in ("dropout=add", "dropout=mul,dropout=free"):
        with pytest.raises(ConventionError, match="one rule for the cost of dropout, dropout=free"):
            part_costs.counting(wrong)
    with pytest.raises(ConventionError, match="an empty convention"):
        part_costs.counting("")


def test_conventions_reach_every_part() -> None:
    net = networks.model("gpt-2", sizes={"l": 8, "u": 11})
    plain, safe = (net.count(convention=c).at() for c in ("strict", "safe-softmax"))
    # Of causal rows of t scores the largest, and t differences; of l rows of u scores as well.
    pairs = 12 * 12 * 8 * 9 // 2
    assert safe.add - plain.add == pairs + 8 * 11
    assert safe.other["compare"] == pairs - 12 * 12 * 8 + 8 * 10
    mac = net.count(convention="mac").at()
    assert mac.mul == plain.mul and mac.add > plain.add


def test_a_mixers_form_is_taken_where_it_has_it() -> None:
    net = networks.model("chen-v1", mixers=("she", "self-attention"), form="fft")
    forms = {use.label: use.form for use in net.uses if use.label in ("she", "self-attention")}
    assert forms == {"she": "fft", "self-attention": None}
    with pytest.raises(Unanswered, match="transforms the whole token axis"):
        net.count("inference")
    with pytest.raises(ModelError, match="none of its mixers has a form 'ftt'"):
        networks.model("chen-v1", mixers=("she",), form="ftt")


def test_a_mixer_of_ones_own(tmp_path: Any) -> None:
    file = tmp_path / "mean.py"
    file.write_text(
        "import costmodel as cm\n"
        "mean = cm.Mixer('mean')\n"
        "l, d = mean.sizes('l d')\n"
        "x, y = mean.input('x', l, d), mean.output('y', l, d)\n"
        "with mean.form('direct') as f:\n"
        "    i, a = f.index('i', 1, l), f.index('a', 1, d)\n"
        "    j = f.index('j', 1, i)\n"
        "    y[i, a] = cm.sum_(x[j, a], over=j)\n"
    )
    net = networks.model("decoder", mixers=(f"{file}:mean",))
    (own,) = [part for part in net.costs() if "mean" in part.use.name]
    assert own.parameters.constant() == 0
    assert str(own.counts.add) == "L*d*l**2/2 - L*d*l/2"  # type: ignore[union-attr]
    assert str(net.state().expr) == "L*d*t"


def test_without_one_token_inference_the_reason_is_the_mixers_own() -> None:
    net = networks.model("bert-base")
    reason = "not causal: an output depends on later tokens"
    found = {part.use.name: part.counts for part in net.costs("inference")}
    assert found["self-attention+bias+bidirectional"] == Missing(reason)
    assert not isinstance(found["FFN"], Missing)
    with pytest.raises(Unanswered, match=reason):
        net.count("inference")
    with pytest.raises(Unanswered, match=reason):
        net.state()


def test_sizes_that_do_not_fit() -> None:
    net = networks.model("gpt-2")
    with pytest.raises(SizeError, match="needs d/n to be whole"):
        net.fit({**net.sizes, "d": 100, "b": 1})
    with pytest.raises(SizeError, match="embedding: no value for size u"):
        net.fit({"l": 4, "d": 4, "n": 2, "L": 1})
    odd = network(NETWORKS["encoder"])
    with pytest.raises(SizeError, match="is 5/2: choose another f, so that"):
        odd.fit({**SMALL, "f": 5})
    with pytest.raises(SizeError, match="unknown size 'x'"):
        net.parameters().at(x=3)


def test_the_oracle_of_this_file_would_notice_a_lost_part() -> None:
    net = network(NETWORKS["plain"])
    lost = Network(net.described)
    lost.__dict__["uses"] = tuple(use for use in net.uses if use.label != "residual sum")
    counts = lost.count().at(**SMALL)
    assert Counter(counts.by_class())["add"] < by_execution(net, SMALL, "training")["add"]
    assert cm.count(net.uses[0].mixer).at(l=5, d=6, u=7).total == 0


@pytest.mark.parametrize("rewrite", ["softmax-gradient", "quotient-gradient"])
def test_a_network_counts_gradients_as_its_convention_takes_them(rewrite: str) -> None:
    """The attention of two layers costs what its mixer costs twice, under a rewrite of gradients
    too."""
    sizes = {"l": 16, "d": 12, "n": 3}
    net = networks.model("gpt-2", sizes={**sizes, "L": 2})
    found = []
    for convention in ("strict", f"strict,{rewrite}"):
        parts = net.answers("backward", counting(convention)).parts
        (part,) = (part for part in parts if part.use.label == "self-attention+bias")
        count: Any = cm.count(part.use.mixer, "backward", convention=convention)
        here = part.of(counted).exact_total.at({**net.sizes, **sizes, "b": 1})
        assert here == 2 * count.at(**sizes).total
        found.append(here)
    assert found[0] != found[1]
