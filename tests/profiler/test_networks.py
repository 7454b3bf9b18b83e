"""Do the networks in torch hold, compute, learn and generate as `costmodel.networks` derives?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor, nn

from costmodel.errors import SizeError
from costmodel.networks import model, parts
from costmodel.networks.blocks import Use
from costmodel.networks.choices import Choices
from costmodel.networks.network import Network
from costmodel.networks.presets import names
from profiler.counting.dispatch import count_dispatch
from profiler.modules import implementations
from profiler.networks.layers import Layer, Stack
from profiler.networks.modules import Part, loss_of_scores, sinusoids
from profiler.networks.twin import Twin, TwinError, all_sizes, twin

SMALL = {"L": 3, "d": 6, "n": 2, "l": 7, "u": 11, "f": 10, "z": 3, "e": 5, "K": 3, "V": 4, "v": 2}
"""Small and as different from one another as n | d allows."""


def letters(network: Network) -> set[str]:
    """The sizes that a network has."""
    return {x for use in network.uses for x in use.mixer.letters} | {"L", "d", "e", "l", "u", "z"}


def small(name: str, **changes: Any) -> Network:
    """A network of this name at small sizes; a width that follows from others still does."""
    usual = model(name, sizes={"L": SMALL["L"]}, **changes)
    chosen = letters(usual) - {*usual.choices.widths}
    return model(name, sizes={x: v for x, v in SMALL.items() if x in chosen}, **changes)


def kind_of(network: Network) -> str:
    """All choices but the words: networks that differ in size alone are one kind."""
    words = {"name", "title", "source", "place", "remark", "assumed"}
    shown = {k: v for k, v in vars(network.choices).items() if k not in words}
    return repr(sorted(shown.items(), key=str))


KINDS: Mapping[str, Network] = {
    found.name: found
    for found in {kind_of(network): network for network in map(small, reversed(names()))}.values()
}
"""One small network of each kind that a preset has."""

GENERATING = {
    name: network
    for name, network in KINDS.items()
    if network.choices.kind != "encoder" and network.choices.head == "vocabulary"
}

every_kind = pytest.mark.parametrize("network", KINDS.values(), ids=KINDS)
every_generating = pytest.mark.parametrize("network", GENERATING.values(), ids=GENERATING)


def drawn(shape: tuple[int, ...], below: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(below, shape, generator=generator)


def given(c: Choices, batch: int, length: int = SMALL["l"]) -> dict[str, Tensor]:
    """Random tokens, targets and source of a small network."""
    shape = (batch, length) if c.towers == 1 else (batch, c.towers, length)
    found = {"tokens": drawn(shape, SMALL["u"])}
    if c.head == "classes":
        found["targets"] = drawn((batch,), SMALL["z"], 1)
    elif c.head == "vocabulary":
        found["targets"] = drawn((batch, length), SMALL["u"], 1)
    if c.kind == "encoder-decoder":
        found["source"] = drawn((batch, SMALL["e"]), SMALL["u"], 2)
    return found


def loss(net: Twin, data: dict[str, Tensor]) -> Tensor:
    """The network's own loss; a distance from ones where it has no head."""
    if "targets" in data:
        return net.loss(**data)
    distance: Tensor = (net(**data) - 1).square().mean()
    return distance


# Parameters.


@pytest.mark.grid(3)
@pytest.mark.parametrize("name", names())
def test_every_preset_has_a_twin_with_as_many_parameters(name: str) -> None:
    """At the sizes of the source; of a sweep, at every one of its values."""
    network = model(name)
    sweeps = {x: v for x, v in network.choices.sizes.items() if isinstance(v, tuple)}
    assert len(sweeps) <= 1
    values = [{x: one} for x, v in sweeps.items() for one in v] or [{}]
    for sizes in values:
        net = twin(network, sizes, device="meta")
        free = {x: v for x, v in net.sizes.items() if x not in network.choices.widths}
        held = sum(p.numel() for p in net.parameters())
        assert held == network.parameters().at(**free)
        assert all(p.is_meta for p in net.parameters())


