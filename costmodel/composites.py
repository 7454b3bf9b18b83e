"""What are softmax, scaled scores and the other usual combinations, in the language's own parts?

A file of equations names a composite; `lower` writes it out, under the rewrites in force, so that
a convention such as `safe-softmax` applies to every mixer without naming any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from costmodel import gates, norms, positions
from costmodel.constraints import implied
from costmodel.equations import Equation, Form, System
from costmodel.expressions import (
    Array,
    Binary,
    Call,
    Composite,
    Constant,
    Div,
    Fft,
    Flat,
    Folded,
    Joined,
    Mul,
    Neg,
    Node,
    Reduce,
    Ref,
    Select,
    Sub,
    node,
    reduction,
)
from costmodel.indices import EquationError, Index, UnionIndex, one_by_one
from costmodel.loops import Block, blocks
from costmodel.padding import padded
from costmodel.polynomial import Poly
from costmodel.traversal import walk

SCALES = ("scale=per-score", "scale=mul", "scale=folded")
REWRITES: Mapping[str, str] = {
    "dense": "masked pairs computed, which a causal bound leaves out",
    "safe-softmax": "the row's maximum is subtracted before the exponentials",
    "scale=per-score": "one division per score",
    "scale=mul": "one multiplication per score",
    "scale=folded": "the scale is folded into the weights",
    "softmax-gradient": "the gradient of a softmax comes from its result alone: (g - sum of g y) y",
    "weighted-sum-gradient": "a softmax's sum of g y is that of what it weighs: sum of g_o o",
    "logsumexp-gradient": "a softmax is computed again: exp(s - L), L the logarithm of its sum",
    "scale-gradient": "the scale of scores is applied to the gradients of what they are made of",
    "quotient-gradient": "the gradient of a divisor b takes a / b again: -g (a / b) / b",
    "cases-gradient": "the gradients of both branches of a function by cases are added up",
    "padded": "the zeros around an array are part of it, and their gradients are computed",
    "padded-rows": "the sequence stands between rows of zeros, whose gradients are computed",
    "fft-gradient": "gradients of real transforms by complex ones, those of inverses doubled",
    "zero-state": "a recurrence starts from a row of zeros, which is multiplied like any other",
}


PADDINGS = ("padded", "padded-rows")
OF_GRADIENTS = (
    "softmax-gradient", "weighted-sum-gradient", "logsumexp-gradient", "scale-gradient",
    "quotient-gradient", "cases-gradient", "fft-gradient", *PADDINGS,
)  # fmt: skip
"""Rewrites that change what a backward pass computes. Paddings also write zeros around arrays in
the forward pass, which moves more bytes and computes nothing."""


def scaled(body: Node, by: Poly) -> Node:
    """`body / sqrt(by)`: one division each unless a `scale=` rewrite says otherwise."""
    return Composite("scaled", node(body), by=by)


def softmax(body: Ref, over: Index) -> Node:
    """The softmax of array entries along `over`, an index of the left side.

    Written out as exponentials, their sum and one division each (three equations).
    """
    if not isinstance(body, Ref):
        raise EquationError("softmax takes an array entry: define the scores first")
    return Composite("softmax", body, (over,))


@lru_cache(maxsize=1024)
def lower(form: Form, rewrites: tuple[str, ...] = ()) -> System:
    """Write every composite of a form out, applying the named rewrites.

    Raises:
        ValueError: an unknown rewrite; the message lists the known ones.
    """
    for name in rewrites:
        if name not in REWRITES:
            raise ValueError(f"unknown rewrite '{name}': expected one of {', '.join(REWRITES)}")
    written: list[Equation] = []
    for equation in form.equations:
        for part in _written_out(equation, rewrites):
            value = _rewrite(part.value, lambda c: _SCALES[_scale(rewrites)](c))
            written.append(replace(part, value=value))
    system = System(form.mixer, form.name, tuple(written))
    system = _dense(_filled(system)) if "dense" in rewrites else _range_by_range(system)
    if "padded" in rewrites or "padded-rows" in rewrites:
        system = padded(system, rows="padded-rows" in rewrites)
    return _zero_state(system) if "zero-state" in rewrites else system


def _written_out(equation: Equation, rewrites: Sequence[str]) -> list[Equation]:
    """The equations that the composite on a right side stands for; else the equation itself.

    Raises:
        EquationError: a composite that should stand alone is inside an expression.
    """
    value, parts = equation.value, [equation]
    if isinstance(value, Composite) and value.name in WRITTEN:
        parts = WRITTEN[value.name](equation, value, rewrites)
    for inner in (found for part in parts for found, _ in walk(part.value)):
        if isinstance(inner, Composite) and inner.name in WRITTEN:
            raise EquationError(
                f"{equation.name}: {inner.name} stands alone on its right side; give it an array "
                f"of its own first"
            )
    return parts


def _scale(rewrites: Sequence[str]) -> str:
    chosen = [name for name in rewrites if name in SCALES]
    if len(chosen) > 1:
        raise ValueError(f"choose one of {', '.join(chosen)}")
    return chosen[0] if chosen else SCALES[0]


_SCALES: Mapping[str, Callable[[Composite], Node]] = {
    "scale=per-score": lambda c: Div(c.body, Constant(c.by, 1)),
    "scale=mul": lambda c: Mul(c.body, Constant(c.by, -1)),
    "scale=folded": lambda c: Folded(c.body, Constant(c.by, -1)),
}


def _rewrite(expression: Node, scale: Callable[[Composite], Node]) -> Node:
    """Write out the composites that stay inside one expression."""
    if isinstance(expression, Binary):
        left, right = (_rewrite(child, scale) for child in expression.children)
        return type(expression)(left, right)
    if isinstance(expression, (Neg, Call, Reduce, Joined, Folded)):
        return replace(expression, body=_rewrite(expression.body, scale))
    if isinstance(expression, Composite) and expression.name == "scaled":
        return _rewrite(scale(expression), scale)
    return expression


def _softmax_plain(equation: Equation, composite: Composite) -> list[Equation]:
    return _normalised(equation, composite, composite.body)


def _softmax_safe(equation: Equation, composite: Composite) -> list[Equation]:
    (index,) = composite.over
    rows = _without(equation, index)
    largest = _part(equation, "max", rows, reduction("max", composite.body, composite.over))
    shifted = Sub(composite.body, Ref(largest.array, largest.positions))
    return [largest, *_normalised(equation, composite, shifted)]


_SOFTMAX: Mapping[bool, Callable[[Equation, Composite], list[Equation]]] = {
    False: _softmax_plain,
    True: _softmax_safe,
}


Writer = Callable[[Equation, Composite, Sequence[str]], list[Equation]]
"""What writes a composite out, under the rewrites in force."""


def _under_any(write: Callable[[Equation, Composite], list[Equation]]) -> Writer:
    """What writes a composite out in the same way under all rewrites."""
    return lambda equation, composite, rewrites: write(equation, composite)


STANDING = {**norms.STANDING, **positions.STANDING, **gates.STANDING}
"""The composites of other files, which no rewrite changes."""

WRITTEN: Mapping[str, Writer] = {
    "softmax": lambda e, c, rewrites: _SOFTMAX["safe-softmax" in rewrites](e, c),
    **{name: _under_any(standing.write) for name, standing in STANDING.items()},
}
"""Composite -> what writes it out where it stands alone on a right side."""


def _normalised(equation: Equation, composite: Composite, exponent: Node) -> list[Equation]:
    """The exponentials, their sum over the composite's index, and the quotients."""
    (index,) = composite.over
    if index not in equation.indices:
        raise EquationError(f"{equation.name}: softmax runs over {index.name}, an index of its row")
    powers = _part(equation, "exp", equation.indices, Call("exp", exponent))
    power = Ref(powers.array, powers.positions)
    total = reduction("sum", power, composite.over)
    sums = _part(equation, "sum", _without(equation, index), total)
    quotient = Div(power, Ref(sums.array, sums.positions))
    return [powers, sums, replace(equation, value=quotient)]


