"""The layers of a network and their stacks as PyTorch modules: one for each mixer and each part.

Mixers come from profiler.modules, parts from `modules.py`; the order of a layer's parts is that of
costmodel.networks.schedule.

A use is a mixer or a part with its options at its place in the network. A layer is a row of
sublayers, each with one mixer or part between norms, and a sum (the residual). `named` holds what
later parts read by name (tokens, embedded tokens, the rows that a sublayer keeps for others), and
as `first` the position of the first token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from costmodel.networks import blocks
from costmodel.networks.blocks import Sublayer, Use
from costmodel.networks.part_costs import part_sizes
from costmodel.questions.parameters import parameters
from profiler.modules.building import build
from profiler.modules.registry import Implementation, NoModule, implementations, without_token
from profiler.networks.modules import COMPUTED, KEPT, Part, no_module

DROPOUT = 0.1
"""The dropout probability of a twin in training. Networks state only whether they have dropout,
without its probability."""


class Making:
    """Makes the modules of a network's parts, each with numbers of its own."""

    def __init__(
        self, uses: Iterable[Use], sizes: Mapping[str, int], implementation: str | None,
        device: torch.device, dtype: torch.dtype, seed: int,
    ) -> None:  # fmt: skip
        """Begin with no module made. `uses` are all parts, and `sizes` all sizes of the network;
        `implementation`: the name of the implementation to take of mixers that have one of that
        name; `seed`: of the parameters' random numbers."""
        self.sizes, self.implementation, self.seed = sizes, implementation, seed
        self.device, self.dtype = device, dtype
        self.mixers = 0  # made so far; the number gives each a seed of its own
        uses = tuple(uses)
        self.names = frozenset[str]().union(*(use.shared for use in uses))
        """The names of all that several parts share (`Use.shared`), such as E of a tied head."""
        self.of_mixers = frozenset[str]().union(*(use.shared for use in uses if mixes(use)))
        """The names in `names` that a mixer shares."""
        self.shared: dict[str, nn.Parameter] = {}  # of `names`, those made so far
        self.sharing = False
        """Whether all parameters are those of a set that layers share."""
        self.sets: dict[str, dict[str, nn.Parameter]] = {}
        """Name of a set of parameters that layers share (`Block.weights`) -> its parameters."""

    def within(self, weights: str) -> Making:
        """This object, but for a layer with the set of parameters `weights`, all of which layers
        with the same set share; itself for ""."""
        if not weights:
            return self
        found = copy(self)
        found.shared, found.sharing = self.sets.setdefault(weights, {}), True
        return found

    def __call__(self, use: Use | None) -> nn.Module | None:
        """Make the module of a part of a network: dropout, a mixer or another part; None for None.
        The parameters of a part with fixed weights need no gradient; a part that is fixed otherwise
        runs without gradients."""
        if use is None:
            return None
        if use.regularises:
            return nn.Dropout(DROPOUT)
        if self.sharing:
            use = replace(use, shared=frozenset(parameters(use.mixer).arrays))
        device = {"device": self.device, "dtype": self.dtype}
        made: nn.Module = (
            self._mixer(use) if mixes(use)
            else Part(use, self.sizes, self.shared, self.names, device)
        )  # fmt: skip
        if use.fixed == "weights":
            made.requires_grad_(False)
        elif use.fixed:
            made.forward = torch.no_grad()(made.forward)
        return made

    def _mixer(self, use: Use) -> nn.Module:
        """Make the module of a mixer, by the chosen implementation, else the first of the part's
        form, else the first, with a seed of its own; `stepless` of the module says why it mixes no
        new token, "" if it does. TwinError for attention of one architecture, which has no module.
        """
        try:
            known = implementations(use.mixer)
        except NoModule:
            if use.mixer.home:  # a user's own mixer, of which the message says what is missing
                raise
            raise no_module(use) from None
        of_form = (one for one in known.values() if one.form == use.form)
        chosen: Implementation = next(of_form, next(iter(known.values())))
        chosen = known.get(self.implementation or "", chosen)
        self.mixers += 1  # numbers stay below 10,000: no two seeds are equal
        made = build(
            chosen, part_sizes(use, self.sizes), device=self.device, dtype=self.dtype,
            seed=self.seed * 10_000 + self.mixers,
        )  # fmt: skip
        # a parameter that layers share, as T5's table of distances, is made by the first of them
        for name in self.of_mixers & dict(made.named_parameters()).keys():
            if name in use.shared and name in self.shared:
                made.register_parameter(name, self.shared[name])
            else:
                self.shared[name] = made.get_parameter(name)
        why = without_token(use.mixer, chosen)
        made.stepless = f"{use.label}: {why}" if why else ""  # type: ignore[assignment]  # a str
        return made


