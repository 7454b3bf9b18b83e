"""In which ways may a claim about a cost be read, and which of them differ least from its own?

Read otherwise than its convention, phase and form say, the same formula may be true: under another
accounting or rewrite, by another tool's counter, of another form or a variant of the mixer, added
up or divided in another way, or of another phase. Gradients are read besides as kernels take them,
and as those of the parameters or of the inputs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import combinations, product

from costmodel.program.conventions import (
    ACCOUNTINGS,
    OF_GRADIENTS,
    ONLY,
    PADDINGS,
    PEERS,
    REWRITES,
    SCALES,
    WANTED,
    Convention,
    convention,
    parted,
)
from costmodel.program.phases import TRAINING_STEP
from costmodel.questions.counts import WEIGHTINGS

POSITIONS = ("t = l", "t = l + 1")
"""What a formula in l may mean by one new token: the last of l tokens, or the one after l."""


@dataclass(frozen=True)
class Reading:
    """One way to read a claim; an empty form is the default one."""

    convention: tuple[str, ...] = ("strict",)
    phase: str = ""
    form: str = ""
    option: str = ""
    """An option that the mixer is written with besides, such as `bias`."""
    weighting: str = "total"
    once: bool = True
    """Whether the work on parameters alone is counted."""
    per_token: bool = False
    """Whether the count is divided by the length."""
    position: str = ""
    """One of `POSITIONS`, or t itself."""

    @property
    def read(self) -> Convention:
        """The convention."""
        return convention(self.convention)

    def differs(self, own: Reading) -> tuple[str, ...]:
        """In what it differs from another reading, the convention left out."""
        return tuple(name for name in _WORDS if getattr(self, name) != getattr(own, name))

    def names(self, own: Reading) -> tuple[str, ...]:
        """The convention's names, and in words what else differs from a claim's own reading."""
        return (*self.convention, *(_WORDS[name](self) for name in self.differs(own)))

    def words(self, own: Reading) -> str:
        """The same in one phrase, the convention left out where it is the claim's own."""
        same = self.read == own.read and self.differs(own)
        return ", ".join(self.names(own)[len(self.convention) if same else 0 :])

    def changes(self, own: Reading) -> int:
        """How many names and words tell it from another reading."""
        names, others = set(self.read.names), set(own.read.names)
        left_out = set() if self.read.peer else others - names - set(ACCOUNTINGS)
        return len(names - others) + len(left_out) + len(self.differs(own))


_WORDS: Mapping[str, Callable[[Reading], str]] = {
    "phase": lambda r: f"phase {r.phase}",
    "form": lambda r: f"form {r.form}",
    "option": lambda r: f"option {r.option}",
    "weighting": lambda r: f"counting {r.weighting}",
    "once": lambda r: "without what is done once",
    "per_token": lambda r: "per token",
    "position": lambda r: r.position,
}
assert set(_WORDS) | {"convention"} == {field.name for field in fields(Reading)}


@dataclass(frozen=True)
class Scope:
    """What a claim leaves room for: the other forms and options of its mixer, and what it asks."""

    forms: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    """The other phases."""
    operations: bool = False
    """A number of operations is claimed."""
    total: bool = False
    """All classes together are."""
    positions: bool = False
    """One new token is claimed, in terms of l."""
    conventions: bool = True
    """The answer depends on the convention."""
    growing: bool = False
    """Of all conventions `dense` alone is tried: no other one changes how an answer grows."""


def alternatives(own: Reading, scope: Scope) -> list[Reading]:
    """Every other reading in the claim's own phase, the least different ones first."""
    found = dict.fromkeys(
        reading
        for changed in _changed(own, scope)
        for names in _conventions(own, scope, changed)
        for reading in _placed(replace(changed, convention=names), scope)
        if reading != own
    )
    return sorted(found, key=lambda r: (r.changes(own), bool(r.read.peer)))


def of_others(own: Reading, scope: Scope) -> list[Reading]:
    """The claim's reading of another phase, or of the mixer with one more option, and those that
    differ from it in one thing more."""
    found = []
    for other in (
        *(replace(own, phase=phase) for phase in scope.phases),
        *(replace(own, option=option) for option in scope.options),
    ):
        more = alternatives(other, replace(scope, growing=scope.growing or bool(other.option)))
        found += [other, *(r for r in more if r.changes(other) - bool(r.position) <= 1)]
    return found


def _changed(own: Reading, scope: Scope) -> Iterator[Reading]:
    """The claim's reading with nothing, one thing or two things changed beside the convention."""
    changes: list[Mapping[str, object]] = [{"form": form} for form in scope.forms]
    if scope.operations:
        changes += [{"once": False}]
        changes += [{"per_token": True}] if own.phase != "inference" else []
    if scope.total:
        changes += [{"weighting": name} for name in WEIGHTINGS if name != own.weighting]
    yield own
    for change in changes:
        yield replace(own, **change)  # type: ignore[arg-type]  # names and values of fields
    for one, two in combinations(changes, 2):
        if not one.keys() & two.keys():
            yield replace(own, **one, **two)  # type: ignore[arg-type]  # the same


def _conventions(own: Reading, scope: Scope, changed: Reading) -> Iterator[tuple[str, ...]]:
    """Every accounting with every set of rewrites, then every peer alone."""
    if not scope.conventions:
        yield own.convention
        return
    rewrites = (
        ("dense",)
        if scope.growing
        else tuple(r for r in REWRITES if r not in (*SCALES, *OF_GRADIENTS))
    )
    optional: list[tuple[str, ...]] = [("", rewrite) for rewrite in rewrites]
    if not scope.growing:
        optional.append(("", *SCALES[1:]))
    accountings = (own.read.accounting,) if scope.growing else tuple(ACCOUNTINGS)
    known = {own.read: own.convention}
    asked = _of_the_backward_pass(own) if changed.phase in TRAINING_STEP else ()
    for names in product(accountings, *optional):
        kept = (*filter(None, names), *asked)
        yield known.get(convention(kept), kept)
    if changed.phase in TRAINING_STEP and not scope.growing:
        for name, dense in product(_ways_of_gradients(own), ((), ("dense",))):
            yield (own.read.accounting, *dense, name, *asked)
    if scope.operations and changed.weighting == own.weighting and changed.once:
        yield from ((peer,) for peer in PEERS)


def _of_the_backward_pass(own: Reading) -> tuple[str, ...]:
    """The names of a convention that say what a backward pass computes: any reading keeps them."""
    others, _ = parted(own.read.rewrites)
    return tuple(name for name in own.read.rewrites if name not in others)


def _ways_of_gradients(own: Reading) -> Iterator[str]:
    """The rewrites that change a backward pass alone, each tried by itself and beside `dense`; and
    that it takes some gradients only, where the claim does not say which ones."""
    yield from (name for name in OF_GRADIENTS if name not in (*PADDINGS, *own.read.rewrites))
    if not own.read.backward.only:
        yield from (ONLY + name for name in WANTED)


def _placed(reading: Reading, scope: Scope) -> Iterator[Reading]:
    """The reading, and the positions that a formula in l may mean."""
    yield reading
    if scope.positions and reading.phase == "inference":
        yield from (replace(reading, position=position) for position in POSITIONS)