def _without(equation: Equation, index: Index) -> tuple[Index, ...]:
    return tuple(i for i in equation.indices if i != index)


def _part(equation: Equation, suffix: str, indices: Sequence[Index], value: Node) -> Equation:
    """An equation for an array of its own, indexed by `indices` and named after the composite."""
    extents = [
        extent
        for position, extent in zip(equation.positions, equation.array.shape, strict=True)
        if position in [i.as_poly() for i in indices]
    ]
    if len(extents) != len(indices):
        raise EquationError(f"{equation.name}: a softmax is indexed by plain indices only")
    ordered = [
        i
        for p in equation.positions
        for i in indices
        if not isinstance(p, Flat) and p == i.as_poly()
    ]
    array = Array(
        f"{equation.name}.{suffix}",
        "intermediate",
        tuple(extents),
        equation.array.owner,
        equation.array.cite,
    )
    positions = tuple(i.as_poly() for i in ordered)
    return Equation(array, positions, value, tuple(indices), equation.part_of)


def _range_by_range(system: System) -> System:
    """Equations of which a free index runs over a union, written once per range."""
    return replace(
        system,
        equations=tuple(
            replace(equation, indices=indices)
            for equation in system.equations
            for indices in one_by_one(equation.indices)
        ),
    )


def _filled(system: System) -> System:
    """Unions of ranges with the gaps between them computed too: masked like what lies around."""
    return replace(
        system,
        equations=tuple(
            replace(
                equation,
                indices=tuple(_hull(index) for index in equation.indices),
                value=_without_gaps(equation.value),
            )
            for equation in system.equations
        ),
    )


