"""The interpretations under which a claim about a cost may hold, ordered by distance.

A formula that is false in the claim's own convention, phase and form may be true in others: under
another accounting or rewrite, by another tool's counter, of another form or variant of the mixer,
added up or divided in another way, or in another phase. A claim about gradients may besides mean
gradients as kernels compute them, or those of the parameters or of the inputs alone. In this file
`own` is the interpretation that the claim states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from itertools import combinations, product

from costmodel.program.conventions import (
    ACCOUNTINGS,
    OF_GRADIENTS,
    OF_SEQUENCES,
    ONLY,
    PADDINGS,
    PEERS,
    REWRITES,
    SCALES,
    SCALES_OF_PAPERS,
    WANTED,
    Convention,
    convention,
    parted,
)
from costmodel.program.phases import TRAINING_STEP
from costmodel.questions.counting.counts import WEIGHTINGS

OF_GROWTHS = ("dense", "sort=merge")
"""The rewrites that change how a count grows."""

MOST_CHANGES = 3
"""How many changes from a claim's own interpretation are tried. Every published claim that holds
under another interpretation holds after one change."""

POSITIONS = ("t = l", "t = l + 1")
"""Where a formula in l may place one new token: as the last of l tokens, or after l tokens."""


@dataclass(frozen=True)
class Interpretation:
    """One interpretation of a claim; an empty form is the mixer's default form."""

    convention: tuple[str, ...] = ("strict",)
    phase: str = ""
    form: str = ""
    option: str = ""
    """One further option of the mixer, such as `bias`."""
    weighting: str = "total"  # the name in `WEIGHTINGS` of the weights of operations in a total
    once: bool = True
    """Whether the work on parameters alone is counted."""
    per_token: bool = False
    """Whether the count is divided by the length."""
    position: str = ""
    """One of `POSITIONS`; empty where the formula is in t."""

    @cached_property
    def parsed_convention(self) -> Convention:
        """The convention that the names stand for."""
        return convention(self.convention)

    def differs(self, own: Interpretation) -> tuple[str, ...]:
        """The fields that differ from another interpretation, the convention left out."""
        return tuple(name for name in _WORDS if getattr(self, name) != getattr(own, name))

    def names(self, own: Interpretation) -> tuple[str, ...]:
        """The convention's names, and a phrase for each other field that differs from `own`."""
        return (*self.convention, *(_WORDS[name](self) for name in self.differs(own)))

    def words(self, own: Interpretation) -> str:
        """`names` in one phrase, without the convention if it is that of `own`."""
        same = self.parsed_convention == own.parsed_convention and self.differs(own)
        return ", ".join(self.names(own)[len(self.convention) if same else 0 :])

    def changes(self, own: Interpretation) -> int:
        """The distance from another interpretation: how many names of conventions only one of the
        two has, and how many other fields differ. From ("strict",), ("mac",) is 1 away, since the
        accounting is exchanged, ("mac", "dense") 2, another phase 1, a counter of `PEERS` 1."""
        names, others = set(self.parsed_convention.names), set(own.parsed_convention.names)
        left_out = set() if self.parsed_convention.peer else others - names - set(ACCOUNTINGS)
        return len(names - others) + len(left_out) + len(self.differs(own))


_WORDS: Mapping[str, Callable[[Interpretation], str]] = {
    "phase": lambda r: f"phase {r.phase}",
    "form": lambda r: f"form {r.form}",
    "option": lambda r: f"option {r.option}",
    "weighting": lambda r: f"counting {r.weighting}",
    "once": lambda r: "without the work done once",
    "per_token": lambda r: "per token",
    "position": lambda r: r.position,
}
assert set(_WORDS) | {"convention"} == {field.name for field in fields(Interpretation)}


@dataclass(frozen=True)
class LeftOpen:
    """The choices that a claim leaves open: forms, options, phases, and ways to count."""

    forms: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    """The phases other than the claim's own."""
    operations: bool = False
    """Whether a number of operations is claimed."""
    total: bool = False
    """Whether the total over all classes of operations is claimed."""
    positions: bool = False
    """Whether the claim is about one new token, in terms of l."""
    conventions: bool = True
    """Whether the answer depends on the convention."""
    growing: bool = False
    """Whether an order of growth is claimed; then only rewrites of `OF_GROWTHS` are tried."""
    rewrites: frozenset[str] = frozenset()
    """The rewrites of a forward pass that change an equation of a mixer that the claim names, or
    of a part of its network, and so are a choice of the convention."""


@cache
def alternatives(own: Interpretation, left_open: LeftOpen) -> tuple[Interpretation, ...]:
    """Every interpretation (form, convention and other choices of what is counted) in the claim's
    own phase at most `MOST_CHANGES` away from `own`, the one that the claim states, within the
    choices of `left_open`: those with the fewest changes first, and of equally many the conventions
    of other tools last."""
    found = dict.fromkeys(
        interpretation
        for changed in _with_changes(own, left_open)
        for names in _convention_names(own, left_open, changed)
        for interpretation in _at_positions(replace(changed, convention=names), left_open)
        if interpretation != own and interpretation.changes(own) <= MOST_CHANGES
    )
    return tuple(sorted(found, key=lambda r: (r.changes(own), bool(r.parsed_convention.peer))))


