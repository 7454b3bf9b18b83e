"""How many operations of a training step do formulas for MFU (model FLOP/s utilisation) count?

A formula is read on the model's own figures, term by term, so that its difference to the exact
count is the sum of the differences of the terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from costmodel.errors import Unanswered
from costmodel.networks.numerators.figures import (
    EMBEDDING,
    FEED_FORWARD,
    HEAD,
    IDLE,
    JOINING,
    MIXERS,
    REST,
    TERMS,
    Figures,
    Part,
)

Counted = dict[str, Fraction]
"""Term (a key of `TERMS`) -> the operations of a training step for one token."""


@dataclass(frozen=True)
class Numerator:
    """A formula for the operations of a training step.

    Args:
        formula: as the source prints it, or the name of the source's function.
        pairs: which pairs of tokens it counts: none, all, or half, as a causal mask leaves.
        counts: its operations for one token, by term; Unanswered where the source has none.
        leaves: term -> what the formula leaves out of it.
    """

    name: str
    formula: str
    source: str
    pairs: str
    counts: Callable[[Figures], Counted]
    leaves: Mapping[str, str] = field(default_factory=dict)

    def why(self, term: str, more: bool, close: bool, of_term: Iterable[Part]) -> str:
        """The reason why a formula's number for `term` differs from the exact count. `more`: the
        formula counts more, not less; `close`: by so little that biases, and m additions counted
        for a sum of m products, explain it; `of_term`: the parts whose weights are of the term."""
        if more and any(part.use.fixed == "all" for part in of_term):
            return "three passes for layers that run one, without gradients"
        if more and close and term in (MIXERS, FEED_FORWARD, HEAD):
            return "biases as products, and m additions for a sum of m products, which takes m-1"
        if not more and term in self.leaves:
            return self.leaves[term]
        if not more and any(part.read > part.weights for part in of_term):
            return "weights that several layers share, as if one layer had them"
        if term == JOINING:
            return PAIRS[self.pairs]
        return (MORE if more else LESS)[term]


PAIRS = {
    "none": "no term for pairs of tokens and states",
    "all": "all pairs of tokens, of which a causal mask leaves half; states by their own formula",
    "half": "half of all pairs, T T/2 for T (T+1)/2; windows and states by their own formula",
}
"""Which pairs of tokens a formula counts -> the reason for its difference."""

MORE = {
    EMBEDDING: "rows of a table are read, not multiplied",
    MIXERS: "maps of other widths than the model's",
    FEED_FORWARD: "biases as products",
    IDLE: "a token goes through the experts that are chosen for it",
    HEAD: "biases as products",
    REST: "gains and biases as products",
}
LESS = {
    EMBEDDING: "the additions of gradients to the rows of a table",
    MIXERS: "maps of other widths than the model's",
    FEED_FORWARD: "products that the formula leaves out",
    IDLE: "",
    HEAD: "products that the formula leaves out",
    REST: f"no term for {TERMS[REST]}",
}
"""Term -> why a formula counts more, or less, than the exact operations."""


@dataclass(frozen=True)
class Difference:
    """One term of a formula beside the exact operations of a training step of one sequence: both
    numbers (`counted`, rounded down, and `exact`), and the cause of their difference, "" for none.
    """

    term: str
    counted: int
    exact: int
    why: str

    @property
    def more(self) -> int:
        """What the formula counts beyond the exact operations."""
        return self.counted - self.exact


@dataclass(frozen=True)
class Compared:
    """A formula beside the exact count; the reason in `missing` where it has no number."""

    numerator: Numerator
    differences: tuple[Difference, ...] = ()
    missing: str = ""

    @property
    def total(self) -> int:
        """The operations that the formula counts."""
        return sum(one.counted for one in self.differences)


def compared(figures: Figures) -> Iterator[Compared]:
    """Yield each formula of `NUMERATORS` (operations of a training step, as MFU is computed),
    evaluated for one sequence and compared with the exact count term by term; a formula that says
    nothing about the network yields its reason.

    Raises:
        Unanswered, Unsupported: the training step is not derived, or the network is no decoder.
    """
    exact, _ = figures.exact, figures.parts  # parts too: their refusals concern every formula
    for numerator in NUMERATORS:
        try:
            terms = numerator.counts(figures)
        except Unanswered as reason:
            yield Compared(numerator, missing=str(reason))
            continue
        found = []
        for term, number in exact.items():
            counted = int(terms[term] * figures.tokens)
            # less than number/3 + number/tokens, which biases and an addition a sum explain (`why`)
            close = abs(counted - number) * 3 * figures.tokens < number * (3 + figures.tokens)
            of_term = [part for part in figures.parts if part.kind == term]
            why = numerator.why(term, counted > number, close, of_term) if counted != number else ""
            found.append(Difference(term, counted, number, why))
        yield Compared(numerator, tuple(found))


def _six_a_parameter(f: Figures, kinds: Mapping[str, str], *, idle: bool) -> Counted:
    """The formula "6 N", term -> operations for one token: six for each parameter, one addition
    and one multiplication in the forward pass and two of each for gradients; tied weights once.
    `kinds`: kind of part -> its term; `idle`: also count experts that are not chosen."""
    found = dict.fromkeys(TERMS, Fraction())
    for part in f.parts:
        if part.kind == EMBEDDING and f.tied:
            continue  # the same weights as those of the head
        found[kinds[part.kind]] += 6 * (part.parameters - part.idle)
        if idle:
            found[IDLE] += 6 * part.idle
    return found


SAME = {term: term for term in TERMS}


def six_n(f: Figures) -> Counted:
    """6N, term -> operations: six a token for each of the network's N parameters."""
    return _six_a_parameter(f, SAME, idle=True)


