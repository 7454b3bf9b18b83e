"""The layers of a network, and their stacks, as PyTorch modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from costmodel.language.equations import Mixer
from costmodel.mixers.load import mixer as mixer_of
from costmodel.networks.choices import Choices
from costmodel.networks.from_choices import own_sizes
from profiler.modules.registry import Implementation, build, implementations, without_token
from profiler.networks.parts import Dense, Embedding, LayerNorm, Made

Sublayer = Callable[[Tensor], Tensor]

DROPOUT = 0.1
"""The dropout probability of a twin in training. Networks state only whether they have dropout,
without its probability."""


@dataclass(frozen=True)
class Making:
    """The arguments of a twin (`twin.twin`), from which its parts are made; `sizes` are all sizes
    of the network, derived sizes included."""

    choices: Choices
    sizes: Mapping[str, int]
    implementation: str | None
    device: torch.device
    dtype: torch.dtype
    seed: int

    @property
    def made(self) -> Made:
        """`device` and `dtype` as keyword arguments."""
        return {"device": self.device, "dtype": self.dtype}

    def norm(self) -> LayerNorm:
        """A layer norm over rows of width d."""
        c = self.choices
        return LayerNorm(self.sizes["d"], bias=c.norm_bias, eps=c.norm_eps, made=self.made)

    def dropout(self) -> nn.Module:
        """The dropout after a sublayer; the identity if the network has none."""
        return nn.Dropout(DROPOUT) if self.choices.dropout else nn.Identity()

    def dense(self, d: int, f: int, activation: str) -> Dense:
        """A linear map (d to f) with activation, and a bias if the network has biases."""
        return Dense(d, f, made=self.made, activation=activation, bias=self.choices.biases)

    def mixer(self, name: str, number: int, length: int) -> nn.Module:
        """Make the module of a mixer for `length` tokens; `number` varies the seed of its
        weights."""
        mixer = mixer_of(name)
        own = {**self.sizes, **own_sizes(self.choices, mixer), "l": length}
        sizes = {letter: own[letter] for letter in dict.fromkeys(("l", *mixer.letters))}
        return build(
            self._implementation(mixer), sizes, device=self.device, dtype=self.dtype,
            seed=self.seed * 10_000 + number,  # numbers stay below 10,000: no two seeds are equal
        )  # fmt: skip

    def implementations(self) -> tuple[str, ...]:
        """The names of all implementations of the network's mixers."""
        c = self.choices
        both = (*c.encoder_mixers, c.cross) if c.kind == "encoder-decoder" else ()
        found = [name for mixer in (*c.mixers, *both) for name in implementations(mixer_of(mixer))]
        return tuple(dict.fromkeys(found))

    def stepless(self, name: str) -> str:
        """Why a mixer cannot mix one new token; "" if it can."""
        mixer = mixer_of(name)
        return without_token(mixer, self._implementation(mixer))

    def _implementation(self, mixer: Mixer) -> Implementation:
        """The implementation of a mixer that the twin takes: that of the chosen name, else the
        first of the chosen form, else the first."""
        known = implementations(mixer)
        if self.implementation in known:
            return known[self.implementation]
        form = self.choices.form
        return next((i for i in known.values() if i.form == form), next(iter(known.values())))


