"""A twin: a whole network of costmodel.networks as a PyTorch module.

    from costmodel.networks import model

    net = twin(model("gpt-2"), {"L": 2, "d": 64, "n": 2, "u": 100})
    net.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    net.generate(tokens[:, :4], new=8)

Mixers come from profiler.modules, layers and other parts from `layers.py` and `parts.py`. Tokens
are numbers from 0 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from costmodel.networks.network import Network
from costmodel.program.chosen_sizes import default
from costmodel.symbolic.polynomial import Poly
from profiler.networks.blocks import BlockTwin, Making as BlockMaking
from profiler.networks.decoding import Decoding, Generating
from profiler.networks.layers import Making, Stack
from profiler.networks.modules import TwinError as TwinError
from profiler.networks.parts import Head, loss_of_probabilities, loss_of_scores


class Twin(Generating):
    """A network as a module; `costmodel.networks` defines its parts and their costs.

    Attributes:
        choices: the network's choices.
        sizes: letter -> every size, derived sizes included.
    """

    def __init__(self, making: Making) -> None:
        """Make the modules of a network: the encoder (if there is one), the decoder or only stack,
        and the parts after the layers."""
        super().__init__()
        c = making.choices
        self.choices, self.name, self.sizes = c, c.name, dict(making.sizes)
        self.encoder = Stack(making, c.encoder_mixers, "e") if c.kind == "encoder-decoder" else None
        shared = None
        if self.encoder is not None and c.shared_vocabulary:
            shared = self.encoder.embedding.E
        cross = c.cross if c.kind == "encoder-decoder" else ""
        self.stack = Stack(making, c.mixers, "l", cross=cross, E=shared)
        self._end(making)

    def _end(self, making: Making) -> None:
        """Make the parts after the layers: pooler (linear map and tanh of the first row), transform
        (linear map and norm before the head), classifier (hidden layers) and head; each is the
        identity (the pooler: None) if the network has none. `towers`: so many sequences pass the
        same layers, and the classifier reads the first row of each, concatenated."""
        c, d, made = making.choices, making.sizes["d"], making.made
        self.pooler = making.dense(d, d, "tanh") if c.pooler else None
        self.transform: nn.Module = nn.Identity()
        if c.transform != "none":
            self.transform = nn.Sequential(making.dense(d, d, c.transform), making.norm())
        self.classifier: nn.Module = nn.Identity()
        self.head: nn.Module = nn.Identity()
        if c.head == "classes":
            # the classifier has hidden layers of f, f / 2, f / 4, ... entries
            widths = [d * c.towers, *(making.sizes["f"] // 2**k for k in range(c.hidden))]
            hidden = (making.dense(a, b, "relu") for a, b in pairwise(widths))
            self.classifier = nn.Sequential(*hidden)
            bias = c.biases or c.head_bias
            self.head = Head(widths[-1], making.sizes["z"], bias=bias, made=made)
        elif c.head == "vocabulary":
            E = self.stack.embedding.E if c.tied else None
            self.head = Head(d, making.sizes["u"], bias=c.head_bias, made=made, E=E)

    def hidden(
        self, tokens: Tensor, source: Tensor | None = None, segments: Tensor | None = None
    ) -> Tensor:
        """The last layer's output (b, s, d) for tokens (b, s) and, in an encoder-decoder, the
        encoder's tokens `source` (b, e)."""
        self.require(tokens, "tokens")
        memory = None
        if self.encoder is not None:
            memory = self._encoded(source, tokens.shape[0])
        rows: Tensor = self.stack(tokens, memory, segments)
        return rows

    def _encoded(self, source: Tensor | None, batch: int) -> Tensor:
        """The encoder's output (b, e, d) for its tokens `source` (b, e); TwinError without a source
        for each of `batch` sequences."""
        assert self.encoder is not None
        if source is None or source.shape[0] != batch:
            raise TwinError(f"an encoder reads a source for each sequence: give ({batch}, e)")
        self.require(source, "source")
        memory: Tensor = self.encoder(source)
        return memory

    def forward(
        self, tokens: Tensor, source: Tensor | None = None, segments: Tensor | None = None
    ) -> Tensor:
        """The network's result for whole sequences.

        Args:
            tokens: (b, s) numbers below u; (b, towers, s) if a classifier compares several
                sequences.
            source: (b, e), the tokens of the encoder, if there is one.
            segments: (b, s), the segment of each token; by default all are in the first.

        Returns:
            Scores (b, s, u) or (b, z), or probabilities if the network ends in a softmax;
            without a head, the pooler's row (b, d), or all rows (b, s, d) without a pooler.

        Raises:
            TwinError: wrong shapes, or sequences longer than the positions.
        """
        c = self.choices
        if c.head == "vocabulary":
            return self._scores(self.hidden(tokens, source, segments))
        if c.head == "none" and self.pooler is None:
            return self.hidden(tokens, source, segments)
        first = self._first(tokens, segments)
        if self.pooler is not None:
            first = self.pooler(first)
        return first if c.head == "none" else self._ended(self.head(self.classifier(first)))

    def _first(self, tokens: Tensor, segments: Tensor | None) -> Tensor:
        """The output rows at the first position, concatenated over towers (sequences that pass the
        same layers): (b, towers * d); TwinError unless the tokens of several towers are (b, towers,
        s)."""
        towers = self.choices.towers
        if towers == 1:
            return self.hidden(tokens, None, segments)[:, 0]
        if tokens.dim() != 3 or tokens.shape[1] != towers:
            shape = tuple(tokens.shape)
            raise TwinError(f"{self.choices.name}: tokens are (b, {towers}, s) and came as {shape}")
        return self.hidden(tokens.flatten(0, 1))[:, 0].reshape(tokens.shape[0], -1)

    def _scores(self, x: Tensor) -> Tensor:
        return self._ended(self.head(self.transform(x)))

    def _ended(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, -1) if self.choices.output == "probabilities" else scores

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        source: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """The mean cross-entropy of targets (b, s), or (b,) for a classifier, of the scores for
        tokens and their segments (b, s), and an encoder's tokens `source` (b, e). Raises TwinError:
        no head, wrong shapes, or sequences longer than the positions."""
        if self.choices.head == "none":
            raise TwinError(f"{self.choices.name} has no head, and so no cross-entropy")
        given = self(tokens, source, segments)
        if self.choices.output == "probabilities":
            return loss_of_probabilities(given, targets)
        return loss_of_scores(given, targets, smoothed=self.choices.smoothing)

    def start(self, batch: int, length: int, source: Tensor | None = None) -> Decoding:
        """Make the state before the first token, with room for `length` tokens, after an encoder
        (if the network has one) has read `source`.

        Raises:
            TwinError: a network that generates no tokens, with the mixer's reason, or a `length`
                beyond the positions.
        """
        c = self.choices
        if c.head != "vocabulary":
            raise TwinError(f"{c.name} has no head over the vocabulary: it generates no tokens")
        for name, reason in self.stack.stepless.items():
            raise TwinError(f"{c.name} generates no tokens: {name}: {reason}")
        self._require_length(length, "length")
        memory = self._encoded(source, batch) if self.encoder is not None else None
        layers: Any = self.stack.layers
        return Decoding([layer.start(batch, length, memory) for layer in layers], length)

    def step(self, tokens_t: Tensor, decoding: Decoding) -> Tensor:
        """Read one further token (b,) of each sequence: the scores (b, u) of the next token. Raises
        TwinError: more tokens than the `length` of `start`."""
        decoding.require_room()
        x = self.stack.step(tokens_t, decoding.position, decoding.held)
        decoding.position += 1
        return self._scores(x)

    def require(self, tokens: Tensor, what: str) -> None:
        """TwinError on `what` unless its tokens are integers (b, s), with s within positions."""
        super().require(tokens, what)
        self._require_length(tokens.shape[1], what, "e" if what == "source" else "l")

    def _require_length(self, length: int, what: str, letter: str = "l") -> None:
        """Raise a TwinError if `length` tokens exceed the positions, whose number is the size
        `letter`; `what` names the sequence in the message."""
        if self.choices.positions != "none" and length > self.sizes[letter]:
            raise TwinError(
                f"{self.choices.name}: {what} has {length} tokens, and there are positions for "
                f"{letter} = {self.sizes[letter]}: make the twin with a greater {letter}"
            )


