"""The twin of a network that was read as blocks: a module for each mixer and each part.

    net = twin(network(huggingface.read(Path("config.json"))), {"l": 64})

Mixers come from profiler.modules, parts from `modules.py`; the order of a layer's parts is that of
costmodel.networks.schedule. Names of parameters are places and the names in the equations, such as
`layers.0.sublayers.1.part.W_gate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from costmodel.networks.blocks import Block, Stack, Sublayer, Use
from costmodel.networks.network import Network
from costmodel.networks.part_costs import part_sizes
from profiler.modules.registry import build, implementations, without_token
from profiler.networks.decoding import Decoding, Generating
from profiler.networks.layers import DROPOUT
from profiler.networks.modules import Part, TwinError
from profiler.networks.parts import loss_of_scores


class Making:
    """Makes the modules of a network's parts, each with numbers of its own."""

    def __init__(
        self, sizes: Mapping[str, int], implementation: str | None, device: torch.device,
        dtype: torch.dtype, seed: int,
    ) -> None:  # fmt: skip
        """`sizes`: all sizes of the network; `implementation`: the name of the implementation to
        take of mixers that have one of that name; `seed`: of the parameters' random numbers."""
        self.sizes, self.implementation, self.seed = sizes, implementation, seed
        self.device, self.dtype = device, dtype
        self.mixers = 0
        self.given: dict[str, nn.Parameter] = {}

    def __call__(self, use: Use | None) -> nn.Module | None:
        """Make the PyTorch module of a part of a network: dropout, a mixer or another part; None
        for None. Parameters of a table are noted, since later parts may share them."""
        if use is None:
            return None
        if use.regularises:
            return nn.Dropout(DROPOUT)
        if use.mixer.group != "part of a network":
            return self._mixer(use)
        made = Part(use, self.sizes, self.given, {"device": self.device, "dtype": self.dtype})
        if use.table:
            self.given |= dict(made.named_parameters())
        return made

    def _mixer(self, use: Use) -> nn.Module:
        """Make the module of a mixer, by the chosen implementation or else the mixer's first, with
        a seed of its own; `stepless` of the module says why it mixes no new token, "" if it
        does."""
        known = implementations(use.mixer)
        first = next(iter(known.values()))
        chosen = known.get(self.implementation or "", first)
        self.mixers += 1
        made = build(
            chosen, part_sizes(use, self.sizes), device=self.device, dtype=self.dtype,
            seed=self.seed * 10_000 + self.mixers,
        )  # fmt: skip
        made.stepless = without_token(use.mixer, chosen)  # type: ignore[assignment]  # a str
        return made


class Place(nn.Module):
    """A sublayer: a part with what stands around it, None where nothing does."""

    def __init__(self, sublayer: Sublayer, making: Making) -> None:
        """Make the modules of a sublayer: its part, and what stands around it (norms, dropout,
        residual sum)."""
        super().__init__()
        self.beside = sublayer.beside
        self.before = making(sublayer.before)
        self.part: Any = making(sublayer.part)
        self.out = making(sublayer.out)
        self.dropout = making(sublayer.dropout)
        self.residual: Any = making(sublayer.residual)
        self.after = making(sublayer.after)


def through(module: nn.Module | None, rows: Tensor) -> Tensor:
    """Rows through a module, unchanged through None."""
    found: Tensor = rows if module is None else module(rows)
    return found


