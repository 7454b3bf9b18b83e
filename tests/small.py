"""At which small sizes is any mixer tried, and which small primes do unnamed letters get?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import pytest

from costmodel import Mixer
from costmodel.language.equations import Form
from costmodel.language.nodes import Call, Position, Ref, walk
from costmodel.language.options import joined, split
from costmodel.mixers import builtin, names
from costmodel.program.chosen_sizes import divisors, raised
from costmodel.program.conventions import convention
from costmodel.program.lowering import lower
from costmodel.program.recurrences import blocks
from costmodel.program.tokens import tokens
from costmodel.questions.question import answers
from costmodel.symbolic.polynomial import Poly, is_index

OTHERS = {"g": 1, "v": 3, "w": 2, "k": 3, "C": 2, "e": 4, "K": 3, "V": 2}
"""Values of letters that only some mixers have; 2 for every other one."""


LEFT_OPEN: Mapping[tuple[str, str, str], str] = {
    (
        "self-attention+relative-bias",
        "direct",
        "traffic",
    ): "which entries of b_rel are read depends on the values of bucket",
    ("sinkhorn", "direct", "path_length"): "index p skips entries by a stride",
    ("strided-attention", "direct", "path_length"): "index p skips entries by a stride",
    ("fixed-attention", "direct", "path_length"): "index p skips entries by a stride",
    ("mamba-2", "chunked", "path_length"): "how far reads reach from a row, by its place in its",
    ("rwkv-7", "chunked", "span"): "entries of one row of the recurrence differ in length",
    **{
        (name, f"chunked-{way}", question): reason
        for name in ("deltanet", "gated-deltanet", "kda")
        for way in ("solve", "rows", "wy")
        for question, reason in (
            ("span", "the recurrence reads rows further back than the previous row"),
            ("path_length", "how far reads reach from a row, by its place in its"),
        )
    },
}
"""Mixer, form and question of the forward pass -> why no rule answers it in letters; at given sizes
a search does."""


def left_open(name: str, form: str, question: str) -> str | None:
    """The reason in `LEFT_OPEN` of a mixer, with any options; None where a rule answers. The option
    `core` leaves out the convolutions of the delta rules, whose rows no rule follows."""
    base, options = split(name)
    if question == "path_length" and "core" in options:
        return None
    return LEFT_OPEN.get((base, form, question))


def by_sizes(sizes: Sequence[Mapping[str, int]]) -> pytest.MarkDecorator:
    """A test at each of these sizes, which its name tells: `5-6-2`."""
    return pytest.mark.parametrize("sizes", sizes, ids=lambda s: "-".join(map(str, s.values())))


def complete(mixer: Mixer, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes with a value for every letter of a mixer; one that divides another is its least
    factor."""
    letters = [x for x in mixer.letters if x not in sizes]
    found = {**sizes, **{letter: OTHERS.get(letter, 2) for letter in letters}}
    for size, by in divisors(mixer).items():
        if by in letters:
            whole = found[size]
            found[by] = next((k for k in range(2, whole) if whole % k == 0), whole)
    found = raised(mixer, found)
    if mixer.powers_of_two:  # that of h = d/n, wherever there is one
        found["d"] = found["n"] * 2 ** (found["d"] // found["n"] - 1).bit_length()
    return found


def least(mixer: Mixer) -> dict[str, int]:
    """The size 1 for every letter of a mixer, or 2 where half of the size has to be whole."""
    return raised(mixer, dict.fromkeys(mixer.letters, 1))


def variants() -> list[str]:
    """Every built-in mixer, each of its options by itself (`self-attention+bias`), and its variants
    with names of their own, at any sizes."""
    found = [
        variant
        for mixer in map(builtin, names())
        for variant in (
            mixer.name,
            *(joined(mixer.name, [option]) for option in mixer.offers),
            *(stands.partition("{")[0] for stands in mixer.variants.values()),
        )
    ]
    return list(dict.fromkeys(found))


def forms(mixers: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Every form of some mixers, of all built-in ones by default."""
    return [(name, form) for name in mixers or names() for form in builtin(name).forms]


@cache
def distinct() -> tuple[tuple[str, str], ...]:
    """Forms that together use every part of the language that any form uses, each of them some part
    that no other of them uses. What acts on any equations is tested on these, and what a mixer
    promises by itself on all of them."""
    found: dict[tuple[str, str], set[object]] = {}
    users = Counter[object]()  # part of the language -> how many of the forms found use it
    for name, form in forms(variants()):
        own = {*_parts(builtin(name).forms[form])}
        if not own <= users.keys():
            found[name, form] = own
            users.update(own)
    for one in [*found]:
        if all(users[part] > 1 for part in found[one]):
            users.subtract(found.pop(one))
    return tuple(found)


def _parts(form: Form) -> Iterator[object]:
    """What of the language a form is made of: kinds of nodes, roles of what they read, shapes of
    positions and bounds, loops, what depends on the input, on a context, on weights alone."""
    system = lower(form)
    known = tokens(system)
    for block in blocks(system):
        yield "loop", block.is_loop and block.step, len(block.axes) > 1
    for equation in system.equations:
        yield (
            "depends",
            equation.array in known.from_inputs,
            equation.array in known.from_inputs_or_contexts,
        )
        yield from map(_shape, equation.positions)
        ranges = {*equation.indices}
        for node, over in walk(equation.value):
            yield type(node), getattr(node, "function" if isinstance(node, Call) else "kind", "")
            ranges |= {*over}
            yield "together", any(index.beside for index in node.binders)
            if isinstance(node, Ref):
                yield node.array.role
                yield from map(_shape, node.positions)
        for index in ranges:
            yield "ranges", len(index.pieces)
            for piece in index.pieces:
                for side in (piece.lower, piece.upper):
                    yield "bounds", len(side)
                    yield from (("bound", _shape(end)) for end in side)


@cache
def _shape(position: Position) -> object:
    """A position or bound up to names and numbers: which products of indices, sizes and functions
    it adds up."""
    if not isinstance(position, Poly):
        return type(position)
    return frozenset(
        tuple(sorted("index" if is_index(atom) else type(atom).__name__ for atom, _ in product))
        for product in position.terms
    )


def without_inference(mixer: Mixer, form: str | None = None) -> str | None:
    """Why one new token has no cost of its own; None where it has one."""
    return answers(mixer, form or mixer.default_form, "inference", convention("strict")).unanswered


def has_inference(mixer: Mixer, form: str | None = None) -> bool:
    """Whether one new token has a cost of its own."""
    return without_inference(mixer, form) is None
