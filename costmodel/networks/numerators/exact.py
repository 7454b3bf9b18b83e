"""Which operations of a training step multiply weights, and which join tokens?

An equation multiplies weights if it sums over an index of a parameter, or if it gives the gradient
of such a parameter. It joins tokens if it sums products of two computed arrays at different places
(scores, sums of values, reads of a state), or if it moves a recurrent state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from costmodel.language.equations import Equation, System
from costmodel.language.nodes import Array, Flat, Reduce, Ref, refs, walk
from costmodel.networks.blocks import Use
from costmodel.networks.training import Graph
from costmodel.program.phases import iteration_domains
from costmodel.program.recurrences import recurrent
from costmodel.questions.counting.by_equation import count_instances
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly


@dataclass(frozen=True)
class Split:
    """Operations of one run of a part in a training step, in the part's own sizes.

    Args:
        weights: all operations of equations that multiply weights, forward and backward.
        joining: all operations of equations that join tokens, forward and backward.
        pairs: the multiplications of the forward pass in `joining`.
    """

    weights: Exact
    joining: Exact
    pairs: Exact


def split(graph: Graph, use: Use) -> Split:
    """The numbers of operations of one run of a part in a training step that multiply weights, and
    of those that join tokens (products of computed arrays at different tokens, recurrent states);
    operations of other equations are in neither. `pairs` are the multiplications of the forward
    pass among the latter.

    Raises:
        Unsupported: an equation whose gradient is not derived.
    """
    own = graph.gradients(use)
    system = own.system
    accounting = graph.counting.convention.accounting
    weights, joining, pairs = Exact(), Exact(), Exact()
    for phase in ("training", "backward"):
        for part in iteration_domains(system if phase == "backward" else system.forward, phase):
            multiplies = multiplies_weights(system, part.equation)
            if not multiplies and not joins_tokens(system, part.equation):
                continue
            tally = count_instances(part, accounting)
            every = sum(tally.values(), Exact())
            if multiplies:
                weights = weights + every
                continue
            joining = joining + every
            if phase == "training":
                pairs = pairs + tally.get("mul", Exact())
    names = matrices(system)
    # additions to gradient rows of chosen matrices (experts), which are no equations of `system`
    weights = sum((n for name, n in own.scattered.items() if name in names), weights)
    return Split(weights, joining, pairs)


@cache
def contracted(system: System) -> frozenset[Array]:
    """The parameters that a forward pass sums over an index of, as W in sum_k x[k] W[k, j]; of a
    parameter read by row number (an embedding) the array of the rows read."""
    found = set()
    for equation in system.forward.equations:
        for ref, over in refs(equation.value):
            bound = {index.atom for index in over}
            if _parameter(ref.array) and bound & _letters(ref):
                found.add(ref.array)
    return frozenset(found)


def matrices(system: System) -> dict[str, Poly]:
    """A dict: name -> number of entries, of each parameter with two axes or more that a forward
    pass sums over an index of, as W in sum_k x[k] W[k, j]: the matrices of which formulas for MFU
    count the products."""
    found: dict[str, Poly] = {}
    for array in contracted(system):
        # rows that are read by number (an embedding) are an array made for the parameter
        whole = next((a for a in array.made_for if a.role == "parameter"), array)
        if len(whole.shape) > 1:
            number = Poly.of(1)
            for extent in whole.shape:
                number = number * extent
            found[whole.name] = number
    return found


def multiplies_weights(system: System, equation: Equation) -> bool:
    """Whether an equation sums over an index of a weight that the forward pass sums over an index
    of (`contracted`), or computes the gradient of such a weight."""
    weights = contracted(system)
    if equation.array.gradient_of in weights:
        return True
    return any(
        ref.array in weights and {index.atom for index in over} & _letters(ref)
        for ref, over in refs(equation.value)
    )


def joins_tokens(system: System, equation: Equation) -> bool:
    """Whether an equation sums products of computed arrays (no parameter, no buffer) read at
    different positions, as Q[i, h] K[j, h], or computes a recurrent state or its gradient."""
    if {equation.array, equation.array.gradient_of} & recurrent(system.forward):
        return True
    reductions = (node for node, _ in walk(equation.value) if isinstance(node, Reduce))
    for body in (node.body for node in reductions if node.kind == "sum"):
        inner = [ref for ref, _ in refs(body) if not _parameter(ref.array)]
        inner = [ref for ref in inner if ref.array.role != "buffer"]
        if len({ref.positions for ref in inner}) > 1:
            return True
    return False


def _parameter(array: Array) -> bool:
    """Whether an array is a parameter, or holds rows of a parameter that are read by number."""
    return array.role == "parameter" or (
        array.role == "context" and any(a.role == "parameter" for a in array.made_for)
    )


def _letters(ref: Ref) -> set[str]:
    """The names of the indices in the positions of a reference ({"i", "k"} for x[i, k]), except
    positions that an entry of another array gives (a gather)."""
    found: set[str] = set()
    for position in ref.positions:
        if isinstance(position, Flat):
            found |= position.outer.letters | position.inner.letters
        elif isinstance(position, Poly):
            found |= position.letters
    return found
