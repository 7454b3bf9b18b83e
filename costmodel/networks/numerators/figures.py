"""Which figures of a model do formulas for a training step's operations read?

The operations are split into terms, such as the products with weights of mixers or of the head, by
which a formula is compared with the exact count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from costmodel.errors import Unanswered
from costmodel.networks.blocks import Use
from costmodel.networks.experts import active, entries_read
from costmodel.networks.held import Holding
from costmodel.networks.network import Network
from costmodel.networks.numerators.exact import matrices, split
from costmodel.networks.part_costs import Counting, own_parameters, part_sizes
from costmodel.networks.training import graph_of
from costmodel.program.element_types import Dtypes
from costmodel.questions.count import counted
from costmodel.questions.parameters import parameters
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, sum_of

EMBEDDING = "embedding"
MIXERS = "weights of mixers"
FEED_FORWARD = "weights of feed-forward layers"
IDLE = "experts not chosen"
HEAD = "head"
JOINING = "between tokens"
REST = "the rest"
TERMS: Mapping[str, str] = {
    EMBEDDING: "rows of the embedding are read, and their gradients added to a table",
    MIXERS: "maps to queries, keys, values, gates and outputs, and convolutions",
    FEED_FORWARD: "gated FFNs, chosen and shared experts, the router",
    IDLE: "experts that a token does not go through",
    HEAD: "scores of the vocabulary",
    JOINING: "scores of pairs of tokens, sums of values, recurrent states",
    REST: "norms, activations, softmax, rotations, gates, residual sums, loss",
}
"""Term of a training step -> what the term has."""


@dataclass(frozen=True)
class Part:
    """The figures that formulas read about one part of a network, all copies of the part together.

    Args:
        kind: its term, `REST` if the part multiplies no weights.
        layers: how often the part runs.
        sizes: the values of the part's letters.
        weights: entries of matrices that tokens are multiplied with, those of all experts included.
        router: of these, entries of a router.
        others: further parameters, such as biases and gains.
        idle: parameters of experts that a token does not go through.
        read: entries of `weights` that a token is multiplied with, once for each run: more than
            `weights` where layers share these.
        pair: multiplications that join one query with one key and value, over all heads of one
            layer; 0 if the part is no attention.
        window: the tokens that the attention of a token reaches, itself included; None: all.
        recurrent: whether a state is carried.
    """

    use: Use
    kind: str
    layers: int
    sizes: Mapping[str, int]
    weights: int
    router: int
    others: int
    idle: int
    read: int
    pair: int
    window: int | None
    recurrent: bool

    @property
    def mixer(self) -> str:
        """The name of the part's mixer, without options and sizes."""
        return self.use.mixer.name.partition("{")[0].partition("+")[0]

    @property
    def options(self) -> list[str]:
        """The options of the part's mixer."""
        return self.use.mixer.name.partition("{")[0].split("+")[1:]

    @property
    def parameters(self) -> int:
        """All parameters of the part."""
        return self.weights + self.others


@dataclass(frozen=True)
class Figures:
    """The figures of a network for one sequence of `tokens`, and the exact operations of a training
    step by term."""

    network: Network
    counting: Counting
    tokens: int

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The values of all sizes of the network."""
        held = Holding(self.network, Dtypes("int8"), self.tokens)
        return {**held.sizes, "l": self.tokens}

    @cached_property
    def tied(self) -> bool:
        """Whether the head's weights are the embedding's."""
        return self.network.described.tied

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """A `Part` for each part of the network but dropout, in order."""
        return tuple(self._parts())

    def _parts(self) -> Iterator[Part]:
        """Yield a `Part` for each part but dropout, the figures that formulas for MFU read:
        parameters of all copies, entries read in all runs, windows and states from what the part
        holds between tokens. A head's weights are the matrices that it multiplies, also if they are
        tied. Unanswered for cross-attention."""
        # any element type does: rows are read here, and no bytes
        holding = Holding(self.network, Dtypes("int8"), self.tokens)
        if holding.crosses:
            raise Unanswered(
                "formulas for MFU count the tokens of one sequence, and layers of cross-attention "
                "read further rows"
            )
        recurrent = {held.use for held in holding.parts if held.role == "state"}
        # part with attention -> its window (rows of earlier tokens, and the token's own) or None
        windows = {
            held.use: None if array.most is None else array.most + 1
            for held in holding.parts
            for array in held.arrays
            if held.role == "cache" and not array.convolved
        }
        graph = graph_of(self.network, self.counting)
        for use in self.network.uses:
            if use.regularises:
                continue
            kind = self.kind(use)
            entries = matrices(graph.gradients(use).system)  # matrix -> entries, in part's sizes
            here = {x: self._at(n, use, use.copies) for x, n in entries.items()
                    if x not in use.shared}  # fmt: skip
            head = {x: self._at(n, use, use.runs) for x, n in entries.items() if kind == HEAD}
            own = own_parameters(use).at(self.sizes)
            every = sum_of(parameters(use.mixer).arrays.values())
            idle = self._at(every - active(use.mixer), use, use.copies)
            chosen = {x: entries_read(use.mixer)[x] for x in entries}
            read = sum(self._at(n, use, use.runs) for n in chosen.values())
            pair = 0
            if use in windows:
                one = split(graph, use).pairs.substitute(use.sizes)
                # at one token a causal attention has one pair of a query and a key
                pair = one.at({**self.sizes, "l": 1})
            yield Part(
                use, kind, layers=use.runs.at(self.sizes), sizes=part_sizes(use, self.sizes),
                weights=sum((head or here).values()), router=here.get("W_R", 0),
                others=max(0, own - sum(here.values())), idle=idle, read=read, pair=pair,
                window=windows.get(use), recurrent=use in recurrent,
            )  # fmt: skip

    def _at(self, number: Poly, use: Use, times: Poly) -> int:
        """A number of parameters, in the part's sizes, times `times`, at the network's sizes."""
        return (number.substitute(use.parameter_sizes) * times).at(self.sizes)

    def kind(self, use: Use) -> str:
        """The term, in formulas for MFU, of a part's weights: `EMBEDDING` for tables, `HEAD` (a
        tied one too), `MIXERS`; of other parts `FEED_FORWARD` if with matrices, else `REST`."""
        if use.table:
            return EMBEDDING
        if use.label == "head":
            return HEAD
        if use.mixer.group != "part of a network":
            return MIXERS
        graph = graph_of(self.network, self.counting)
        return FEED_FORWARD if matrices(graph.gradients(use).system) else REST

    @cached_property
    def exact(self) -> Mapping[str, int]:
        """A dict: term -> its exact number of operations in a training step of one sequence, each
        multiplication, addition and function counted 1; `REST` has all that no other term has.
        Unanswered or Unsupported where the step is not derived."""
        found = dict.fromkeys(TERMS, 0)
        graph = graph_of(self.network, self.counting)
        for use in self.network.uses:
            if use.regularises:
                continue
            one, kind = split(graph, use), self.kind(use)
            if kind != EMBEDDING:
                found[kind] += self._total(one.weights, use)
            if kind == MIXERS:
                found[JOINING] += self._total(one.joining, use)
        for part in self.network.costs("training-step", self.counting):
            if part.use.table:
                found[EMBEDDING] += part.of(counted).exact_total.at(self.sizes)
        whole = self.network.count("training-step", self.counting)
        found[REST] += whole.exact_total.at(self.sizes) - sum(found.values())
        return found

    def _total(self, number: Exact, use: Use) -> int:
        """Operations of one run, in the part's sizes, times its runs, at the network's sizes."""
        return (number.substitute(use.sizes) * use.runs).at(self.sizes)