class Layer(nn.Module):
    """A layer: its sublayers, in order."""

    def __init__(self, block: Block, making: Making) -> None:
        super().__init__()
        self.sublayers = nn.ModuleList(Place(one, making) for one in block.sublayers)

    @property
    def places(self) -> list[Place]:
        """The sublayers."""
        return [one for one in self.sublayers if isinstance(one, Place)]

    def start(self, batch: int, length: int) -> list[Any]:
        """The state of each sublayer before the first token, None of a part without one."""
        parts: list[Any] = [place.part for place in self.places]
        return [None if isinstance(p, Part) else p.initial_state(batch, length) for p in parts]

    def forward(self, x: Tensor, held: list[Any] | None = None) -> Tensor:
        """Run the layer's sublayers, each on the sum so far or, if it is `beside` the one before,
        on the same rows as that one: on whole sequences x (b, s, d), or, with the states `held` of
        its sublayers, on one further token (b, 1, d); the output has the shape of x."""
        stream = start = entry = x
        for k, place in enumerate(self.places):
            if not place.beside:
                start = entry = stream
            if place.before is not None:
                entry = place.before(start)
            if held is None or held[k] is None:
                out = place.part(entry)
            else:
                out = place.part.step(entry.squeeze(1), held[k]).unsqueeze(1)
            out = through(place.dropout, through(place.out, out))
            stream = through(place.after, place.residual(stream, out))
        return stream


class BlockTwin(Generating):
    """A decoder as a module, of the blocks of its description.

    Attributes:
        name: the network's name.
        sizes: letter -> every size.
    """

    def __init__(self, network: Network, making: Making) -> None:
        """Make the modules of a decoder, layer by layer, without its loss. TwinError for a network
        of several stacks or towers, or a part without a module."""
        super().__init__()
        about = network.described
        if len(about.stacks) > 1 or about.towers > 1:
            raise TwinError(f"{network.name}: a twin of blocks has one stack, not several")
        self.name, self.sizes = network.name, dict(making.sizes)
        stack: Stack = about.decoder
        self.entry = nn.ModuleList(made for use in stack.entry if (made := making(use)))
        number = self.sizes["L"]
        self.layers = nn.ModuleList(
            Layer(stack.blocks[k % len(stack.blocks)], making) for k in range(number)
        )
        self.end = nn.ModuleList(made for use in stack.end if (made := making(use)))
        self.scores = about.head == "vocabulary"
        ending = [use for use in about.ending if use.label != "loss"]
        self.ending = nn.ModuleList(made for use in ending if (made := making(use)))

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores (b, s, u) for tokens (b, s), numbers below u; without a head rows (b, s, d), or
        the pooler's row (b, 1, d)."""
        self.require(tokens, "tokens")
        return self._through(tokens, 0, None)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy of targets (b, s); TwinError without a head."""
        if not self.scores:
            raise TwinError(f"{self.name} has no head, and so no cross-entropy")
        return loss_of_scores(self(tokens), targets, smoothed=False)

    def start(self, batch: int, length: int, source: Tensor | None = None) -> Decoding:
        """The state of the twin before the first token, with room for `length` tokens; TwinError
        for a mixer that mixes no new token, a network without a head, or a `source`, which only an
        encoder reads."""
        if source is not None or not self.scores:
            lacks = "encoder" if self.scores else "head: it generates no tokens"
            raise TwinError(f"{self.name} has no {lacks}")
        for module in self.modules():
            if why := getattr(module, "stepless", ""):
                raise TwinError(f"{self.name} generates no tokens: {why}")
        layers: Any = self.layers
        return Decoding([layer.start(batch, length) for layer in layers], length)

    def step(self, tokens_t: Tensor, decoding: Decoding) -> Tensor:
        """Read one further token (b,) of each sequence: the scores (b, u) of the next token."""
        decoding.require_room()
        found = self._through(tokens_t.unsqueeze(1), decoding.position, decoding.held)
        decoding.position += 1
        return found.squeeze(1)

    def _through(self, tokens: Tensor, first: int, held: list[list[Any]] | None) -> Tensor:
        """Run tokens (b, s), the first at position `first`, through all parts: scores or rows (b,
        s, width). `held`: the states of each layer, for one further token; None for whole
        sequences."""
        x = tokens
        for part in self.entry:
            x = part(x, first) if isinstance(part, Part) else part(x)
        for k, layer in enumerate(self.layers):
            x = layer(x, None if held is None else held[k])
        for part in (*self.end, *self.ending):
            x = part(x)
        return x
