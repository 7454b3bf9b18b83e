"""What does one form of one mixer cost in one phase, with a reason for what does not exist?

Every answer is derived when it is first asked for, for b sequences, as an exact sum in the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TypeVar

from costmodel.errors import Unanswered, Unsupported
from costmodel.language.equations import Mixer
from costmodel.language.functions import CLASSES
from costmodel.paths.witness import CriticalPath
from costmodel.program.conventions import PEERS, Convention
from costmodel.program.phases import Overrun, inference_reason, overruns
from costmodel.questions.activations import activations
from costmodel.questions.count import count
from costmodel.questions.counts import Counts
from costmodel.questions.critical_path import critical_path
from costmodel.questions.order import Order, order
from costmodel.questions.parameters import parameters
from costmodel.questions.path_length import path_length
from costmodel.questions.peak import Peak, peak
from costmodel.questions.sequential import sequential
from costmodel.questions.span import Span, span
from costmodel.questions.state import state
from costmodel.questions.subject import system_of
from costmodel.questions.traffic import Elements, element_bytes, traffic, weights_read
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly

BATCH = Poly.atom("b")
T = TypeVar("T")


@dataclass(frozen=True)
class Missing:
    """An answer that does not exist; the reason is one sentence."""

    reason: str


@dataclass(frozen=True)
class Dtypes:
    """Element types by role; None where the role has the type of the activations."""

    activations: str = "fp32"
    state: str | None = None
    weights: str | None = None

    @property
    def caption(self) -> str:
        """What a caption says about them."""
        roles = {"state": self.state, "weights": self.weights}
        named = [f"{role} {dtype}" for role, dtype in roles.items() if dtype]
        return ", ".join([f"elements {self.activations}", *named])

    def bytes_of(self, kind: str) -> int:
        """The size of an element of a kind, in bytes; ValueError lists the known types."""
        own = {"state": self.state, "weights": self.weights}.get(kind)
        return element_bytes(own or self.activations)


def _attempt(question: Callable[[], T]) -> T | Missing:
    try:
        return question()
    except (Unanswered, Unsupported) as reason:
        return Missing(str(reason))


@dataclass(frozen=True, eq=False)
class Answers:
    """Every question about one form of a mixer in one phase under one convention."""

    mixer: Mixer
    form: str
    phase: str
    convention: Convention

    @cached_property
    def unanswered(self) -> str | None:
        """Why this form has no such phase, or None."""
        if self.phase != "inference":
            return None
        return inference_reason(system_of(self.mixer, self.form, (), self.phase))

    @cached_property
    def counts(self) -> Counts | Missing:
        """Operations for one sequence."""
        return _attempt(lambda: count(self.mixer, self.phase, self.form, self.convention))

    def operations(self, name: str) -> Exact | Missing:
        """Operations of one class; Missing where a peer does not count it."""
        if isinstance(self.counts, Missing):
            return self.counts
        if reason := self.uncounted(name):
            return Missing(reason)
        joined = self.counts.joined * (BATCH - 1) if name == "add" else Exact()
        return self.counts.exact(name) * BATCH + joined

    @cached_property
    def other(self) -> Mapping[str, Exact] | Missing:
        """Operations outside mul, add, div and exp, by name."""
        if isinstance(self.counts, Missing):
            return self.counts
        if reason := self.uncounted("other"):
            return Missing(reason)
        found = self.counts.classes.items()
        return {name: value * BATCH for name, value in found if name not in CLASSES}

    @cached_property
    def once(self) -> Mapping[str, Exact] | Missing:
        """Work on parameters alone, by class; it is done once for all sequences."""
        if isinstance(self.counts, Missing):
            return self.counts
        if reason := self.uncounted("once"):
            return Missing(reason)
        return dict(self.counts.once.classes) if self.counts.once else {}

    @cached_property
    def total(self) -> Exact | Missing:
        """Every operation, each counted 1, with the work done once."""
        if isinstance(self.counts, Missing):
            return self.counts
        once = self.counts.once.exact_total if self.counts.once else Exact()
        each = self.counts.exact_total - once
        return each * BATCH + once + self.counts.joined * (BATCH - 1)

    def uncounted(self, name: str) -> str | None:
        """Why a peer has no figure for a class, or None."""
        peer = PEERS[self.convention.peer] if self.convention.peer else None
        if peer is None or name in peer.counted:
            return None
        return f"{peer.name} does not count {peer.words(name)}"

    @cached_property
    def parameters(self) -> Exact:
        """Trainable numbers."""
        return Exact.of(parameters(self.mixer).poly)

    @cached_property
    def span(self) -> Span | Missing:
        """Levels of dependent operations."""
        return _attempt(lambda: span(self.mixer, self.phase, self.form, self.convention))

    @cached_property
    def sequential(self) -> Exact | Missing:
        """Steps that follow one another."""
        return _attempt(
            lambda: sequential(self.mixer, self.phase, self.form, self.convention).exact
        )

    @cached_property
    def path_length(self) -> Exact | Missing:
        """Hops between the two positions that are furthest apart."""
        return _attempt(lambda: path_length(self.mixer, self.form).exact)

    def path(self, sizes: Mapping[str, int] | None) -> CriticalPath | Missing:
        """The longest chain of steps; sizes break ties."""
        return _attempt(
            lambda: critical_path(self.mixer, self.phase, self.form, self.convention, sizes)
        )

    @cached_property
    def state(self) -> Exact | Missing:
        """Elements held after t tokens."""
        if self.phase != "inference":
            return Missing("state is what one new token needs: it stands in the inference rows")
        return _attempt(lambda: state(self.mixer, self.form).exact * BATCH)

    @cached_property
    def activations(self) -> Exact | Missing:
        """Elements of the forward pass that its gradients read."""
        kept = _attempt(lambda: activations(self.mixer, self.form, self.convention))
        return kept if isinstance(kept, Missing) else kept.each * BATCH + kept.alone

    @cached_property
    def peak(self) -> Peak | Missing:
        """The largest live set of the phase."""
        return _attempt(lambda: peak(self.mixer, self.phase, self.form, self.convention))

    @cached_property
    def weights(self) -> Exact | Missing:
        """Distinct weights read, once for all sequences."""
        return _attempt(lambda: weights_read(self.mixer, self.phase, self.form, self.convention))

    def bytes_moved(self, kind: str, dtypes: Dtypes) -> Exact | Missing:
        """Bytes of `compulsory` or `unfused` traffic."""
        moved = _attempt(lambda: traffic(self.mixer, self.phase, self.form, self.convention))
        if isinstance(moved, Missing):
            return moved
        elements: Elements = getattr(moved, kind)
        result = Exact()
        for role, number in elements.kinds.items():
            each = number if role == "weights" else number * BATCH
            result = result + each * dtypes.bytes_of(role)
        return result

    @cached_property
    def order(self) -> Order | Missing:
        """The monomials of the total that no other one dominates."""
        return self.counts if isinstance(self.counts, Missing) else order(self.counts.exact_total)

    @cached_property
    def _overruns(self) -> tuple[Overrun, ...]:
        if self.phase != "inference" or self.unanswered:
            return ()
        return overruns(system_of(self.mixer, self.form, self.convention.rewrites, self.phase))

    def beyond(self, sizes: Mapping[str, int]) -> str | None:
        """Why position t lies beyond what the weights cover at these sizes, or None."""
        return next((o.reason(sizes) for o in self._overruns if o.at(sizes)), None)


@cache
def answers(mixer: Mixer, form: str, phase: str, convention: Convention) -> Answers:
    """The answers about one form of a mixer, derived once a process."""
    return Answers(mixer, form, phase, convention)