PRINTED = {
    "gpt-2": 124_439_808,  # OpenAI's released model
    "bert-base": 109_482_240,  # bert-base-uncased without its pre-training heads
    "terroa-confirmatory": 3_395_924,  # Terroa 2024, Table 7.4
    "terroa-ssa": 3_920_212,
    "terroa-vlsa-1": 3_526_996,
    "terroa-vlsa-2": 4_968_788,
    "terroa-vlsa-3": 6_672_724,
}


@pytest.mark.parametrize("name", PRINTED)
def test_twins_hold_as_many_parameters_as_is_printed(name: str) -> None:
    held = sum(p.numel() for p in twin(model(name), device="meta").parameters())
    assert held == PRINTED[name]


@every_kind
def test_parts_hold_what_the_parts_of_the_network_hold(network: Network) -> None:
    """Mixers and FFNs by layer, so that no part makes up for another."""
    net = twin(network, device="meta")
    arrays = network.parameters().arrays
    free = {x: v for x, v in net.sizes.items() if x not in network.choices.widths}
    stacks = [stack for stack in (net.encoder, net.stack) if stack is not None]
    for described, stack in zip(network.described.stacks, stacks, strict=True):
        held: dict[str, int] = {}
        for k, layer in enumerate(layers_of(stack)):
            block = described.blocks[k % len(described.blocks)]
            for place, sublayer in zip(layer.places, block.sublayers, strict=True):
                part: Any = place.part
                lead = f"{described.section}: " if described.section else ""
                name, number = lead + sublayer.part.label, sum(p.numel() for p in part.parameters())
                held[name] = held.get(name, 0) + number
        assert held == {name: arrays[name].at(free) for name in held}


def layers_of(stack: Stack) -> list[Layer]:
    return [layer for layer in stack.layers if isinstance(layer, Layer)]


def mixer_of(layer: Layer) -> Any:
    return layer.places[0].part


# Operations.


@pytest.mark.grid(3)
@every_kind
def test_what_a_twin_dispatches_is_what_its_network_counts(network: Network) -> None:
    """Every class of a forward pass with its loss, under what its mixers are described to do."""
    c = network.choices
    net, data = twin(network).eval(), given(c, 1)
    mixers = {*c.mixers, *((*c.encoder_mixers, c.cross) if c.kind == "encoder-decoder" else ())}
    does = {r for name in mixers for r in next(iter(implementations(name).values())).rewrites}
    with torch.no_grad():
        run = (lambda: net(**data)) if c.head == "none" else (lambda: net.loss(**data))
        run_once = count_dispatch(run)
    assert run_once.complete, run_once.unknown
    found = run_once.operations
    convention = ",".join(["strict", *sorted(does | {"safe-softmax"})])
    free = {x: v for x, v in all_sizes(network).items() if x not in c.widths}
    counts = network.count("training", convention).at(**free)
    counted = dict(counts.by_class())
    for name, number in (counts.once.by_class() if counts.once else {}).items():
        counted[name] = counted.get(name, 0) + number
    dispatched = {k: getattr(found, k) for k in ("mul", "add", "div", "exp")} | dict(found.other)
    assert {k: v for k, v in dispatched.items() if v} == {k: v for k, v in counted.items() if v}


def test_the_matrix_products_of_a_small_decoder_by_hand() -> None:
    """2 layers of width 4, l = 3: Q, K, V, out, two FFN maps of width 16, scores and weighted rows
    over all 9 pairs, the head's 5 columns."""
    network = model("decoder", sizes={"L": 2, "d": 4, "n": 2, "l": 3, "u": 5}, biases=False)
    net = twin(network).eval()
    with torch.no_grad():
        run = count_dispatch(lambda: net(drawn((1, 3), 5)))
    products = [run.by_op[name].operations for name in ("aten::mm", "aten::bmm")]
    layer = 3 * (4 * 4 * 4 + 2 * 4 * 16) + 2 * 3 * 3 * 4
    added = 4 * 3 * 4 * 3 + 3 * 16 * 3 + 3 * 4 * 15 + 2 * 9 * 1 + 3 * 4 * 2
    assert sum(o.mul for o in products) == 2 * layer + 3 * 4 * 5
    assert sum(o.add for o in products) == 2 * added + 3 * 5 * 3


# Learning.


