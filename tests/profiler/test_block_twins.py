"""Do the twins of architectures that a configuration describes hold, compute, learn and generate as
the blocks say?

The configurations and the parameters of their classes are those of `tests.models.drawn`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from costmodel import networks
from costmodel.language.equations import Mixer
from costmodel.networks import huggingface
from costmodel.networks.blocks import Use
from costmodel.networks.network import Network, network
from profiler.counting.dispatch import count_dispatch
from profiler.networks.twin import Twin, TwinError, twin
from tests.models import equal_outputs
from tests.models.drawn import FILE

RECORDED = [one for one in json.loads(FILE.read_text(encoding="utf-8")) if len(one["config"]) > 1]
FIRST = {one["config"]["model_type"]: one for one in reversed(RECORDED)}
"""Type of model -> its first drawn configuration."""


def read(folder: Path, config: Any) -> Network:
    """The network of a configuration."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return network(huggingface.read(path))


@cache
def first(kind: str) -> Network:
    """The network of a type's first drawn configuration."""
    with TemporaryDirectory() as folder:
        return read(Path(folder), FIRST[kind]["config"])


def tokens_of(net: Any, length: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(net.sizes["u"], (2, length), generator=generator)


def built(net: Network, sizes: Mapping[str, int], **options: Any) -> Twin | None:
    """The twin of a network; None if a part has no module."""
    try:
        return twin(net, sizes, **options)
    except TwinError as why:
        if not re.search("no module computes the part", str(why)):
            raise
        return None


def test_twins_of_all_types_hold_as_many_parameters_as_the_classes() -> None:
    """But for types whose every parameter is read below."""
    twins = 0
    for kind, one in FIRST.items():
        if kind in EQUAL:
            continue
        if (net := built(first(kind), {"l": 8}, device="meta")) is not None:
            assert sum(p.numel() for p in net.parameters()) == one["parameters"], kind
            twins += 1
    assert twins > 30


def parts_of(net: Network) -> set[str]:
    """The parts of a network with their arguments, and its mixers with their options."""
    named = {
        f"{use.mixer.base}+{'+'.join(use.mixer.options)} {dict(use.mixer.made_with)}"
        for use in net.described.parts()
    }
    places = {
        " ".join(str(one is not None) for one in s.around) + str(s.beside)
        for block in net.described.decoder.blocks for s in block.sublayers
    }  # fmt: skip
    return named | places


def different() -> Iterator[tuple[str, Network, Twin]]:
    """Types with a small configuration and a twin in float64, but for those that bring no part that
    another type has not."""
    used: set[str] = set()
    for kind, one in FIRST.items():
        if one["parameters"] >= 10**6:
            continue
        made = first(kind)
        if (parts := parts_of(made)) <= used:
            continue
        sizes = {"l": 8, "e": 5} if made.described.kind == "encoder-decoder" else {"l": 8}
        if (net := built(made, sizes, dtype=torch.float64)) is not None:
            used |= parts
            yield kind, made, net.eval()


def test_twins_learn_and_read_token_by_token_what_they_read_at_once() -> None:
    """Every part with every argument that a type has, every mixer with its options."""
    ran = 0
    for kind, made, net in different():
        tokens = tokens_of(net)
        source = tokens[:, :5] if net.encoder is not None else None
        if net.encoder is None and "e" in made.described.sizes:  # rows of an image
            source = torch.linspace(-1, 1, 10 * net.sizes["d"], dtype=torch.float64)
            source = source.reshape(2, 5, -1)
            with pytest.raises(TwinError, match="cross-attention layers need a source"):
                net(tokens)
        if made.described.kind == "encoder":
            with pytest.raises(TwinError, match="generates no tokens"):
                net.start(2, 7)
        else:
            scores, decoding = net(tokens, source), net.start(2, 7, source)
            steps = torch.stack([net.step(tokens[:, i], decoding) for i in range(7)], 1)
            # float64, sums of some dozen terms in other orders through up to nine layers
            torch.testing.assert_close(steps, scores.detach(), atol=1e-9, rtol=0, msg=kind)
        loss = net.loss(tokens[:, :-1], tokens[:, 1:], source)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        learning = ((name, p) for name, p in net.named_parameters() if p.requires_grad)
        lacking = [name for name, p in learning if p.grad is None]
        # no gradient passes the choice of experts, to which `moved` belongs
        assert [name for name in lacking if not name.endswith(".moved")] == [], kind
        ran += 1
    assert ran > 30


LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 11,
}  # fmt: skip

COUNTED: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma2": {"head_dim": 4, "sliding_window": 3},
    "mixtral": {"num_local_experts": 4},
    "starcoder2": {},
}


def read_small(folder: Path, **fields: Any) -> Network:
    return read(folder, {**LLAMA, **fields})


@pytest.mark.parametrize("kind", COUNTED)
def test_what_a_twin_dispatches_is_what_its_blocks_count(tmp_path: Path, kind: str) -> None:
    """Every class of operations of a forward pass with its loss."""
    made = read_small(tmp_path, model_type=kind, **COUNTED[kind])
    net = twin(made, {"l": 7}).eval()
    tokens = tokens_of(net)[:1]
    with torch.no_grad():
        once = count_dispatch(lambda: net.loss(tokens, tokens))
    assert once.complete, once.unknown
    found = once.operations
    dispatched = {k: getattr(found, k) for k in ("mul", "add", "div", "exp")} | dict(found.other)
    counts = made.count("training", "strict,dense,safe-softmax").at(**{**net.sizes, "l": 7})
    counted = dict(counts.by_class())
    for name, number in (counts.once.by_class() if counts.once else {}).items():
        counted[name] = counted.get(name, 0) + number
    assert {k: v for k, v in dispatched.items() if v} == {k: v for k, v in counted.items() if v}


