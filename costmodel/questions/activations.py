"""The activations: which entries of the forward pass must be kept for the backward pass?

The distinct entries of the forward pass that the equations of the gradients read: inputs and
intermediate results, not parameters. An implementation may keep other entries; the profiler
measures these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    Share,
    Tally,
    always,
    listed,
    over_parts,
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
    """The elements kept for the backward pass, by array (of a network, by part); exact."""

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
    """The numbers of entries of the forward pass that the backward pass of a training step reads,
    name of the array -> number: `arrays` for each sequence, `once` (from weights alone) for all
    sequences. Inputs, contexts and computed arrays count; parameters, buffers and the given
    gradient of the output do not."""
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
            for where, of_a_sequence in forward.dependent_entries(read.ref, around):
                region = entries(read.ref, where, variables, ends=True)
                if region is not None:
                    regions[not of_a_sequence].setdefault(array, []).append(region)
    each, once = map(numbers, regions)
    return Activations(each, once)


@about_mixer
def activations(
    mixer: Mixer,
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    **training: Unpack[Training],
) -> Activations:
    """The number of entries of the forward pass that the backward pass reads, by array, as
    polynomials in the sizes.

    Args:
        form: the form's name; the default form if None.
        convention: `strict` or `mac` (no effect here) and rewrites of the equations.
        training: options of the backward pass, as in `count`: `recompute`, `only`, `loss`.

    Raises:
        Unanswered: the output depends on none of the arrays whose gradients are asked for.
        Unsupported: an equation whose gradient is not derived.

    >>> import costmodel as cm
    >>> cm.activations(cm.mixer("me")).at(l=128, d=128)
    16384
    """
    rewrites = asked(convention, "backward", training).rewrites
    return kept_entries(system_of(mixer, form, rewrites, "backward"))


def _of_parts(shares: Sequence[Share[Activations]]) -> Activations:
    """The entries that a network keeps for its backward pass, by part: those of one sequence times
    the runs of the part, and those that follow from weights alone times its sets of weights.
    `shares`: each part's answer, with how often the part runs and how many sets of weights it has.
    An array between two parts is in the share of one of them."""
    each: dict[str, Exact] = {}
    once: dict[str, Exact] = {}
    for share in shares:
        for found, number, times in (
            (each, share.answer.each, share.runs),
            (once, share.answer.alone, share.copies),
        ):
            if not number.is_zero:
                elements = number.substitute(share.sizes) * times
                found[share.name] = found.get(share.name, Exact()) + elements
    return Activations(each, once)


@over_parts(_of_parts)
def activations_of(about: Answers) -> Activations:
    """The activations of a form under a convention."""
    return activations(about.mixer, about.form, about.convention)


def _of_a_batch(case: Case) -> Exact:
    found = case.about.of(activations_of)
    return found.each * BATCH + found.alone


def _of_gathers(cases: Sequence[Case], shown: Sequence[str]) -> Iterator[str]:
    """Yield a note if some case reads entries that data or a table choose. `shown` (the columns) is
    not used: all notes take it."""
    if any(case.gathers for case in cases):
        yield "activations: every entry that a gather may select is held"


def _explained(case: Case) -> Iterator[Sentence]:
    """Yield one sentence of `explain` on a case (a form in a phase, at sizes): how many elements of
    each array and in all are kept, or that none is kept."""
    found = case.about.of(activations_of)
    if not (found.arrays or found.once):
        yield Sentence(("Nothing is kept from the forward pass.",))
        return
    arrays = listed({**found.arrays, **found.once})
    number = f" = {found.at(**case.sizes):,} at these sizes."
    lead = "Kept from the forward pass, in elements: "
    yield Sentence((lead, *arrays, "; in all ", found.exact, number))


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
            notes=(_of_gathers,),
        ),
    ),
    activations,
    (Tally("activations", lambda about, sizes: about.of(activations_of).at(**sizes)),),
    explained=_explained,
)