@cache
def of_others(own: Interpretation, left_open: LeftOpen) -> tuple[Interpretation, ...]:
    """Interpretations in other phases and for other mixers than the claim's: `own` in each other
    phase, and for the mixer with each further option; after each of these, its alternatives that
    differ from it by at most one more change. The position of the token (t = l or l + 1) does not
    count as a change. `left_open`: the choices that the claim leaves open."""
    found = []
    for other in (
        *(replace(own, phase=phase) for phase in left_open.phases),
        *(replace(own, option=option) for option in left_open.options),
    ):
        # another mixer is far away already: only the rewrites of an order of growth are tried
        more = alternatives(
            other, replace(left_open, growing=left_open.growing or bool(other.option))
        )
        found += [other, *(r for r in more if r.changes(other) - bool(r.position) <= 1)]
    return tuple(found)


def _with_changes(own: Interpretation, left_open: LeftOpen) -> Iterator[Interpretation]:
    """Yield the claim's interpretation with none, one or two of these fields changed: the form; of
    a claimed number of operations, whether work on parameters alone is counted and, except in
    inference, whether the count is per token; of a claimed total, how operations are weighted. The
    convention stays. `left_open` has the forms and says what is claimed."""
    changes: list[Mapping[str, object]] = [{"form": form} for form in left_open.forms]
    if left_open.operations:
        changes += [{"once": False}]
        changes += [{"per_token": True}] if own.phase != "inference" else []
    if left_open.total:
        changes += [{"weighting": name} for name in WEIGHTINGS if name != own.weighting]
    yield own
    for change in changes:
        yield replace(own, **change)  # type: ignore[arg-type]  # names and values of fields
    for one, two in combinations(changes, 2):
        if not one.keys() & two.keys():
            yield replace(own, **one, **two)  # type: ignore[arg-type]  # the same


def _convention_names(
    own: Interpretation, left_open: LeftOpen, changed: Interpretation
) -> Iterator[tuple[str, ...]]:
    """Yield the conventions to try beside the fields of `changed`, each as a tuple of names: every
    accounting (how the terms of a sum count) with every set of rewrites (changes of equations); in
    a phase with gradients each rewrite of gradients, alone and with `dense`; then, for a claimed
    number of operations that `changed` weighs as `own` does, with work on parameters alone, every
    counter of another tool. For an order of growth only the claim's accounting and the rewrites of
    `OF_GROWTHS` are tried; the claim's own convention alone if the answer depends on no convention.
    A rewrite that changes no equation is tried only where the claim names it: the answer without it
    is equal, and nearer."""
    if not left_open.conventions:
        yield own.convention
        return
    chosen = left_open.rewrites - {*(OF_SEQUENCES if changed.phase == "inference" else ())}
    chosen |= {*own.parsed_convention.rewrites}
    tried = OF_GROWTHS if left_open.growing else REWRITES
    left_out = (*SCALES, *OF_GRADIENTS)
    optional: list[tuple[str, ...]] = [
        ("", name) for name in tried if name in chosen and name not in left_out
    ]
    # of the ways to count a scale, the first is the default
    if not left_open.growing and not chosen.isdisjoint(SCALES):
        named = {*SCALES_OF_PAPERS, *own.parsed_convention.rewrites}
        optional.append(("", *(scale for scale in SCALES[1:] if scale in named)))
    accountings = (own.parsed_convention.accounting,) if left_open.growing else tuple(ACCOUNTINGS)
    known = {own.parsed_convention: own.convention}  # the claim's own spelling is kept
    asked = _names_of_backward(own) if changed.phase in TRAINING_STEP else ()
    for names in product(accountings, *optional):
        kept = (*filter(None, names), *asked)
        yield known.get(convention(kept), kept)
    if changed.phase in TRAINING_STEP and not left_open.growing:
        for name, dense in product(_rewrites_of_gradients(own), ((), ("dense",))):
            yield (own.parsed_convention.accounting, *dense, name, *asked)
    if left_open.operations and changed.weighting == own.weighting and changed.once:
        yield from ((peer,) for peer in PEERS)


def _names_of_backward(own: Interpretation) -> tuple[str, ...]:
    """The names of a convention that say what a backward pass computes, such as `recompute=all`,
    which no other interpretation changes."""
    others, _ = parted(own.parsed_convention.rewrites)
    return tuple(name for name in own.parsed_convention.rewrites if name not in others)


def _rewrites_of_gradients(own: Interpretation) -> Iterator[str]:
    """Yield the names of the rewrites that change only a backward pass and that the claim does not
    name, and `only=...` for each set of gradients if the claim states no such set."""
    yield from (
        name for name in OF_GRADIENTS if name not in (*PADDINGS, *own.parsed_convention.rewrites)
    )
    if not own.parsed_convention.backward.only:
        yield from (ONLY + name for name in WANTED)


def _at_positions(interpretation: Interpretation, left_open: LeftOpen) -> Iterator[Interpretation]:
    """Yield the interpretation and, in inference, if the claim's formula names l and not t
    (`left_open.positions`), one for each position of the new token: t = l and t = l + 1."""
    yield interpretation
    if left_open.positions and interpretation.phase == "inference":
        yield from (replace(interpretation, position=position) for position in POSITIONS)
