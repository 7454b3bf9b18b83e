"""The activations: which entries of the forward pass must be kept for the backward pass?

The distinct entries of the forward pass that the equations of the gradients read: inputs and
intermediate results, not parameters. An implementation may keep other entries; the profiler
measures these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Unpack

from costmodel.language.equations import Mixer, System
from costmodel.language.nodes import Array
from costmodel.program.conventions import Convention
from costmodel.program.dependence import anywhere, reads
from costmodel.program.phases import TRAINING_STEP, iteration_domains
from costmodel.program.tokens import tokens
from costmodel.questions.question import (
    BATCH,
    Answers,
    Case,
    Figure,
    Question,
    Sentence,
    Tally,
    always,
    listed,
)
from costmodel.questions.state import entries, numbers, variables_in
from costmodel.questions.subject import Training, about_mixer, asked, system_of
from costmodel.symbolic.at_sizes import Amount
from costmodel.symbolic.constraints import Constraints
from costmodel.symbolic.piecewise import Exact

Regions = dict[Array, list[Constraints]]
"""Array -> regions of its entries, which may overlap."""


@dataclass(frozen=True)
class Activations(Amount):
    """The elements kept for the backward pass, by name of the array; exact."""

    arrays: Mapping[str, Exact]
    """Elements that depend on an input or a context, per sequence."""
    once: Mapping[str, Exact]
    """Elements that depend on weights alone, which are kept once for all sequences of a batch."""

    @property
    def each(self) -> Exact:
        """The elements per sequence."""
        return sum(self.arrays.values(), Exact())

    @property
    def alone(self) -> Exact:
        """The elements that depend on weights alone, per batch."""
        return sum(self.once.values(), Exact())


@cache
def kept_entries(system: System) -> Activations:
    """How many entries of the forward pass the backward pass of a training step reads, by array:
    those kept for each sequence, and those kept once, which follow from weights alone. Inputs,
    contexts and computed arrays count, parameters and the given gradient of the output do not."""
    forward = tokens(system.forward)
    # (regions that depend on an input or a context, regions that depend on weights alone)
    regions: tuple[Regions, Regions] = ({}, {})
    for part in iteration_domains(system, "backward"):
        for read in (anywhere(system, read) for read in reads(part.equation)):
            array = read.ref.array
            kept = array in system.forward.defining or array.role in ("input", "context")
            if not kept or array is system.given:
                continue
            variables = variables_in(part.equation, read.over)
            around = part.constraints | read.constraints
            for where, sequence in forward.dependent_entries(read.ref, around):
                found = entries(read.ref, where, variables, ends=True)
                if found is not None:
                    regions[not sequence].setdefault(array, []).append(found)
    each, once = map(numbers, regions)
    return Activations(each, once)


@about_mixer
def activations(
    mixer: Mixer,
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    **training: Unpack[Training],
) -> Activations:
    """The entries of the forward pass that the equations of the backward pass read.

    Args:
        training: options of the backward pass, such as arrays to recompute instead of keeping.

    Raises:
        Unanswered: the output depends on none of the arrays whose gradients are asked for.
        Unsupported: an equation whose gradient is not derived.

    >>> import costmodel as cm
    >>> cm.activations(cm.mixer("me")).at(l=128, d=128)
    16384
    """
    rewrites = asked(convention, "backward", training).rewrites
    return kept_entries(system_of(mixer, form, rewrites, "backward"))


def _kept(about: Answers) -> Activations:
    return activations(about.mixer, about.form, about.convention)


def _of_a_batch(case: Case) -> Exact:
    kept = case.about.of(_kept)
    return kept.each * BATCH + kept.alone


def _explained(case: Case) -> Iterator[Sentence]:
    """One sentence with the elements of each array, or that nothing is kept."""
    kept = case.about.of(_kept)
    if not (kept.arrays or kept.once):
        yield Sentence(("Nothing is kept from the forward pass.",))
        return
    arrays = listed({**kept.arrays, **kept.once})
    number = f" = {kept.at(**case.sizes):,} at these sizes."
    lead = "Kept from the forward pass, in elements: "
    yield Sentence((lead, *arrays, "; in all ", kept.exact, number))


ACTIVATIONS = Question(
    "activations",
    "Activations",
    (
        Figure(
            "activations",
            "kept from the forward pass for the gradients",
            _of_a_batch,
            header="activations\n(elements)",
            key="activations_elements",
            unit="elements",
            phases=TRAINING_STEP,
            varies=frozenset({"form", "convention"}),
            usual=always,
            claimed=True,
        ),
    ),
    activations,
    (Tally("activations", lambda about, sizes: about.of(_kept).at(**sizes)),),
    explained=_explained,
)