def six_active(f: Figures) -> Counted:
    """6N, N without the parameters of experts that a token does not go through."""
    return _six_a_parameter(f, SAME, idle=False)


def palm(f: Figures) -> Counted:
    """The operations for one token by the formula 6N + 12LHQT of PaLM, by term: six for each of N
    parameters, and for each multiplication of scores and sums of values (`pair`, 2HQ of a pair of
    tokens) with all T tokens, in L layers."""
    found = _six_a_parameter(f, SAME, idle=True)
    found[JOINING] += sum(6 * p.pair * p.layers * f.tokens for p in f.parts)
    return found


def _no_term(name: str, part: Part) -> Unanswered:
    """The error of the formula of `name` for a recurrent mixer whose operations it leaves out."""
    return Unanswered(f"{name}'s formula for MFU has no term for the recurrent mixer {part.mixer}")


def megatron(f: Figures) -> Counted:
    """Megatron's operations for one token by term, six for each product (forward and backward):
    with weights but the router's; of pairs with half of all tokens in every attention; 4 V^2 n of a
    Gated DeltaNet. Mamba-2 counts as if its inner width were twice the model's. Unanswered for
    other recurrent states."""
    found = dict.fromkeys(TERMS, Fraction())
    for p in f.parts:
        found[JOINING] += Fraction(6 * p.pair * p.layers * f.tokens, 2)
        if p.kind == MIXERS and p.mixer == "mamba-2":
            s, inner = p.sizes, 2 * p.sizes["d"]
            maps = s["d"] * (2 * inner + 2 * s["G"] * s["N"] + s["n"]) + inner * s["d"]
            found[MIXERS] += 6 * maps * p.layers
            # 7 operations an entry of the state, and twice as many for the gradients
            found[JOINING] += 3 * 7 * inner * s["N"] * p.layers
            continue
        if p.kind == MIXERS and p.mixer == "gated-deltanet":
            found[JOINING] += 6 * 4 * p.sizes["n"] * p.sizes["V"] ** 2 * p.layers
        elif p.kind == MIXERS and p.recurrent:
            raise _no_term("Megatron", p)
        if p.kind in (MIXERS, FEED_FORWARD, HEAD):
            found[p.kind] += 6 * (p.read - p.router)
    return found


def torchtitan(f: Figures) -> Counted:
    """torchtitan's operations for one token by term: six for each active parameter but the
    embedding's, for each product that joins the token with one of all tokens (of a window's w
    tokens), and 18 for each entry of a delta rule's state. Unanswered for other states."""
    found = _six_a_parameter(f, SAME, idle=False)
    found[EMBEDDING] = Fraction()
    for p in f.parts:
        reach = f.tokens if p.window is None else min(p.window, f.tokens)
        found[JOINING] += 6 * p.pair * p.layers * reach
        if p.mixer in DELTA_RULES:
            n, K, V = _delta_widths(p)
            found[JOINING] += 6 * 3 * n * K * V * p.layers
        elif p.kind == MIXERS and p.recurrent:
            raise _no_term("torchtitan", p)
    return found