def mixes(use: Use) -> bool:
    """Whether a part is a mixer with a module of its own."""
    return use.mixer.group != "part of a network" and use.mixer.name not in COMPUTED


class Place(nn.Module):
    """A sublayer: a part with what stands around it, None where nothing does."""

    def __init__(self, sublayer: Sublayer, stack: blocks.Stack, making: Making) -> None:
        """Make, by `making`, the modules of a sublayer of a stack: its part, and what stands around
        it (norms, dropout, residual sum). Rows that a later part reads have a name, in `Use.writes`
        of the part that makes them and in `Use.reads` of the later one; "" reads the sublayer's
        own."""
        super().__init__()
        self.beside = sublayer.beside  # reads what the sublayer before it reads
        part = sublayer.part
        self.mixes = mixes(part)
        self.crosses = blocks.crosses(part.mixer)
        """Whether the part reads an encoder's output too."""
        self.reads = part.reads
        self.made = [(use.writes, use.reads) for use in sublayer.makes]  # such as keys and values
        self.joins = sublayer.residual.reads  # the terms of the sum; () for stream and output
        self.writes = part.writes if sublayer.out is None else sublayer.out.writes
        self.names_normed = "" if sublayer.before is None else sublayer.before.writes
        # part, before, after, dropout, out and residual become modules of these names, or None
        for name, use in vars(sublayer).items():
            if isinstance(use, Use | None):
                setattr(self, name, None if use is None else making(stack.placed(use)))
        made = (making(stack.placed(use)) for use in sublayer.makes)
        self.makes = nn.ModuleList(one for one in made if one)

    def start(self, batch: int, length: int, memory: Tensor | None) -> Any:
        """The state of the part before the first token: a mixer's own; {} for the rows by name of
        earlier tokens, if parts make keys and values for the part; else None."""
        part: Any = self.part
        if not self.mixes:
            return {} if self.made else None
        return part.initial_state(batch, length, *((memory,) if self.crosses else ()))

    def read(self, reads: tuple[str, ...], rows: Tensor, named: Mapping[str, Any]) -> Any:
        """The two arguments of a part's module: its rows, and the position of the first row or,
        for a part that reads several arrays, (further rows, ..., this position): with `named`
        {"k": K, "first": 3}, ("", "k") reads (rows, (K, 3)), and () reads (rows, 3)."""
        of, *others = (named[name] if name else rows for name in reads or ("",))
        return of, (*others, named["first"]) if others else named["first"]

    def through(
        self, rows: Tensor, memory: Tensor | None, state: Any, named: dict[str, Any]
    ) -> Tensor:
        """Run rows (b, s, d) through the part, or with its `state` one further token (b, 1, d);
        `memory` is an encoder's output, and `named` has the rows that parts read by name, and as
        "first" the position of the first row. Rows that other parts make for this part are added to
        `named`."""
        part: Any = self.part
        found: Tensor
        for (name, reads), module in zip(self.made, self.makes, strict=True):
            new = module(*self.read(reads, rows, named))
            if state is not None and module.part in KEPT:
                new = state[name] = torch.cat([*([state[name]] if name in state else ()), new], 1)
            named[name] = new
        if self.mixes:
            (rows,) = (named[name] if name else rows for name in self.reads or ("",))
        if self.reads and not self.mixes:
            found = part(*self.read(self.reads, rows, named))
        elif state is None:
            found = part(rows, memory) if self.crosses else part(rows)
        else:
            found = part.step(rows.squeeze(1), state).unsqueeze(1)
        return found


def passed(module: Any, rows: Tensor) -> Tensor:
    """Rows through a module, unchanged through None."""
    found: Tensor = rows if module is None else module(rows)
    return found