@pytest.mark.grid(3)
@every_kind
def test_an_optimiser_step_lowers_the_loss(network: Network) -> None:
    net, data = twin(network, seed=1), given(network.choices, 2)
    net.eval()  # the same entries in every pass: no dropout
    optimiser = torch.optim.AdamW(net.parameters(), lr=2e-3)
    seen = []
    for _ in range(5):
        optimiser.zero_grad()
        now = loss(net, data)
        now.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        seen.append(float(now.detach()))
        assert all(p.grad is not None for p in net.parameters())
        optimiser.step()
    assert seen == sorted(seen, reverse=True) and seen[-1] < 0.99 * seen[0]


def test_a_fresh_network_guesses() -> None:
    """Untrained scores are near 0, so that the loss is near that of a guess, log u."""
    net = twin(small("gpt-2"), {"d": 64, "u": 50})
    found = float(net.eval().loss(drawn((8, 7), 50), drawn((8, 7), 50, 1)).detach())
    assert found == pytest.approx(math.log(50), rel=0.25)


def test_dropout_acts_in_training_alone() -> None:
    net, tokens = twin(small("gpt-2")), drawn((2, 7), SMALL["u"])
    assert not torch.equal(net(tokens), net(tokens))
    net.eval()
    assert torch.equal(net(tokens), net(tokens))
    undropped = twin(small("gpt-2", dropout=False))
    assert torch.equal(undropped(tokens), undropped(tokens))


# Generating.


@pytest.mark.grid(3)
@every_generating
def test_steps_give_the_scores_of_forward(network: Network) -> None:
    net, data = twin(network, dtype=torch.float64).eval(), given(network.choices, 2)
    tokens, source = data["tokens"], data.get("source")
    expected = net(tokens, source)
    decoding = net.start(2, SMALL["l"], source)
    for i in range(SMALL["l"]):
        with torch.no_grad():
            scores = net.step(tokens[:, i], decoding)
        # float64, sums of some dozen terms in other orders through three layers
        torch.testing.assert_close(scores, expected[:, i], atol=1e-10, rtol=0)


@pytest.mark.grid(3)
@every_generating
def test_generation_is_greedy_decoding(network: Network) -> None:
    """Through the mixers' `step`; against a forward pass over everything for each new token."""
    net = twin(network, dtype=torch.float64, seed=2)
    data = given(network.choices, 3)
    prompt, source = data["tokens"][:, :2], data.get("source")
    found = net.generate(prompt, 5, source)
    assert net.training
    expected = prompt
    with torch.no_grad():
        for _ in range(5):
            scores = net.eval()(expected, source)[:, -1]
            expected = torch.cat([expected, scores.argmax(-1, keepdim=True)], 1)
    assert torch.equal(found, expected)


def test_generation_uses_no_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    net = twin(small("gpt-2"))

    def refused(*_: Any) -> Tensor:
        raise AssertionError("forward")

    for layer in layers_of(net.stack):
        monkeypatch.setattr(mixer_of(layer), "mix", refused)
    assert net.generate(drawn((1, 3), SMALL["u"]), 4).shape == (1, 7)
    assert net.generate(drawn((1, 3), SMALL["u"]), 0).shape == (1, 3)


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (small("encoder"), r"self-attention\+bidirectional: not causal: an output depends on"),
        (small("bert-base"), "it generates no tokens: call it on whole sequences"),
        (small("simpletron-classification"), "has no head over the vocabulary"),
        (small("decoder", mixers=("self-attention", "self-attention+bidirectional")), "not causal"),
    ],
    ids=["encoder", "no-head", "classes", "pattern"],
)
def test_a_network_that_generates_nothing_says_why(network: Network, reason: str) -> None:
    with pytest.raises(TwinError, match=reason):
        twin(network).generate(drawn((1, 2), SMALL["u"]), 2)


# Somebody else's code.


def copied(ours: Any, theirs: nn.MultiheadAttention) -> None:
    """torch's attention gets our weights."""
    theirs.in_proj_weight.copy_(torch.cat([ours.W_Q, ours.W_K, ours.W_V], 1).t())
    theirs.in_proj_bias.copy_(torch.cat([ours.b_Q, ours.b_K, ours.b_V]))
    theirs.out_proj.weight.copy_(ours.W_out.t())
    theirs.out_proj.bias.copy_(ours.b_out)


