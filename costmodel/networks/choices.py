"""Which choices make up a network: its mixers, norm, positions, head and sizes?

Choices are strings, numbers and booleans, so that a preset in a data file, the `config.json` of a
published model and a command line all become the same record.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from costmodel.errors import FormulaError, ModelError, NotPolynomial, SizeError
from costmodel.language.formula_text import parse
from costmodel.mixers.load import refuse_unimported
from costmodel.networks.parts import ACTIVATIONS
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sizes import LETTERS, checked

Size = int | tuple[int, ...]
"""The value of a size, or the values of the size that a sweep goes through."""

VALUES: Mapping[str, Mapping[str, str]] = {
    "kind": {
        "decoder": "one stack of layers, a token at a time where its mixers allow it",
        "encoder": "one stack of layers over a whole sequence",
        "encoder-decoder": "an encoder of e tokens, a decoder that attends to its output",
    },
    "embedding": {
        "look-up": "a token's row of the table is read: no operation",
        "one-hot": "the product of one-hot rows with the table, as printed",
    },
    "scale": {
        "none": "embedded tokens as they are",
        "tokens": "each entry of an embedded token times sqrt(d)",
        "all": "learned positions times sqrt(d) as well",
    },
    "positions": {
        "learned": "a row of parameters for each position",
        "sinusoidal": "a row of a constant table for each position",
        "none": "no positions",
    },
    "norm": {
        "pre": "a layer norm before each sublayer, and one at the end",
        "post": "a layer norm after each residual sum",
        "none": "no norm",
    },
    "activation": dict.fromkeys(ACTIVATIONS, ""),
    "head": {
        "vocabulary": "a score for every entry of the vocabulary",
        "classes": "the first position, a hidden layer of width f, a score for each of z classes",
        "none": "no head: the last layer's output",
    },
    "output": {
        "scores": "the head's scores; cross-entropy takes their log-softmax",
        "probabilities": "the softmax of the scores; cross-entropy takes logarithms of it",
    },
    "transform": {"none": "", **dict.fromkeys(ACTIVATIONS, "")},
}
"""Choice -> the names that it may have, each with its meaning ("" where the name says it)."""


@dataclass(frozen=True)
class Choices:
    """A network's choices, with names from `VALUES`; `costmodel.networks.from_choices` writes them
    out as blocks.

    Args:
        title, source, place, remark: what tables print: name, publication, place in it, note.
        mixers: the mixers of the layers, in turn: layer i has the mixer i mod their number.
        encoder_mixers: the mixers of the encoder's layers, in an encoder-decoder.
        cross: the mixer of the decoder that reads the encoder's output.
        form: the form of every mixer that has a form of this name.
        shared_vocabulary: an encoder-decoder's source and target share one embedding.
        position_rows: the number of rows of a table of learned positions; 0 for l rows.
        segments: how many kinds of segments have a row of their own, 0 for none.
        embedding_norm: a layer norm after the embedding.
        norm_bias, norm_eps: a layer norm's bias, and the constant under its root.
        ffn: whether a layer has a feed-forward sublayer; it is f wide.
        biases: of FFN, pooler, transform and classifier; a mixer's biases are options of the mixer.
        dropout: whether dropout follows the embedding and each sublayer.
        towers: how many sequences pass through the same encoder before one head reads them all.
        hidden: hidden layers of a classifier; each after the first is half as wide.
        pooler: a linear map and tanh of the first position.
        transform: activation of a linear map and a layer norm before the head, or "none".
        tied: the head's weights are the embedding's.
        head_bias: a bias on the scores.
        loss: cross-entropy, in a training forward pass.
        smoothing: label smoothing in the cross-entropy.
        sizes: letter -> value, or the values of a sweep.
        widths: letter -> formula in other letters, such as f -> 4*d.
        assumed: choice or letter -> where its value is taken from, if the source does not print it.
    """

    name: str = "network"
    title: str = ""
    source: str = ""
    place: str = ""
    remark: str = ""
    kind: str = "decoder"
    mixers: tuple[str, ...] = ("self-attention",)
    encoder_mixers: tuple[str, ...] = ("self-attention+bidirectional",)
    cross: str = "self-attention+cross"
    form: str = ""
    embedding: str = "look-up"
    shared_vocabulary: bool = False
    scale: str = "none"
    positions: str = "learned"
    position_rows: int = 0
    segments: int = 0
    embedding_norm: bool = False
    norm: str = "pre"
    norm_bias: bool = True
    norm_eps: bool = True
    ffn: bool = True
    activation: str = "relu"
    biases: bool = True
    dropout: bool = False
    towers: int = 1
    pooler: bool = False
    head: str = "vocabulary"
    hidden: int = 1
    transform: str = "none"
    tied: bool = False
    head_bias: bool = False
    output: str = "scores"
    loss: bool = True
    smoothing: bool = False
    sizes: Mapping[str, Size] = field(default_factory=dict)
    widths: Mapping[str, str] = field(default_factory=dict)
    assumed: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ModelError for unknown or contradictory choices, a value of another type than the
        default's, or a formula in `widths` that is not readable; SizeError for an unknown size, or
        one that is no positive integer."""
        for name, known in VALUES.items():
            value = getattr(self, name)
            if value not in known:
                near = difflib.get_close_matches(str(value), known, 1)
                hint = f"; did you mean '{near[0]}'? It" if near else ": it"
                raise ModelError(f"{self.name}: {name} '{value}' is unknown{hint} is one of "
                                 f"{', '.join(known)}")  # fmt: skip
        for one in fields(self):
            kind = dict if one.default is MISSING else type(one.default)
            value, (allowed, words) = getattr(self, one.name), OF_TYPE[kind]
            if not isinstance(value, allowed) or (kind is int and isinstance(value, bool)):
                raise ModelError(f"{self.name}: {one.name} must be {words}, got {value!r}")
        if not self.mixers or not self.encoder_mixers:
            stack = "encoder's layers" if self.mixers else "layers"
            raise ModelError(f"{self.name}: name at least one mixer for the {stack}")
        for name, least in (("position_rows", 0), ("segments", 0), ("towers", 1), ("hidden", 1)):
            if getattr(self, name) < least:
                raise ModelError(
                    f"{self.name}: {name} is {getattr(self, name)}: expected {least} or more"
                )
        for letter, values in self.sizes.items():
            if values == ():
                raise SizeError(f"size {letter} needs at least one value, got an empty list")
            for value in values if isinstance(values, tuple) else (values,):
                checked({letter: value})
        self._refuse_contradictions()
        _ = self.formulas

    def _refuse_contradictions(self) -> None:
        """Raise ModelError for a choice that needs another: a classifier, a pooler, towers, label
        smoothing, a tied head."""
        if self.head == "classes" and self.kind != "encoder":
            raise ModelError(
                f"{self.name}: a classifier (head classes) stands on an encoder, and this network "
                f"is of kind {self.kind}: choose head vocabulary"
            )
        if self.pooler and self.kind != "encoder":
            raise ModelError(f"{self.name}: a pooler stands on an encoder, and this network is of "
                             f"kind {self.kind}: leave out the pooler")  # fmt: skip
        if self.towers > 1 and self.head != "classes":
            raise ModelError(f"{self.name}: {self.towers} towers need a classifier (head classes): "
                             f"choose 1 tower")  # fmt: skip
        if self.smoothing and self.output != "scores":
            raise ModelError(f"{self.name}: label smoothing needs output scores, and the output is "
                             f"{self.output}: leave out smoothing")  # fmt: skip
        if self.tied and self.head != "vocabulary":
            raise ModelError(
                f"{self.name}: only a head over the vocabulary can be tied to the embedding, and "
                f"the head is '{self.head}': choose tied=False"
            )

    @property
    def formulas(self) -> dict[str, Poly]:
        """A dict: letter -> formula for the sizes that follow from others (f -> 4 d), as
        polynomials in these; ModelError for an unknown letter, or a formula that is no polynomial
        in letters of other sizes."""
        found: dict[str, Poly] = {}
        for letter, text in self.widths.items():
            if letter not in LETTERS:
                raise ModelError(f"{self.name}: unknown size '{letter}' in widths: the letters are "
                                 f"{', '.join(LETTERS)}")  # fmt: skip
            try:
                poly = parse(text).poly()
            except FormulaError as reason:
                raise ModelError(f"{self.name}: the width {letter} = {text}: {reason}") from None
            except NotPolynomial as reason:
                raise ModelError(
                    f"{self.name}: the width {letter} = {text} has {reason}: expected a polynomial "
                    "in sizes"
                ) from None
            if inside := sorted(poly.letters & {*self.widths}):
                raise ModelError(
                    f"{self.name}: the width {letter} = {text} names {inside[0]}, which is a "
                    f"width too: write the formula of {inside[0]} in place of {inside[0]}"
                )
            found[letter] = poly
        return found


