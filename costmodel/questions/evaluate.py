"""The values of a mixer's arrays by numpy: the reference that a torch module must equal.

Each equation is evaluated over the whole grid of its indices, in the dtype of the given arrays;
grid points outside of the domain are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from costmodel.errors import EquationError, Unsupported
from costmodel.language.buffers import buffer_values, check_positions
from costmodel.language.equations import TRAINED, Equation, Mixer, System, rank, rows
from costmodel.language.nodes import (
    OPAQUE,
    Add,
    Along,
    Array,
    Bracket,
    Call,
    Composite,
    Constant,
    Div,
    Fft,
    FreeScale,
    Gather,
    Maximum,
    Mul,
    Neg,
    Node,
    Reduce,
    Ref,
    Scan,
    Select,
    Sub,
    names_in,
    position_value,
)
from costmodel.language.rule_table import WRITTEN_OUT, Rules
from costmodel.program.conventions import (
    Convention,
    computes_masked,
    convention as named_convention,
)
from costmodel.program.grid import Grid, in_turn, places, points
from costmodel.program.recurrences import blocks
from costmodel.questions.subject import Training, asked, system_of
from costmodel.symbolic.polynomial import Poly

if TYPE_CHECKING:
    from costmodel.questions.numeric import Values


def evaluate(
    mixer: Mixer,
    arrays: Mapping[str, Values],
    sizes: Mapping[str, int],
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
) -> Values:
    """The values of a mixer's output, computed with numpy.

    Args:
        arrays: name -> array, for each input, context, parameter, and buffer without values of its
            own, shaped as declared, such as x (l, d).
        sizes: an integer for every letter of the mixer.
        form: the form's name; the default form if None.
        convention: its rewrites of the equations are applied; `dense` changes no value.

    Returns:
        The output, e.g. y (l, d).

    Raises:
        EquationError: an unknown form; an array that is missing or misshapen (the message has both
            shapes), or has positions that are not allowed; or an entry defined outside its array.
    """
    return evaluate_all(mixer, arrays, sizes, form, convention)[mixer.role("output").name]


def evaluate_all(
    mixer: Mixer,
    arrays: Mapping[str, Values],
    sizes: Mapping[str, int],
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    phase: str = "training",
    held: Mapping[str, Values] = MappingProxyType({}),
) -> dict[str, Values]:
    """Name of an array -> its values, for every array of a form in a phase, from the given `arrays`
    (name -> values), which the result holds too. EquationError for a given array that is missing or
    misshapen. Arrays in `held` keep the values there; their equations are not evaluated.

    The rewrite `dense` is ignored, since the pairs that it adds are masked and change no value.
    """
    named = named_convention(convention).rewrites
    rewrites = tuple(r for r in named if not computes_masked([r]))
    return evaluate_system(system_of(mixer, form, rewrites, phase), arrays, sizes, held)


def evaluate_system(
    system: System,
    arrays: Mapping[str, Values],
    sizes: Mapping[str, int],
    held: Mapping[str, Values] = MappingProxyType({}),
) -> dict[str, Values]:
    """Name of an array -> its values in the declared shape, for every array of a system, from the
    given `arrays` (name -> values) and `held`, the values that some computed arrays keep in place
    of those of their equations, such as values that a module has computed. A buffer that `arrays`
    lacks has its own values, if the mixer gives some. Values have the common dtype of the given
    arrays, index arrays int64. EquationError for a given array that is missing or misshapen."""
    import numpy as np

    known: dict[str, Values] = {}
    declared = [array for array in system.mixer.arrays.values() if array.role != "output"]
    own = [array for array in declared if array.value is not None and array.name not in arrays]
    for array in declared:
        if array not in own:
            known[array.name] = _given(array, arrays, sizes)
    dtype = np.result_type(*known.values())
    for array in own:
        values = buffer_values(array, sizes)
        known[array.name] = values if array.below is not None else values.astype(dtype)
    known |= held
    for equation in system.equations:
        shape = tuple(max(0, extent.at(sizes)) for extent in equation.array.shape)
        kind = dtype if equation.array.below is None else np.dtype(np.int64)
        known.setdefault(equation.name, np.zeros(shape, kind))
    for block in blocks(system):
        for equation in in_turn(block, sizes):
            if equation.name not in held:
                _assign(equation, known, sizes)
    return known


def gradients(
    mixer: Mixer,
    arrays: Mapping[str, Values],
    gradient: Values,
    sizes: Mapping[str, int],
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    **training: Unpack[Training],
) -> dict[str, Values]:
    """The gradients of a loss with respect to inputs, contexts and parameters: name of the array ->
    its gradient, of the same shape. Arrays without a gradient are left out.

    Args:
        arrays: name -> array, as in `evaluate`; with the option `loss` also its target, named
            `y.target` for an output y.
        gradient: the gradient of the loss with respect to the output, shaped like the output; with
            the option `loss` the gradient with respect to the loss itself, shaped (1,).
        training: options of the backward pass, as in `count`: `recompute`, `only`, `loss`.

    Raises:
        EquationError: an unknown form, or an array that is missing or misshapen.
        Unanswered: the output depends on none of the arrays whose gradients are asked for.
        Unsupported: an equation whose gradient is not derived.
    """
    names = asked(convention, "backward", training)
    step = system_of(mixer, form, names.rewrites, "training-step")
    given = step.given.name
    known = evaluate_all(mixer, {**arrays, given: gradient}, sizes, form, names, "training-step")
    found = {e.array.gradient_of: known[e.name] for e in step.backward if e.name in known}
    arrays_ = mixer.arrays.values()
    return {a.name: found[a] for a in arrays_ if a in found and a.role in TRAINED}


def _given(array: Array, arrays: Mapping[str, Values], sizes: Mapping[str, int]) -> Values:
    """The given values of an array. EquationError if they are missing, have another shape than
    declared, or, of an index array, lie outside of the positions that it may hold."""
    import numpy as np

    if array.name not in arrays:
        raise EquationError(f"{array.owner.name} needs an array '{array.name}'")
    value = np.asarray(arrays[array.name])
    shape = tuple(extent.at(sizes) for extent in array.shape)
    if value.shape != shape:
        raise EquationError(f"{array.name} has shape {value.shape}, expected {shape}")
    check_positions(array, value, sizes)
    return value


def _entry(grid: Grid, ref: Ref) -> Values:
    """The values that a reference such as A[i, j - 1] reads at every point of the grid (all values
    of an equation's indices), broadcastable to the grid's shape; 0 at the points of the mask
    `outside` (None: no points), where a position is outside of the array."""
    import numpy as np

    array, at = grid.known[ref.array.name], grid.points
    if any(isinstance(p, Gather) for p in ref.positions):
        positions = [
            (_entry(grid, p.at) - 1) * at.value(p.extent) + at.value(p.inner)
            if isinstance(p, Gather)
            else at.value(position_value(p))
            for p in ref.positions
        ]
        where, outside = places(positions, array.shape)
    else:
        where, outside = at.entries(ref.positions, array.shape)
    if not array.size:
        return np.zeros(np.broadcast_shapes(*(np.shape(w) for w in where)))
    return array[where] if outside is None else np.where(outside, 0.0, array[where])


def _constant(grid: Grid, node: Constant) -> Any:
    """base ** (half_power / 2) as a float; for a base with indices, the base at every point."""
    if node.base.variables:
        return grid.points.value(node.base)
    return float(node.base.rational(grid.points.sizes)) ** (node.half_power / 2)


def _arithmetic(name: str) -> Callable[[Grid, Any], Any]:
    """The rule that applies the numpy function `name` to the values of both operands."""

    def rule(grid: Grid, node: Any) -> Any:
        import numpy as np

        left, right = (_value(grid, child) for child in node.children)
        return getattr(np, name)(left, right)

    return rule


def _neg(grid: Grid, node: Neg) -> Any:
    return -_value(grid, node.body)


def _free_scale(grid: Grid, node: FreeScale) -> Any:
    return _value(grid, node.body) * _constant(grid, node.factor)


def _call(grid: Grid, node: Call) -> Any:
    from costmodel.questions.numeric import VALUES

    return VALUES[node.function](_value(grid, node.body))


def _reduce(grid: Grid, node: Reduce) -> Any:
    """The sum or maximum over indices that run over one or several ranges, at every point of the
    grid (all values of an equation's indices): that of each range, then of all."""
    import functools

    import numpy as np

    join = {"sum": np.add, "max": np.maximum}[node.kind]
    return functools.reduce(join, (_reduced(grid, part) for part in node.parts))


def _reduced(grid: Grid, node: Reduce) -> Any:
    """The sum or maximum over indices with one range each (the last axes of the inner grid), at
    every point of the grid; without terms a sum is 0, a maximum minus infinity."""
    import numpy as np

    inner = grid.extended(node.over)
    body = np.asarray(_value(inner, node.body))
    at = inner.points
    axes = tuple(range(len(grid.points.indices), len(at.indices)))
    body = np.broadcast_to(body, np.broadcast_shapes(body.shape, at.shape))
    nothing = 0.0 if node.kind == "sum" else -np.inf
    body = body if at.full else np.where(at.mask, body, nothing)
    return body.sum(axis=axes) if node.kind == "sum" else body.max(axis=axes, initial=nothing)


def _bracket(grid: Grid, node: Bracket) -> Any:
    """The values of a bracket at every point of the grid: the body where the relation holds;
    elsewhere the alternative, or 0 without an alternative. If the bracket names an index in
    `first`, only the first point along this index's axis at which the relation holds has the
    body."""
    import numpy as np

    left, right, body = (_value(grid, part) for part in (node.left, node.right, node.body))
    holds = left > right if node.relation == ">" else left == right
    if node.first:
        at = grid.points
        holds = holds & at.mask
        (axis,) = (k for k, i in enumerate(at.indices) if i.atom == node.first[0].atom)
        along = at.along[node.first[0].atom].shape
        holds = np.broadcast_to(holds, np.broadcast_shapes(holds.shape, along))
        holds = holds & (np.cumsum(holds, axis=axis) == 1)
    return np.where(holds, body, 0.0 if node.otherwise is None else _value(grid, node.otherwise))


def _opaque(grid: Grid, node: Along | Select) -> Any:
    """Raise Unsupported: `ALONE` evaluates these nodes, as whole right sides."""
    raise Unsupported(
        f"{node.kind} stands inside an expression: define an array by {node.kind} alone, and read "
        "it"
    )


RULES: Rules[Callable[..., Any]] = Rules(
    "evaluate",
    {
        Constant: _constant,
        Ref: _entry,
        Add: _arithmetic("add"),
        Sub: _arithmetic("subtract"),
        Mul: _arithmetic("multiply"),
        Div: _arithmetic("divide"),
        Maximum: _arithmetic("maximum"),
        Neg: _neg,
        FreeScale: _free_scale,
        Call: _call,
        Reduce: _reduce,
        Bracket: _bracket,
        Fft: _opaque,
        Scan: _opaque,
        Select: _opaque,
        Composite: WRITTEN_OUT,
    },
)
"""Kind of node -> its values over a grid of points."""


def _value(grid: Grid, node: Node) -> Any:
    return RULES[type(node)](grid, node)


def _assign(equation: Equation, known: dict[str, Values], sizes: Mapping[str, int]) -> None:
    """Evaluate an equation at all its points, and write the values to its array in `known` (name ->
    values). A node that is a whole right side (`alone`), such as a scan, has its own function."""
    import numpy as np

    if equation.value.alone:
        ALONE[type(equation.value)](equation, equation.value, known, sizes)
        return
    grid = Grid(points(equation.indices, tuple(sizes.items())), known)
    with np.errstate(all="ignore"):
        grid.put(equation, _value(grid, equation.value))


def _select(
    equation: Equation, node: Select, known: dict[str, Values], sizes: Mapping[str, int]
) -> None:
    """Write the positions that a selection keeps of each row to its array in `known`, by rank along
    the last axis (no such axis for argmax): of the largest entry first, of a sort the smallest."""
    numbers = rank(equation)
    indices = rows(equation) + (() if numbers is None else (numbers,))
    grid = Grid(points(indices, tuple(sizes.items())), known)
    grid.put(equation, _chosen(equation, node, grid))


def _chosen(equation: Equation, node: Select, grid: Grid) -> Values:
    """The positions (counted from 1) that a selection keeps of each row, ordered by rank along the
    last axis (no such axis for argmax). The grid masks ranks beyond a row's number of entries: they
    get any position, 0 beyond the entries of the longest row.

    Args:
        grid: the points of the rows and, unless the selection is an argmax, of the ranks.
    """
    import numpy as np

    inner = Grid(points(rows(equation) + node.over, grid.points.known), grid.known)
    at, shape = inner.points, inner.points.shape
    body = np.broadcast_to(_entry(inner, node.body), shape)
    outside = ~np.broadcast_to(at.mask, shape)
    key = body if node.sorts else -body  # a sort ascends, other selections begin at the largest
    # entries outside the range come last, and of equal entries the first comes first
    order = np.lexsort((key, outside), axis=-1) + at.extent(node.over[0])[0]
    if rank(equation) is None:
        return order[..., 0] if order.size else np.zeros(shape[:-1], np.int64)
    # a row of ranks may be longer than the number of entries: the missing positions are 0
    width = max(0, grid.points.extent(grid.points.indices[-1])[1])
    missing = [(0, 0)] * (order.ndim - 1) + [(0, max(0, width - order.shape[-1]))]
    return np.pad(order, missing)[..., :width]


def _transform(
    equation: Equation, node: Fft, known: dict[str, Values], sizes: Mapping[str, int]
) -> None:
    """Write the values of a Fourier transform to the equation's array in `known`. The functions of
    `TRANSFORMS` take and return the transformed axes last, behind the axes of the indices that both
    sides share (i of y[i, k] = fft of x[i, j] over j); axes are transposed before and after."""
    import numpy as np

    from costmodel.questions.numeric import TRANSFORMS

    source = known[node.body.array.name]
    shared = [i.atom for i in equation.indices if i.atom in names_in(node.body.positions)]
    over = [index.atom for index in node.over]
    source = source.transpose([_axis(node.body.positions, name) for name in shared + over])
    points = node.length.at(sizes)
    result = TRANSFORMS[node.kind](source, points)
    target = known[equation.name]
    produced = [i.atom for i in equation.indices if i.atom not in shared]
    places = [_axis(equation.positions, name) for name in shared + produced]
    # an inverse transform has `length` points, of which the array keeps the first rows
    kept = tuple(slice(target.shape[axis]) for axis in places)
    target[...] = np.transpose(result[kept], np.argsort(places))


def _scan(
    equation: Equation, node: Scan, known: dict[str, Values], sizes: Mapping[str, int]
) -> None:
    """Write the results of a scan, y[i] = kept[i] y[i - 1] + added[i] (with `reverse`, from the
    last row to the first, y[i] = kept[i + 1] y[i + 1] + added[i]), to the equation's array in
    `known`. `result`, with the rows as last axis, begins as `added` (the node's body)."""
    import numpy as np

    read = names_in(node.body.positions)
    shared = tuple(i for i in equation.indices if i.atom in read)
    rows = tuple(i for i in equation.indices if i.atom not in read)
    inner = Grid(points(shared + node.over, tuple(sizes.items())), known)
    kept, result = (
        np.broadcast_to(_entry(inner, ref), inner.points.shape).copy()
        for ref in (node.kept, node.body)
    )
    for row in range(1, result.shape[-1]):
        at, before, decay = (-1 - row, -row, -row) if node.reverse else (row, row - 1, row)
        result[..., at] += kept[..., decay] * result[..., before]
    Grid(points(shared + rows, tuple(sizes.items())), known).put(equation, result)


def _axis(positions: tuple[Any, ...], atom: str) -> int:
    """The axis whose position is the index `atom` alone."""
    return next(k for k, p in enumerate(positions) if position_value(p) == Poly.atom(atom))


ALONE: Rules[Callable[..., None]] = Rules(
    "evaluate, for whole right sides",
    {Fft: _transform, Scan: _scan, Select: _select, Composite: WRITTEN_OUT},
    OPAQUE,
)
"""Kind of node that is a whole right-hand side -> the function that writes the equation's array."""