def test_a_gate_opens_layers_to_the_rows_of_an_image() -> None:
    net = twin(first("mllama_text_model"), {"l": 7}, dtype=torch.float64).eval()
    tokens, rows = tokens_of(net), torch.ones(2, 5, net.sizes["d"], dtype=torch.float64)
    gates = [value for name, value in net.named_parameters() if name.endswith("gate")]
    with torch.no_grad():
        assert not torch.allclose(net(tokens, rows), net(tokens, 2 * rows + tokens[:, :1, None]))
        for gate in gates:
            gate.zero_()
        assert torch.equal(net(tokens, rows), net(tokens, 2 * rows))


def test_generation_is_greedy_decoding(tmp_path: Path) -> None:
    net = twin(read_small(tmp_path), {"l": 9}, dtype=torch.float64)
    expected = prompt = tokens_of(net, 3)
    found = net.generate(prompt, 4)
    with torch.no_grad():
        for _ in range(4):
            scores = net.eval()(expected)[:, -1]
            expected = torch.cat([expected, scores.argmax(-1, keepdim=True)], 1)
    assert torch.equal(found, expected)


def test_tied_heads_are_one_parameter_and_dropout_acts_in_training(tmp_path: Path) -> None:
    one = twin(read_small(tmp_path, tie_word_embeddings=True), {"l": 8})
    assert one.ending[0].E is one.stack.entry[0].E
    dropped = read_small(tmp_path, model_type="seed_oss", residual_dropout=0.1, head_dim=2)
    net = twin(dropped, {"l": 8})
    assert not torch.equal(net(tokens_of(net)), net(tokens_of(net)))
    assert torch.equal(net.eval()(tokens_of(net)), net(tokens_of(net)))


def test_a_tied_head_leaves_a_mixer_its_parameter_of_the_same_name() -> None:
    sizes = {"L": 2, "d": 12, "n": 2, "f": 8, "u": 11, "l": 8, "r": 4}
    made = networks.model("gpt-2", mixers=("linformer",), sizes=sizes)
    net = twin(made, {})
    assert net(tokens_of(net, 8)).shape == (2, 8, 11)
    assert sum(p.numel() for p in net.parameters()) == made.parameters().at(l=8)


def test_what_a_twin_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    made = read_small(tmp_path)
    stack = made.described.decoder
    odd = Use("odd", unknown_part())
    other = replace(made.described, stacks=(replace(stack, entry=(odd,)),))
    with pytest.raises(
        TwinError, match="odd: no module computes the part 'odd-part': expected one of look-up,"
    ):
        twin(network(other))
    net = twin(read_small(tmp_path, architectures=["LlamaModel"]), {"l": 8})
    assert net(tokens_of(net)).shape == (2, 7, 12)
    with pytest.raises(TwinError, match="has no head"):
        net.loss(tokens_of(net), tokens_of(net))
    with pytest.raises(TwinError, match="has no head over the vocabulary, so it generates"):
        net.generate(tokens_of(net), 1)
    pooled = {**FIRST["rembert"]["config"], "architectures": ["RemBertModel"]}
    first_row = read(tmp_path, pooled)
    bare = twin(first_row, {"l": 8})
    assert bare(tokens_of(bare)).shape == (2, bare.sizes["d"])
    learned = read(tmp_path, {**FIRST["gpt_neo"]["config"], "max_position_embeddings": 9})
    table = twin(learned)
    with pytest.raises(TwinError, match="tokens has 10 tokens, and there are positions for l = 9"):
        table(tokens_of(table, 10))


def unknown_part() -> Mixer:
    """A part under a name that no module has."""
    found = Mixer("odd-part", group="part of a network")
    l, d = found.sizes("l d")
    x, y = found.input("x", l, d), found.output("y", l, d)
    with found.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        y[i, b] = x[i, b] + 1
    return found


def test_equal_seeds_give_equal_parameters(tmp_path: Path) -> None:
    made = read_small(tmp_path)
    one, again, other = (twin(made, {"l": 8}, seed=seed) for seed in (1, 1, 2))

    def values(net: nn.Module) -> Tensor:
        return torch.cat([p.flatten() for p in net.parameters()])

    assert torch.equal(values(one), values(again))
    assert not torch.equal(values(one), values(other))


EQUAL = {
    one["config"]["model_type"]: one
    for one in json.loads(equal_outputs.FILE.read_text(encoding="utf-8"))
}


@pytest.mark.grid(3)
@pytest.mark.parametrize("kind", EQUAL)
def test_a_twin_computes_what_the_class_of_transformers_computes(kind: str, tmp_path: Path) -> None:
    """Every parameter of the class is one of the twin, and the scores of the last token equal the
    recorded ones in float64."""
    one = EQUAL[kind]
    made = read(tmp_path, one["config"])
    net = twin(made, {"l": equal_outputs.LENGTH}, dtype=torch.float64).eval()
    theirs = {name: equal_outputs.drawn(name, shape) for name, shape in one["parameters"].items()}
    equal_outputs.load(net, replace(made.described, model_type=kind), theirs)
    assert sum(p.numel() for p in net.parameters()) == made.parameters().at(**made.sizes)
    with torch.no_grad():
        tokens, image = (
            equal_outputs.tokens_of(net.sizes["u"]),
            equal_outputs.image_of(one["config"]),
        )
        scores = net(tokens, image)[:, -1]
    expected = torch.tensor(one["scores"], dtype=torch.float64)
    assert expected.std() > 0.1
    # float64, sums of some dozen terms in other orders through up to five layers
    torch.testing.assert_close(scores, expected, atol=1e-11, rtol=0)