OF_TYPE: Mapping[type, tuple[type | tuple[type, ...], str]] = {
    bool: (bool, "True or False"), int: (int, "an integer"), str: (str, "a string"),
    tuple: ((tuple, list), "a tuple of names, such as ('she',)"), dict: (Mapping, "a dict"),
}  # fmt: skip
"""Type of a choice's default -> the types of its values, and these in words."""
LISTS = ("mixers", "encoder_mixers")

TEXTS = ("widths", "assumed")
MAPPINGS = ("sizes", *TEXTS)


def from_entry(where: str, entry: Mapping[str, Any], base: Choices) -> Choices:
    """A copy of the choices `base`, changed as an entry (a dict, choice -> value) of a data file
    says: {"sizes": {"f": 8}} adds f to the sizes of `base`, and drops the formula of f in `widths`.

    Raises:
        ModelError: an unknown key, a value of another type, or choices that contradict each other;
            `where` names the entry.
        UnknownMixer: a mixer in a FILE.py that this process has not imported, since data must not
            run code. Whether other mixers exist is not checked here.
    """
    known = {f.name for f in fields(Choices)}
    if unknown := sorted(set(entry) - known):
        near = difflib.get_close_matches(unknown[0], known, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(sorted(known))}"
        raise ModelError(f"{where}: unknown key '{unknown[0]}': {hint}")
    changed = {key: _value(where, key, value, getattr(base, key)) for key, value in entry.items()}
    for name in (
        *changed.get("mixers", ()),
        *changed.get("encoder_mixers", ()),
        changed.get("cross", ""),
    ):
        refuse_unimported(name)
    # a size with a value of its own has no formula any more
    own = entry.get("sizes", {})
    changed["widths"] = {
        letter: text
        for letter, text in changed.get("widths", base.widths).items()
        if letter not in own
    }
    try:
        return replace(base, **changed)
    except (TypeError, ValueError) as reason:
        raise ModelError(f"{where}: {reason}") from None


def _value(where: str, key: str, value: Any, now: Any) -> Any:
    """The value of the choice `key` after an entry of a data file gave `value`, where it was `now`:
    a list as a tuple, an object added to the mapping `now`, anything else as it is. ModelError for
    another type than the choice has."""
    wanted = list if key in LISTS else dict if key in MAPPINGS else type(now)
    if type(value) is not wanted:
        kind = {list: "a list", dict: "an object", bool: "true or false", int: "a number"}
        raise ModelError(f"{where}: '{key}' must be {kind.get(wanted, 'a string')}, got {value!r}")
    given: Any = value
    inside = given.values() if key in TEXTS else given if key in LISTS else ()
    if not all(isinstance(item, str) for item in inside):
        raise ModelError(f"{where}: '{key}' must hold strings alone, got {value!r}")
    if key in LISTS:
        return tuple(given)
    if key in MAPPINGS:
        return {**now, **{x: tuple(v) if isinstance(v, list) else v for x, v in given.items()}}
    return value