def _hull(index: Index) -> Index:
    return index.hull if isinstance(index, UnionIndex) else index


def _without_gaps(expression: Node) -> Node:
    if isinstance(expression, Binary):
        left, right = (_without_gaps(child) for child in expression.children)
        return type(expression)(left, right)
    if isinstance(expression, (Reduce, Joined)):
        over = tuple(_hull(index) for index in expression.over)
        return Reduce(expression.kind, _without_gaps(expression.body), over)
    if isinstance(expression, (Neg, Call, Folded)):
        return replace(expression, body=_without_gaps(expression.body))
    return expression


def _dense(system: System) -> System:
    """Widen every causal upper bound, and every window, to the full axis.

    An index that numbers rows within a chunk keeps its range: the last chunk ends with the rows.
    """
    by_atom = {
        index.atom: index for equation in system.equations for index in _all_indices(equation)
    }
    rows = {
        atom
        for equation in system.equations
        for position in equation.positions
        if isinstance(position, Flat)
        for atom in position.inner.letters
    }
    wide = {
        atom: index if atom in rows else _widened(index, by_atom) for atom, index in by_atom.items()
    }
    return replace(
        system,
        equations=tuple(
            replace(
                equation,
                indices=tuple(wide[i.atom] for i in equation.indices),
                value=_reindexed(equation.value, wide),
            )
            for equation in system.equations
        ),
        beyond=True,
    )


def _zero_state(system: System) -> System:
    """Start the later rows of every loop at row 1, in place of what is written for row 1 alone.

    What they read of row 0 lies outside its array: zeros.
    """
    started = {e: _from_row_1(block, e) for block in blocks(system) for e in block.equations}
    kept = (started[equation] for equation in system.equations)
    equations = tuple(equation for equation in kept if equation)
    return replace(system, equations=equations, beyond=True)


def _from_row_1(block: Block, equation: Equation) -> Equation | None:
    """An equation of a loop as it stands for all rows, None if it is that of row 1 alone."""
    if not block.is_loop:
        return equation
    row = block.row(equation)
    if implied(equation.domain, 1 - row):
        return None
    (index,) = (i for i in equation.indices if i.atom in row.letters)
    first = index + 1 - row
    lower = tuple(first if bound == first + 1 else bound for bound in index.lower)
    started = replace(index, lower=lower)
    indices = tuple(started if i is index else i for i in equation.indices)
    return replace(equation, indices=indices)


def _all_indices(equation: Equation) -> set[Index]:
    return {*equation.indices, *(i for _, over in walk(equation.value) for i in over)}


def _widened(index: Index, by_atom: Mapping[str, Index]) -> Index:
    """An index without its causal upper bound, and without the window that clips its range.

    A bound that names an outer index is left out where one in sizes stands beside it; alone, an
    upper bound becomes what it is at the outer index's own end.
    """

    def named(bound: Poly) -> list[Index]:
        return [by_atom[a] for a in sorted(bound.letters) if a in by_atom]

    upper = [bound for bound in index.upper if not named(bound)]
    lower = tuple(bound for bound in index.lower if not named(bound)) or index.lower
    for bound in () if upper else index.upper:
        outer = named(bound)[0]
        for top in _widened(outer, by_atom).upper:
            upper.append(bound.substitute({outer.atom: top}))
    return replace(index, lower=lower, upper=tuple(dict.fromkeys(upper)))


def _reindexed(expression: Node, wide: Mapping[str, Index]) -> Node:
    if isinstance(expression, Binary):
        left, right = (_reindexed(child, wide) for child in expression.children)
        return type(expression)(left, right)
    if isinstance(expression, (Reduce, Fft, Select)):
        over = tuple(wide[i.atom] for i in expression.over)
        body = _reindexed(expression.body, wide)
        return replace(expression, body=body, over=over)  # type: ignore[arg-type]
    if isinstance(expression, (Neg, Call, Folded)):
        return replace(expression, body=_reindexed(expression.body, wide))
    return expression
