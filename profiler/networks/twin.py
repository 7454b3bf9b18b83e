"""A twin: a whole network of costmodel.networks as a PyTorch module.

    from costmodel.networks import model

    net = twin(model("gpt-2"), {"L": 2, "d": 64, "n": 2, "u": 100})
    net.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    net.generate(tokens[:, :4], new=8)

The modules are those of the network's description by stacks, blocks and parts, whether choices or a
published configuration made it. Mixers come from profiler.modules, layers from `layers.py`, other
parts from `modules.py`. Names of parameters are places and the names in the equations, such as
`stack.layers.0.sublayers.1.part.W_gate`. Tokens are numbers from 0 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from costmodel.networks.network import Network
from costmodel.program.chosen_sizes import default
from costmodel.symbolic.polynomial import Poly
from profiler.modules.registry import implementations
from profiler.networks.layers import Making, Stack, mixes
from profiler.networks.modules import TwinError as TwinError, loss_of_probabilities, loss_of_scores


@dataclass
class Decoding:
    """The state of a twin between tokens."""

    held: list[list[Any]]
    """For each layer the states of its sublayers."""
    length: int
    """The number of tokens for which there is room."""
    position: int = 0
    """The number of tokens read so far."""


class Twin(nn.Module):
    """A network as a module; `costmodel.networks` defines its parts and their costs.

    Attributes:
        name, head: the network's name, and what its head scores (`Description.head`).
        sizes: letter -> every size, derived sizes included.
    """

    def __init__(self, network: Network, making: Making) -> None:
        """Make the modules of a network by `making`: the encoder (if there is one), the decoder or
        only stack, and the parts after the layers. `probabilities` and `smoothed` keep whether a
        softmax, and a loss with smoothed labels, end the network. TwinError for a part without a
        module."""
        super().__init__()
        about = network.described
        self.name, self.sizes, self.towers = network.name, dict(making.sizes), about.towers
        self.head = about.head
        *before, last = about.stacks
        self.encoder = Stack(before[0], making) if before else None
        self.stack = Stack(last, making)
        ending = [use for use in about.ending if use.label != "loss"]
        if self.head == "vocabulary":  # no loss reads the row of a pooler beside scores
            self.pooler = nn.ModuleList(
                made for use in ending if use.label == "pooler" and (made := making(use))
            )
            ending = [use for use in ending if use.label != "pooler"]
        self.ending = nn.ModuleList(made for use in ending if (made := making(use)))
        self.probabilities = about.ends_with("softmax") is not None
        loss = about.ends_with("loss")
        self.smoothed = loss is not None and bool(loss.mixer.made_with.get("smoothed"))

    def hidden(
        self, tokens: Tensor, source: Tensor | None = None, segments: Tensor | None = None
    ) -> Tensor:
        """The last layer's output (b, s, d) for tokens (numbers below u) and segments (b, s);
        `source`: in an encoder-decoder the encoder's tokens (b, e)."""
        self._require_tokens(tokens, "tokens", self.stack)
        memory = self._encoded(source, tokens.shape[0])
        rows: Tensor = self.stack(tokens, memory, segments)
        return rows

    def _encoded(self, source: Tensor | None, batch: int) -> Tensor | None:
        """The encoder's output (b, e, d) for its tokens `source` (b, e); without an encoder,
        `source` itself: rows (b, e, d), such as those of an image, or None.

        Raises:
            TwinError: an encoder without a source for each of `batch` sequences, or layers that
                read rows and no source.
        """
        if self.encoder is None:
            layers: Any = self.stack.layers
            if source is None and any(place.crosses for one in layers for place in one.places):
                raise TwinError(
                    f"cross-attention layers need a source of shape ({batch}, e, d), got none"
                )
            return source
        if source is None or source.shape[0] != batch:
            got = "none" if source is None else tuple(source.shape)
            raise TwinError(f"the encoder needs a source of shape ({batch}, e), got {got}")
        self._require_tokens(source, "source", self.encoder)
        memory: Tensor = self.encoder(source)
        return memory

    def forward(
        self, tokens: Tensor, source: Tensor | None = None, segments: Tensor | None = None
    ) -> Tensor:
        """The network's result for whole sequences.

        Args:
            tokens: (b, s) numbers below u; (b, towers, s) if a head compares several sequences.
            source: (b, e), the tokens of the encoder, if there is one; else the rows (b, e, d) of
                an image, where layers of cross-attention read some.
            segments: the segment of each token, in the shape of tokens; by default all are in the
                first. A network without segments does not read them.

        Returns:
            Scores (b, s, u) or (b, z), or probabilities if the network ends in a softmax;
            without a head, the pooler's row (b, d), or all rows (b, s, d) without a pooler.

        Raises:
            TwinError: wrong shapes of tokens or source, or sequences longer than the positions.
        """
        if any(part.of_first_row for part in self.ending):
            return self._ended(self.first_rows(tokens, segments))
        return self._ended(self.hidden(tokens, source, segments))

    def first_rows(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        """The output rows at the first position, side by side over towers (sequences that pass the
        same layers): (b, towers * d); TwinError unless the tokens of several towers are (b, towers,
        s), as their segments are."""
        towers = self.towers
        if towers == 1:
            return self.hidden(tokens, None, segments)[:, 0]
        if tokens.dim() != 3 or tokens.shape[1] != towers:
            shape = tuple(tokens.shape)
            raise TwinError(f"{self.name}: tokens are (b, {towers}, s) and came as {shape}")
        segments = None if segments is None else segments.flatten(0, 1)
        rows = self.hidden(tokens.flatten(0, 1), None, segments)
        return rows[:, 0].reshape(tokens.shape[0], -1)

    def _ended(self, x: Tensor) -> Tensor:
        for part in self.ending:
            x = part(x)
        return x

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        source: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """The mean cross-entropy of targets (b, s), or (b,) for a head over classes, of the scores
        for tokens and segments, (b, s) or (b, towers, s), and an encoder's tokens `source` (b, e).
        TwinError: no head, targets of another shape, or inputs that the network refuses."""
        if self.head == "none":
            raise TwinError(
                f"{self.name} has no head, so it has no scores and no loss: a plain call returns "
                "the rows of its last layer"
            )
        given = self(tokens, source, segments)
        if targets.shape != given.shape[:-1]:
            wanted = f"targets are {tuple(given.shape[:-1])}, one for each row"
            raise TwinError(f"{self.name}: {wanted}, and came as {tuple(targets.shape)}")
        if self.probabilities:
            return loss_of_probabilities(given, targets)
        return loss_of_scores(given, targets, smoothed=self.smoothed)

    def start(self, batch: int, length: int, source: Tensor | None = None) -> Decoding:
        """Make the state before the first token, with room for `length` tokens, after an encoder
        (if the network has one) has read `source`.

        Raises:
            TwinError: a network that generates no tokens, with the mixer's reason, or a `length`
                beyond the positions.
        """
        if self.head != "vocabulary":
            raise TwinError(
                f"{self.name} has no head over the vocabulary, so it generates no tokens: call it "
                "on whole sequences"
            )
        for module in self.stack.modules():
            if why := getattr(module, "stepless", ""):
                raise TwinError(f"{self.name} generates no tokens: {why}")
        self._require_length(length, "length", self.stack)
        return Decoding(self.stack.start(batch, length, self._encoded(source, batch)), length)

    def step(self, tokens_t: Tensor, decoding: Decoding) -> Tensor:
        """Read one further token (b,) of each sequence: the scores (b, u) of the next token. Raises
        TwinError: more tokens than the `length` of `start`."""
        if decoding.position >= decoding.length:
            raise TwinError(
                f"start(length={decoding.length}) made room for {decoding.length} tokens, and all "
                "have been read: start with a greater length"
            )
        x = self.stack.step(tokens_t, decoding.position, decoding.held)
        decoding.position += 1
        return self._ended(x.squeeze(1))

    @torch.no_grad()
    def generate(self, prompt: Tensor, new: int, source: Tensor | None = None) -> Tensor:
        """Decode greedily: return the prompt (b, p) continued by `new` tokens (0 or more), (b,
        p+new). All tokens pass through the mixers' `step`. `source`: an encoder's tokens (b, e), or
        rows (b, e, d) that layers read. TwinError for a network that generates no tokens, or beyond
        the positions."""
        self._require_tokens(prompt, "the prompt", self.stack)
        was, tokens = self.training, list(prompt.unbind(1))
        self.eval()
        try:
            # the last token is not read; `start` wants room for one token at least
            decoding = self.start(prompt.shape[0], len(tokens) + new - 1 or 1, source)
            for k in range(len(tokens) + new - 1):
                scores = self.step(tokens[k], decoding)
                if k + 1 == len(tokens):
                    tokens.append(scores.argmax(-1))
        finally:
            self.train(was)
        return torch.stack(tokens, 1)

    def _require_tokens(self, tokens: Tensor, what: str, stack: Stack) -> None:
        """Raise a TwinError unless `tokens` are (b, s) of type torch.long, s from 1 to the number
        of positions of a stack; `what` names the tokens in the message."""
        if tokens.dim() != 2 or tokens.shape[1] < 1 or tokens.dtype != torch.long:
            raise TwinError(
                f"{self.name}: {what} must be whole numbers of shape (b, s) and type torch.long, "
                f"got shape {tuple(tokens.shape)} and type {tokens.dtype}"
            )
        self._require_length(tokens.shape[1], what, stack)

    def _require_length(self, length: int, what: str, stack: Stack) -> None:
        """Raise a TwinError if `length` tokens exceed the positions of a stack; `what` names the
        sequence in the message."""
        letter = stack.letter
        if stack.bounded and length > self.sizes[letter]:
            raise TwinError(
                f"{self.name}: {what} has {length} tokens, and there are positions for "
                f"{letter} = {self.sizes[letter]}: make the twin with a greater {letter}"
            )


def all_sizes(network: Network, given: Mapping[str, int] | None = None) -> dict[str, int]:
    """A dict: letter -> every size of a network: given, else the network's own, else the letter's
    default; and the sizes that the network's formulas derive from these. Raises SizeError: a size
    that the network refuses, or a derived size that is a fraction."""
    sizes = network.own.with_given(given or {})
    polys = [use.sizes.get(x, Poly.atom(x)) for use in network.uses for x in use.mixer.letters]
    polys += [poly for use in network.uses for poly in (use.runs, use.copies)]
    # b (sequences) and t (tokens before a new one) are of a call, not of the network
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
        TwinError: an implementation that no mixer of the network has, or a part without a module.
        ValueError: a mixer without a module.
    """
    place = torch.device(device)
    made = all_sizes(network, sizes)
    making = Making(network.uses, made, implementation, place, dtype, seed)
    if implementation is not None:
        mixers = (use.mixer for use in network.uses if mixes(use))
        known = dict.fromkeys(name for mixer in mixers for name in implementations(mixer))
        if implementation not in known:
            raise TwinError(
                f"no mixer of {network.name} has an implementation '{implementation}': expected "
                f"one of {', '.join(known)}"
            )
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.manual_seed(seed)
        return Twin(network, making)