def unsettled(net: Twin) -> None:
    """Biases, gains and offsets that are not 0 and 1."""
    generator = torch.Generator().manual_seed(5)
    for p in net.parameters():
        if p.dim() == 1:
            p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))


def same_layer(layer: Any, theirs: Any, norms: int) -> None:
    """torch's layer gets the weights of ours."""
    copied(mixer_of(layer), theirs.self_attn)
    ffn = layer.places[-1].part
    for k, linear in ((1, theirs.linear1), (2, theirs.linear2)):
        linear.weight.copy_(getattr(ffn, f"W_{k}").t())
        linear.bias.copy_(getattr(ffn, f"b_{k}"))
    assert len(layer.places) == norms
    for k, place in enumerate(layer.places):
        norm, ours = getattr(theirs, f"norm{k + 1}"), place.before or place.after
        norm.weight.copy_(ours.gain)
        norm.bias.copy_(ours.offset)


PEER: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "dtype": torch.float64}


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_an_encoder_equals_torch_nn(norm: str, activation: str) -> None:
    mixers = ("self-attention+bias+bidirectional",)
    network = small("encoder", mixers=mixers, norm=norm, activation=activation, positions="none")
    net, tokens = twin(network, dtype=torch.float64), drawn((2, 7), SMALL["u"])
    x = net.stack.entered(tokens)
    with torch.no_grad():
        unsettled(net)
        for layer in layers_of(net.stack):
            theirs = nn.TransformerEncoderLayer(
                6, 2, 24, activation=activation, norm_first=norm == "pre", **PEER
            )
            same_layer(layer, theirs, 2)
            theirs.train()  # without its fused path; it drops nothing
            expected = theirs(x)
            torch.testing.assert_close(layer(x), expected, atol=1e-12, rtol=0)
            x = expected
        if norm == "pre":
            norm_at_end: Any = net.stack.end[0]
            x = F.layer_norm(x, (6,), norm_at_end.gain, norm_at_end.offset)
        torch.testing.assert_close(net.hidden(tokens), x, atol=1e-11, rtol=0)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_an_encoder_decoder_equals_torch_nn(norm: str) -> None:
    network = small(
        "encoder-decoder",
        mixers=("self-attention+bias",),
        cross="self-attention+bias+cross",
        norm=norm,
    )
    net = twin(network, dtype=torch.float64)
    x, memory = torch.randn(2, 2, 7, 6, dtype=torch.float64)
    later = torch.ones(7, 7, dtype=torch.bool).triu(1)
    with torch.no_grad():
        unsettled(net)
        for layer in layers_of(net.stack):
            theirs = nn.TransformerDecoderLayer(6, 2, 24, norm_first=norm == "pre", **PEER)
            same_layer(layer, theirs, 3)
            copied(layer.places[1].part, theirs.multihead_attn)
            expected = theirs(x, memory[:, :5], tgt_mask=later)
            torch.testing.assert_close(layer(x, memory[:, :5]), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_norm_equals_torch_nn(bias: bool) -> None:
    norm = Use("norm", parts.layer_norm(bias))
    ours: Any = Part(norm, {"l": 3, "d": 6}, {}, (), {"dtype": torch.float64})
    x = torch.randn(3, 6, dtype=torch.float64)
    with torch.no_grad():
        for p in ours.parameters():
            p.normal_()
        expected = F.layer_norm(x, (6,), ours.gain, getattr(ours, "offset", None), 1e-5)
        torch.testing.assert_close(ours(x), expected, atol=1e-14, rtol=1e-14)


@pytest.mark.parametrize("smoothed", [True, False])
def test_a_loss_equals_torch_nn(smoothed: bool) -> None:
    scores, targets = torch.randn(2, 7, 11, dtype=torch.float64), drawn((2, 7), 11)
    smoothing = 0.1 if smoothed else 0.0
    expected = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), label_smoothing=smoothing)
    found = loss_of_scores(scores, targets, smoothed=smoothed)
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=1e-14)


def test_a_softmax_at_the_end_and_none_have_one_loss() -> None:
    data = given(small("chen-v1").choices, 2)
    losses = [
        twin(small("chen-v1", output=output), dtype=torch.float64).loss(**data)
        for output in ("probabilities", "scores")
    ]
    torch.testing.assert_close(*losses, atol=1e-14, rtol=1e-14)