class Layer(nn.Module):
    """A layer: its sublayers, in order."""

    def __init__(self, block: blocks.Block, stack: blocks.Stack, making: Making) -> None:
        super().__init__()
        making = making.within(block.weights)
        self.sublayers = nn.ModuleList(Place(one, stack, making) for one in block.sublayers)

    @property
    def places(self) -> list[Place]:
        """The sublayers."""
        return [one for one in self.sublayers if isinstance(one, Place)]

    def forward(
        self, x: Tensor, memory: Tensor | None = None, held: list[Any] | None = None,
        named: dict[str, Any] | None = None,
    ) -> Tensor:  # fmt: skip
        """Run the layer on whole sequences x (b, s, d), beside an encoder's output `memory` (b, e,
        d), or, with the states `held` of its sublayers, on one further token (b, 1, d); the output
        has the shape of x. `named`: rows that parts read by name; "first": row 1's position."""
        named = named or {"first": 0}
        # stream: the last sum; start: what a sublayer and those `beside` it read; entry: its norm
        stream = start = entry = x
        states = held or [None] * len(self.places)
        for place, state in zip(self.places, states, strict=True):
            if not place.beside:
                start = entry = stream
            if place.before is not None:
                entry = passed(place.before, start)
            if place.names_normed:
                named[place.names_normed] = entry
            out = place.through(entry, memory, state, named)
            out = passed(place.dropout, passed(place.out, out))
            if place.writes:
                named[place.writes] = out
            residual: Any = place.residual
            read = place.read(place.joins, stream, named) if place.joins else (stream, out)
            stream = passed(place.after, residual(*read))
        return stream


class Stack(nn.Module):
    """An encoder or a decoder: what stands before the layers, the layers, what stands after."""

    def __init__(self, stack: blocks.Stack, making: Making) -> None:
        """Make the modules of a stack by `making`, with its blocks as layers in turn. If it has
        fewer `sets` of parameters than layers, as ALBERT has, 3 consecutive ones of 6 in 2 sets are
        one module."""
        super().__init__()

        def made(uses: tuple[Use, ...]) -> nn.ModuleList:
            return nn.ModuleList(one for use in uses if (one := making(stack.placed(use))))

        self.entry = made(stack.entry)
        number = stack.depth or making.sizes["L"]
        sets = stack.sets or number
        own = [Layer(stack.blocks[k % len(stack.blocks)], stack, making) for k in range(sets)]
        self.layers = nn.ModuleList(own[k * sets // number] for k in range(number))
        self.end = made(stack.end)
        self.letter = "e" if stack.section == "encoder" else "l"
        self.bounded = any(use.mixer.name == "positions" for use in stack.entry)
        """Whether a table of positions ends at the size `letter`, which bounds the tokens."""

    def entered(
        self, tokens: Tensor, first: int = 0, segments: Tensor | None = None,
        named: dict[str, Any] | None = None,
    ) -> Tensor:  # fmt: skip
        """The rows (b, s, d) that the parts before the layers (embedding, positions, segments) make
        of tokens (b, s), the first at the position `first`. What parts read by name is added to
        `named`: tokens, embedded tokens and this position."""
        x, named = tokens, {} if named is None else named
        named |= {"tokens": tokens, "first": first}
        others = {"segments": segments, "positions": first}
        for part in self.entry:
            name = part.part if isinstance(part, Part) else ""
            x = part(x, others[name]) if name in others else part(x)
            named.setdefault("embedding", x)
        return x

    def forward(
        self, tokens: Tensor, memory: Tensor | None = None, segments: Tensor | None = None
    ) -> Tensor:
        """Run token numbers and segments (b, s) through the stack, to rows (b, s, d); `memory` is
        an encoder's output."""
        named: dict[str, Any] = {}
        x = self.entered(tokens, 0, segments, named)
        return self._through(x, memory, [None] * len(self.layers), named)

    def start(self, batch: int, length: int, memory: Tensor | None) -> list[list[Any]]:
        """The states of each layer's sublayers before the first token."""
        layers: Any = self.layers
        return [[p.start(batch, length, memory) for p in layer.places] for layer in layers]

    def step(self, tokens_t: Tensor, position: int, held: list[list[Any]]) -> Tensor:
        """Run one token (b,) of each sequence, after `position` tokens, through the stack, to its
        row (b, 1, d); `held` has the states of each layer."""
        named: dict[str, Any] = {}
        x = self.entered(tokens_t.unsqueeze(1), position, named=named)
        return self._through(x, None, held, named)

    def _through(
        self, x: Tensor, memory: Tensor | None, held: list[Any], named: dict[str, Any]
    ) -> Tensor:
        for layer, states in zip(self.layers, held, strict=True):
            x = layer(x, memory, states, named)
        for part in self.end:
            x = part(x)
        return x