class Layer(nn.Module):
    """One layer: a mixer, a mixer `cross` that reads an encoder's output (or None), and an FFN if
    the network has FFNs."""

    def __init__(self, making: Making, mixer: nn.Module, cross: nn.Module | None) -> None:
        """Make a layer around the module `mixer`, with FFN, norms and dropout as chosen; `cross`:
        the mixer that reads an encoder's output, None without an encoder."""
        super().__init__()
        c, d = making.choices, making.sizes["d"]
        self.mixer: Any = mixer
        self.cross: Any = cross
        self.ffn: nn.Module | None = None
        if c.ffn:
            f = making.sizes["f"]
            parts = (making.dense(d, f, c.activation), making.dense(f, d, "none"))
            self.ffn = nn.Sequential(*parts)
        number = 1 + (cross is not None) + c.ffn
        self.norm = c.norm
        self.norms = nn.ModuleList(making.norm() for _ in range(number if c.norm != "none" else 0))
        self.dropout = making.dropout()

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Whole sequences, (b, s, d) to (b, s, d); `memory` (b, e, d) is an encoder's output."""
        return self._through(x, self.mixer, lambda rows: self.cross(rows, memory))

    def start(self, batch: int, length: int, memory: Tensor | None) -> list[Any]:
        """The states of the layer's mixers before the first token, with room for `length` tokens;
        `memory` (b, e, d) is an encoder's output."""
        held = [self.mixer.initial_state(batch, length)]
        if self.cross is not None:
            held.append(self.cross.initial_state(batch, length, memory))
        return held

    def step(self, x_t: Tensor, held: list[Any]) -> Tensor:
        """One further token, (b, d) to (b, d), which moves on `held`, the state of each mixer."""
        return self._through(
            x_t,
            lambda row: self.mixer.step(row, held[0]),
            lambda row: self.cross.step(row, held[1]),
        )

    def _through(self, x: Tensor, mix: Sublayer, read: Sublayer) -> Tensor:
        """Run rows x (..., d) through the sublayers, each with its residual connection and its
        norm: to the sublayer's input ("pre"), or to the sum of input and output ("post"). `mix`
        stands for the mixer, and `read` for `cross`."""
        sublayers = [mix]
        if self.cross is not None:
            sublayers.append(read)
        if self.ffn is not None:
            sublayers.append(self.ffn)
        for k, sublayer in enumerate(sublayers):
            inside = self.norms[k](x) if self.norm == "pre" else x
            x = x + self.dropout(sublayer(inside))
            if self.norm == "post":
                x = self.norms[k](x)
        return x


class Stack(nn.Module):
    """An encoder or a decoder: embedding, layers, and a norm at the end if the network is pre-norm.

    Args:
        mixers: the names of the mixers, which the layers take in turns.
        length: the letter of the sequence length, "e" of an encoder and "l" of a decoder.
        cross: the name of the mixer with which a decoder's layers read an encoder's output, or "".
        E: an embedding matrix (u, d) to share; by default a new one.
    """

    def __init__(
        self,
        making: Making,
        mixers: tuple[str, ...],
        length: str,
        *,
        cross: str = "",
        E: nn.Parameter | None = None,
    ) -> None:
        """Make the embedding, the layers, whose mixers `mixers` gives in turn, and the last norm.
        `length`: the letter of the most tokens, "e" for an encoder; `cross`: the mixer that reads
        an encoder, "" for none; `E` (u, d): an embedding to share, None for a new one."""
        super().__init__()
        c, sizes = making.choices, making.sizes
        self.stepless = {name: why for name in mixers if (why := making.stepless(name))}
        extents = {"u": sizes["u"], "l": sizes[length], "d": sizes["d"]}
        self.embedding = Embedding(c, **extents, made=making.made, E=E)
        self.dropout = making.dropout()
        self.layers = nn.ModuleList()
        for k in range(sizes["L"]):
            # 3 numbers a layer: a decoder's mixer 0, its cross mixer 1, an encoder's mixer 2
            number = 3 * k + (0 if length == "l" else 2)
            mixer = making.mixer(mixers[k % len(mixers)], number, sizes[length])
            reader = making.mixer(cross, number + 1, sizes[length]) if cross else None
            self.layers.append(Layer(making, mixer, reader))
        self.norm = making.norm() if c.norm == "pre" else nn.Identity()

    def forward(
        self, tokens: Tensor, memory: Tensor | None = None, segments: Tensor | None = None
    ) -> Tensor:
        """Run token numbers and segments (b, s) through the stack, to rows (b, s, d); `memory` is
        an encoder's output."""
        x = self.dropout(self.embedding(tokens, segments))
        for layer in self.layers:
            x = layer(x, memory)
        rows: Tensor = self.norm(x)
        return rows

    def step(self, tokens_t: Tensor, position: int, held: list[Any]) -> Tensor:
        """Run one token (b,) of each sequence, after `position` tokens, through the stack, to its
        row (b, d); `held` has the states of each layer."""
        x = self.dropout(self.embedding.at(tokens_t, position))
        for layer, own in zip(self.layers, held, strict=True):
            x = layer.step(x, own)  # type: ignore[operator]  # a Layer
        row: Tensor = self.norm(x)
        return row