def test_sinusoids_are_those_of_the_paper() -> None:
    """PE(pos, 2i) = sin(pos / 10000**(2i/d)), PE(pos, 2i+1) its cosine, counted from 0."""
    table = sinusoids(4, 5, {"dtype": torch.float64})
    for pos in range(4):
        for channel in range(5):
            angle = pos / 10_000 ** (channel // 2 * 2 / 5)
            expected = math.cos(angle) if channel % 2 else math.sin(angle)
            assert float(table[pos, channel]) == pytest.approx(expected, abs=1e-15)


# What choices do.


def test_a_one_hot_product_is_a_look_up() -> None:
    tokens = drawn((2, 7), SMALL["u"])
    for scale in ("none", "tokens", "all"):
        one, two = (
            twin(small("chen-v2", embedding=embedding, scale=scale), dtype=torch.float64).eval()
            for embedding in ("one-hot", "look-up")
        )
        torch.testing.assert_close(one(tokens), two(tokens), atol=1e-14, rtol=1e-14)


def test_scales_multiply_tokens_and_positions() -> None:
    nets = {s: twin(small("decoder", scale=s), dtype=torch.float64) for s in ("none", "all")}
    embedding: Any
    positions: Any
    embedding, positions = nets["none"].stack.entry
    tokens = drawn((2, 7), SMALL["u"])
    expected = (embedding.E[tokens] + positions.P) * math.sqrt(6)
    torch.testing.assert_close(nets["all"].stack.entered(tokens), expected)
    only = twin(small("decoder", scale="tokens"), dtype=torch.float64).stack.entered(tokens)
    torch.testing.assert_close(only, embedding.E[tokens] * math.sqrt(6) + positions.P)


def test_tied_weights_are_one_parameter() -> None:
    net = twin(small("transformer-base"))
    assert net.encoder is not None
    assert net.ending[0].E is net.stack.entry[0].E is net.encoder.entry[0].E
    apart = twin(small("transformer-base", tied=False, shared_vocabulary=False))
    assert apart.encoder is not None
    assert apart.encoder.entry[0].E is not apart.stack.entry[0].E


def test_segments_are_added() -> None:
    net = twin(small("bert-base")).eval()
    tokens = drawn((2, 7), SMALL["u"])
    zeros = torch.zeros_like(tokens)
    assert torch.equal(net(tokens), net(tokens, segments=zeros))
    assert not torch.allclose(net(tokens), net(tokens, segments=zeros + 1))


def test_segments_of_towers_are_added() -> None:
    net = twin(small("simpletron-matching", segments=2)).eval()
    tokens = drawn((2, 2, 7), SMALL["u"])
    assert torch.equal(net(tokens), net(tokens, segments=torch.zeros_like(tokens)))
    assert not torch.allclose(net(tokens), net(tokens, segments=torch.ones_like(tokens)))


def test_layers_take_mixers_in_turn() -> None:
    net = twin(small("decoder", mixers=("she", "self-attention+bias")))
    kinds = [type(mixer_of(layer)).__name__ for layer in layers_of(net.stack)]
    assert kinds == ["SheDirect", "ExplicitSelfAttention", "SheDirect"]
    assert net.generate(drawn((1, 2), SMALL["u"]), 3).shape == (1, 5)


def test_towers_share_an_encoder() -> None:
    """Both documents' first rows, side by side: swapped documents swap halves."""
    net = twin(small("simpletron-matching"), dtype=torch.float64).eval()
    tokens = drawn((2, 2, 7), SMALL["u"])
    found, swapped = net.first_rows(tokens), net.first_rows(tokens.flip(1))
    assert found.shape == (2, 12)
    torch.testing.assert_close(swapped, found.roll(6, 1), atol=1e-13, rtol=0)
    assert net(tokens).shape == (2, 3)


def test_an_implementation_is_taken_where_a_mixer_has_it() -> None:
    tokens = drawn((2, 7), SMALL["u"])
    network = small("decoder", mixers=("self-attention", "she"))
    plain, fused = (twin(network, implementation=i).eval() for i in (None, "sdpa"))
    kinds = [type(mixer_of(layer)).__name__ for layer in layers_of(fused.stack)]
    assert kinds == ["FusedSelfAttention", "SheDirect", "FusedSelfAttention"]
    torch.testing.assert_close(plain(tokens), fused(tokens), atol=1e-5, rtol=0)
    forms = twin(small("decoder", mixers=("she",), form="fft"))
    assert type(mixer_of(layers_of(forms.stack)[0])).__name__ == "SheFft"


def test_seeds_decide_the_parameters() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, again, other = (twin(small("transformer-base"), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    for name, value in one.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    matrices = [p for p in one.parameters() if p.dim() > 1]
    assert len({float(p.detach().double().sum()) for p in matrices}) == len(matrices)
    first, others = (next(iter(net.parameters())) for net in (one, other))
    assert not torch.equal(first, others)


# What is asked for wrongly.

WRONG: Mapping[str, tuple[Callable[[], Any], str]] = {
    "float tokens": (
        lambda: twin(small("gpt-2"))(torch.zeros(2, 7)),
        r"tokens must be whole numbers of shape \(b, s\) and type torch.long, got shape \(2, 7\)",
    ),
    "too many tokens": (
        lambda: twin(small("gpt-2"))(drawn((1, 8), 11)),
        "tokens has 8 tokens, and there are positions for l = 7",
    ),
    "too long a source": (
        lambda: twin(small("transformer-base"))(drawn((1, 3), 11), drawn((1, 6), 11)),
        "source has 6 tokens, and there are positions for e = 5",
    ),
    "no source": (
        lambda: twin(small("transformer-base"))(drawn((2, 3), 11)),
        r"the encoder needs a source of shape \(2, e\), got none",
    ),
    "a source of another batch": (
        lambda: twin(small("transformer-base")).generate(drawn((2, 3), 11), 1, drawn((1, 5), 11)),
        r"the encoder needs a source of shape \(2, e\), got \(1, 5\)",
    ),
    "towers": (
        lambda: twin(small("simpletron-matching"))(drawn((2, 7), 11)),
        r"tokens are \(b, 2, s\) and came as \(2, 7\)",
    ),
    "too many new tokens": (
        lambda: twin(small("gpt-2")).generate(drawn((1, 3), 11), 6),
        "length has 8 tokens, and there are positions for l = 7",
    ),
    "no head": (
        lambda: twin(small("bert-base")).loss(drawn((1, 3), 11), drawn((1, 3), 11)),
        "bert-base has no head, so it has no scores and no loss: a plain call returns the rows",
    ),
    "too few targets": (
        lambda: twin(small("gpt-2")).loss(drawn((2, 4), 11), drawn((2, 3), 11)),
        r"gpt-2: targets are \(2, 4\), one for each row, and came as \(2, 3\)",
    ),
    "implementation": (
        lambda: twin(small("gpt-2"), implementation="spda"),
        "no mixer of gpt-2 has an implementation 'spda': expected one of explicit, sdpa",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_refused_in_a_sentence(case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises(TwinError, match=message):
        call()


def test_a_full_decoding_is_refused() -> None:
    net = twin(small("gpt-2")).eval()
    decoding = net.start(1, 2)
    for token in drawn((2, 1), 11):
        net.step(token, decoding)
    with pytest.raises(TwinError, match="room for 2 tokens, and all have been read: start with"):
        net.step(drawn((1,), 11), decoding)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SizeError, match="d/n"):
        twin(small("gpt-2"), {"d": 7})
    with pytest.raises(SizeError, match="f of this network is fixed by other sizes"):
        twin(small("gpt-2"), {"f": 7})


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gpt-2", "transformer-base"])
def test_a_twin_is_the_same_on_a_gpu(name: str) -> None:
    network = small(name)
    here, there = (twin(network, dtype=torch.float64, device=d).eval() for d in ("cpu", "cuda"))
    there.load_state_dict(here.state_dict())
    data = given(network.choices, 2)
    data.pop("targets")
    moved = {name: value.cuda() for name, value in data.items()}
    torch.testing.assert_close(there(**moved).cpu(), here(**data), atol=1e-10, rtol=0)
    prompt = {**moved, "prompt": moved["tokens"][:, :2]}
    prompt.pop("tokens")
    found = there.generate(new=4, **prompt)
    source = data.get("source")
    assert torch.equal(found.cpu(), here.generate(data["tokens"][:, :2], 4, source))