def all_sizes(network: Network, given: Mapping[str, int] | None = None) -> dict[str, int]:
    """A dict: letter -> every size of a network: given, else the network's own, else the letter's
    default; and the sizes that the network's formulas derive from these. Raises SizeError: a size
    that the network refuses, or a derived size that is a fraction."""
    sizes = network.own.with_given(given or {})
    polys = [use.sizes.get(x, Poly.atom(x)) for use in network.uses for x in use.mixer.letters]
    polys += [poly for use in network.uses for poly in (use.runs, use.copies)]
    for letter in sorted({letter for poly in polys for letter in poly.letters} - {"b", "t"}):
        if letter not in sizes:
            sizes[letter] = default(letter, sizes)
    network.fit(sizes)
    follow = {x: poly.at(sizes) for x, poly in network.described.formulas.items()}
    return sizes | follow


def twin(
    network: Network,
    sizes: Mapping[str, int] | None = None,
    *,
    implementation: str | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Twin:
    """Make a network as a PyTorch module with random parameters, whose number is
    `network.parameters()`.

    Args:
        network: a network of `costmodel.networks`.
        sizes: sizes that replace the network's own; other sizes have their defaults.
        implementation: the implementation of every mixer that has one of this name, such as `sdpa`.
        device: `meta` for shapes without memory.
        seed: equal seeds give equal parameters.

    Raises:
        SizeError: sizes that the network refuses.
        TwinError: an implementation that no mixer of the network has.
        ValueError: a mixer without a module.
    """
    if network.described.choices is None:
        raise TwinError(f"{network.name} was read as blocks: make its `block_twin`")
    place = torch.device(device)
    found = all_sizes(network, sizes)
    making = Making(network.choices, found, implementation, place, dtype, seed)
    if implementation is not None and implementation not in making.implementations():
        known = ", ".join(making.implementations())
        raise TwinError(
            f"no mixer of {network.name} has an implementation '{implementation}': expected one "
            f"of {known}"
        )
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.manual_seed(seed)
        return Twin(making)


def block_twin(
    network: Network,
    sizes: Mapping[str, int] | None = None,
    *,
    implementation: str | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> BlockTwin:
    """Make a decoder as a PyTorch module of its blocks, such as one that was read from a
    configuration; the arguments and errors are those of `twin`, but for a part without a module:
    TwinError."""
    place = torch.device(device)
    making = BlockMaking(all_sizes(network, sizes), implementation, place, dtype, seed)
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.manual_seed(seed)
        return BlockTwin(network, making)