DELTA_RULES = ("gated-deltanet", "kda")


def _delta_widths(p: Part) -> tuple[int, int, int]:
    """(heads, width of a key, width of a value) of a delta rule."""
    s = p.sizes
    width = s["d"] // s["n"]
    return s["n"], s.get("K", width), s.get("V", width)


def maxtext(f: Figures) -> Counted:
    """MaxText's operations for one token by term, six for each product: with weights but those of
    attention's output gate; of pairs with half of all tokens, for Gemma 2 and 3 and gpt-oss with
    half of the window; 4 K V n of a Gated DeltaNet. Unanswered for other recurrent states."""
    found = dict.fromkeys(TERMS, Fraction())
    windowed = f.network.described.model_type in ("gemma2", "gemma3_text", "gpt_oss")
    for p in f.parts:
        reach = min(p.window or f.tokens, f.tokens) if windowed else f.tokens
        found[JOINING] += Fraction(6 * p.pair * p.layers * reach, 2)
        if p.mixer == "gated-deltanet":
            found[JOINING] += 6 * 4 * p.sizes["n"] * p.sizes["K"] * p.sizes["V"] * p.layers
        elif p.kind == MIXERS and p.recurrent:
            raise _no_term("MaxText", p)
        if p.kind in (MIXERS, FEED_FORWARD, HEAD):
            found[p.kind] += 6 * (p.read - _gate_entries(p))
    return found


def _gate_entries(p: Part) -> int:
    """The entries of an attention's map to its output gate, in all layers; 0 without a gate."""
    if p.kind != MIXERS or "gate" not in p.options:
        return 0
    return p.sizes["d"] * p.sizes["h"] * p.sizes["n"] * p.layers


VERL = (
    "deepseek_v3", "gemma3_text", "gpt_oss", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe",
)  # fmt: skip
"""The types that verl counts, of those that are read here; of other types it counts 0."""


def verl(f: Figures) -> Counted:
    """verl's operations for one token by term, six for each product: with weights, an embedding and
    a head even where they are tied; of pairs with half of all tokens, for Gemma 3 and gpt-oss with
    half of the window. Unanswered for types of model that verl counts as 0."""
    kind = f.network.described.model_type
    if kind not in VERL:
        raise Unanswered(
            f"verl's formula gives 0 for {kind or 'a network without model_type'}: of the types of "
            f"model, verl counts {', '.join(VERL)}"
        )
    found = dict.fromkeys(TERMS, Fraction())
    for p in f.parts:
        windowed = kind in ("gemma3_text", "gpt_oss")
        reach = min(p.window or f.tokens, f.tokens) if windowed else f.tokens
        found[JOINING] += Fraction(6 * p.pair * p.layers * reach, 2)
        if p.kind in (MIXERS, FEED_FORWARD):
            found[p.kind] += 6 * p.read
    for term in (EMBEDDING, HEAD):
        found[term] += 6 * f.sizes["u"] * f.sizes["d"]
    return found


NUMERATORS: tuple[Numerator, ...] = (
    Numerator("6N", "6 N", "Kaplan et al. 2020, arXiv 2001.08361, table 1", "none", six_n),
    Numerator("6N active", "6 N of the experts chosen", "the same", "none", six_active),
    Numerator(
        "PaLM", "6 N + 12 L H Q T", "Chowdhery et al. 2022, arXiv 2204.02311, app. B", "all", palm
    ),
    Numerator(
        "Megatron",
        "num_floating_point_operations",
        "NVIDIA/Megatron-LM, megatron/training/training.py, commit 001b00c",
        "half",
        megatron,
        {FEED_FORWARD: "the router is left out"},
    ),
    Numerator(
        "torchtitan",
        "6 active + 6 n (q + v) T",
        "pytorch/torchtitan, torchtitan/models/utils.py, commit 01c01c8",
        "all",
        torchtitan,
    ),
    Numerator(
        "MaxText",
        "calculate_tflops_training_per_device",
        "AI-Hypercomputer/maxtext, src/maxtext/utils/maxtext_utils.py, commit 00902f3",
        "half",
        maxtext,
        {MIXERS: "the map to an output gate is left out"},
    ),
    Numerator(
        "verl",
        "FlopsCounter",
        "verl-project/verl, verl/utils/flops_counter.py, commit 34ae987",
        "half",
        verl,
    ),
)
"""The formulas by name, in the order of a table."""
