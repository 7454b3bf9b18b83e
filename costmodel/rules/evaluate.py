"""What numbers do the equations give? The reference semantics that a torch module must equal.

Every equation is evaluated over the whole grid of its indices with numpy in the dtype of the
arrays given; points outside the domain are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from costmodel.constraints import Unsupported
from costmodel.conventions import Convention, convention as named_convention
from costmodel.equations import TRAINED, Equation, Mixer, gradient_name, rank, rows
from costmodel.expressions import (
    Add,
    Array,
    Call,
    Constant,
    Div,
    Fft,
    First,
    Folded,
    Gather,
    IndexValue,
    Joined,
    Mul,
    Neg,
    Node,
    Reduce,
    Reduction,
    Ref,
    Select,
    Sub,
    Where,
    position_value,
)
from costmodel.indices import EquationError, Index
from costmodel.loops import Block, blocks
from costmodel.phases import system_of
from costmodel.polynomial import Poly
from costmodel.rules.asking import Training, asked
from costmodel.rules.grids import Grid

if TYPE_CHECKING:
    from costmodel.rules.grids import Values


def evaluate(
    mixer: Mixer,
    arrays: Mapping[str, Values],
    sizes: Mapping[str, int],
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
) -> Values:
    """Evaluate a mixer's output.

    Args:
        arrays: the input and every parameter by name, shaped as declared, e.g. x (l, d).
        sizes: an integer for every letter of the mixer.

    Returns:
        The output, e.g. y (l, d).

    Raises:
        EquationError: a missing or misshapen array; the message names it and both shapes.
    """
    return evaluate_all(mixer, arrays, sizes, form, convention)[mixer.role("output").name]


def evaluate_all(
    mixer: Mixer,
    arrays: Mapping[str, Values],
    sizes: Mapping[str, int],
    form: str | None = None,
    convention: str | tuple[str, ...] | Convention = "strict",
    phase: str = "training",
) -> dict[str, Values]:
    """Evaluate every array of a form, by name; see `evaluate`.

    `dense` computes pairs only to mask them: it changes costs and no value, so it is left out.
    """
    import numpy as np

    rewrites = tuple(r for r in named_convention(convention).rewrites if r != "dense")
    system = system_of(mixer, form, rewrites, phase)
    known: dict[str, Values] = {}
    for array in system.mixer.arrays.values():
        if array.role == "output":
            continue
        known[array.name] = _given(array, arrays, sizes)
    dtype = np.result_type(*known.values())
    for equation in system.equations:
        shape = tuple(max(0, extent.at(sizes)) for extent in equation.array.shape)
        kind = dtype if equation.array.below is None else np.dtype(np.int64)
        known.setdefault(equation.name, np.zeros(shape, kind))
    for block in blocks(system):
        for equation in _in_turn(block, sizes):
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
    """Evaluate the gradients of a loss with respect to inputs, contexts and parameters, by name.

    Args:
        arrays: the input and every parameter by name, as for `evaluate`; with a loss its target,
            `y.target` of an output y.
        gradient: that of the loss with respect to the output, shaped like it; with a loss among
            the equations that of the loss itself, shaped (1,).

    Raises:
        Unsupported: an equation whose gradient is not derived.
    """
    names = asked(convention, "backward", training)
    step = system_of(mixer, form, names.rewrites, "training-step")
    given = gradient_name(step.mixer.role("output"))
    known = evaluate_all(mixer, {**arrays, given: gradient}, sizes, form, names, "training-step")
    found = {a.name: known.get(gradient_name(a)) for a in mixer.arrays.values()}
    return {
        name: value
        for name, value in found.items()
        if value is not None and mixer.arrays[name].role in TRAINED
    }


def _in_turn(block: Block, sizes: Mapping[str, int]) -> Iterator[Equation]:
    """The equations of a block; those of a loop row by row."""
    if not block.is_loop:
        yield from block.equations
        return
    last = max(array.shape[axis].at(sizes) for array, axis in block.axes.items())
    rows = range(1, last + 1)
    for row in rows if block.step > 0 else reversed(rows):
        for equation in block.equations:
            yield from _at_row(equation, block.row(equation), row, sizes)


def _at_row(
    equation: Equation, here: Poly, row: int, sizes: Mapping[str, int]
) -> Iterator[Equation]:
    """The equation with its row fixed, if it defines that row."""
    index = next((i for i in equation.indices if i.atom in here.letters), None)
    if index is None:
        if here.at(sizes) == row:
            yield equation
        return
    value = Poly.of(row) - (here - index)
    ends = (max(b.at(sizes) for b in index.lower), min(b.at(sizes) for b in index.upper))
    if ends[0] <= value.at(sizes) <= ends[1]:
        fixed = replace(index, lower=(value,), upper=(value,))
        indices = tuple(fixed if i is index else i for i in equation.indices)
        yield replace(equation, indices=indices)


def _given(array: Array, arrays: Mapping[str, Values], sizes: Mapping[str, int]) -> Values:
    import numpy as np

    if array.name not in arrays:
        raise EquationError(f"{array.owner.name} needs an array '{array.name}'")
    value = np.asarray(arrays[array.name])
    shape = tuple(extent.at(sizes) for extent in array.shape)
    if value.shape != shape:
        raise EquationError(f"{array.name} has shape {value.shape}, expected {shape}")
    return value


def _entry(grid: Grid, ref: Ref) -> Values:
    """The referenced entries; positions outside the array read as 0."""
    import numpy as np

    array = grid.known[ref.array.name]
    where: list[Any] = []
    outside: Any = np.asarray(False)
    for axis, position in enumerate(ref.positions):
        if isinstance(position, Gather):
            index = _entry(grid, position.at)
        else:
            index = np.asarray(grid.value(position_value(position)))
        if index.dtype.kind != "i":
            index = np.vectorize(int, otypes=[np.int64])(index)
        beyond = (index < 1) | (index > array.shape[axis])
        outside = outside | beyond
        where.append(np.where(beyond, 0, index - 1))
    return np.where(outside, 0.0, array[tuple(where)])


def _number(grid: Grid, node: IndexValue) -> Any:
    return grid.value(node.place)


def _constant(grid: Grid, node: Constant) -> Any:
    return float(node.base.rational(grid.sizes)) ** (node.half_power / 2)


def _arithmetic(name: str) -> Callable[[Grid, Any], Any]:
    def rule(grid: Grid, node: Any) -> Any:
        import numpy as np

        left, right = (_value(grid, child) for child in node.children)
        return getattr(np, name)(left, right)

    return rule


def _neg(grid: Grid, node: Neg) -> Any:
    return -_value(grid, node.body)


def _folded(grid: Grid, node: Folded) -> Any:
    return _value(grid, node.body) * _constant(grid, node.factor)


def _call(grid: Grid, node: Call) -> Any:
    from costmodel.rules.numeric import VALUES

    return VALUES[node.function](_value(grid, node.body))


def _reduce(grid: Grid, node: Reduction) -> Any:
    import functools

    import numpy as np

    join = {"sum": np.add, "max": np.maximum}[node.kind]
    return functools.reduce(join, (_reduced(grid, part) for part in node.parts))


def _reduced(grid: Grid, node: Reduce) -> Any:
    """The sum over one range, 0 where it has no term; the maximum, and there minus infinity."""
    import numpy as np

    inner = grid.extended(node.over)
    body = np.asarray(_value(inner, node.body))
    shape = np.broadcast_shapes(body.shape, inner.shape)
    axes = tuple(range(len(grid.indices), len(inner.indices)))
    body, mask = np.broadcast_to(body, shape), np.broadcast_to(inner.mask(), shape)
    if node.kind == "sum":
        return np.where(mask, body, 0.0).sum(axis=axes)
    return np.where(mask, body, -np.inf).max(axis=axes, initial=-np.inf)


def _where(grid: Grid, node: Where) -> Any:
    import numpy as np

    on, then, otherwise = (_value(grid, child) for child in node.children)
    return np.where(on > node.above.at(grid.sizes), then, otherwise)


def _first(grid: Grid, node: First) -> Any:
    import numpy as np

    body, entry, largest = (_value(grid, child) for child in node.children)
    equal = grid.mask() & (entry == largest)
    (axis,) = (k for k, i in enumerate(grid.indices) if i.atom == node.over[0].atom)
    equal = np.broadcast_to(equal, np.broadcast_shapes(equal.shape, grid.coordinates[axis].shape))
    return np.where(equal & (np.cumsum(equal, axis=axis) == 1), body, 0.0)


def _opaque(grid: Grid, node: Fft | Select) -> Any:
    raise Unsupported(f"{node.kind} stands alone on the right side of its equation")


RULES: Mapping[type[Node], Callable[..., Any]] = {
    Constant: _constant,
    IndexValue: _number,
    Ref: _entry,
    Neg: _neg,
    Folded: _folded,
    Add: _arithmetic("add"),
    Sub: _arithmetic("subtract"),
    Mul: _arithmetic("multiply"),
    Div: _arithmetic("divide"),
    Call: _call,
    Where: _where,
    First: _first,
    Reduce: _reduce,
    Joined: _reduce,
    Fft: _opaque,
    Select: _opaque,
}


def _value(grid: Grid, node: Node) -> Any:
    try:
        rule = RULES[type(node)]
    except KeyError:
        raise Unsupported(f"{type(node).__name__} has no rule in evaluate") from None
    return rule(grid, node)


def _assign(equation: Equation, known: dict[str, Values], sizes: Mapping[str, int]) -> None:
    import numpy as np

    if isinstance(equation.value, Fft):
        _transform(equation, equation.value, known, sizes)
        return
    if isinstance(equation.value, Select):
        equation = replace(equation, indices=_rank_last(equation))
    grid = Grid(equation.indices, sizes, known)
    shape = grid.shape
    inside = np.broadcast_to(grid.mask(), shape)
    with np.errstate(all="ignore"):
        if isinstance(equation.value, Select):
            value = np.broadcast_to(_chosen(equation, equation.value, grid), shape)
        else:
            value = np.broadcast_to(_value(grid, equation.value), shape)
    target = known[equation.name]
    if not equation.positions:
        target[...] = value
        return
    where = []
    for axis, position in enumerate(equation.positions):
        index = np.broadcast_to(np.asarray(grid.value(position_value(position))), shape)[inside]
        index = index.astype(np.int64)
        if index.size and (index.min() < 1 or index.max() > target.shape[axis]):
            raise EquationError(
                f"{equation.name} is defined outside its extent {target.shape[axis]} on axis "
                f"{axis + 1}"
            )
        where.append(index - 1)
    target[tuple(where)] = value[inside]


def _rank_last(equation: Equation) -> tuple[Index, ...]:
    """The indices of the rows, and then the one that numbers the positions of a row."""
    numbers = rank(equation)
    return rows(equation) + (() if numbers is None else (numbers,))


def _chosen(equation: Equation, node: Select, grid: Grid) -> Values:
    """The positions chosen in each row; 0 where there are fewer entries."""
    import numpy as np

    inner = Grid(rows(equation), grid.sizes, grid.known).extended(node.over)
    shape = inner.shape
    body = np.broadcast_to(_entry(inner, node.body), shape)
    outside = ~np.broadcast_to(inner.mask(), shape)
    falling = body if node.kind == "sort" else -body
    order = np.lexsort((falling, outside), axis=-1) + inner.extent(node.over[0])[0]
    if rank(equation) is None:
        return order[..., 0] if order.size else np.zeros(shape[:-1], np.int64)
    width = max(0, grid.extent(grid.indices[-1])[1])
    missing = [(0, 0)] * (order.ndim - 1) + [(0, max(0, width - order.shape[-1]))]
    return np.pad(order, missing)[..., :width]


def _transform(
    equation: Equation, node: Fft, known: dict[str, Values], sizes: Mapping[str, int]
) -> None:
    """Real transforms along the operand's axes, with the shared indices moved in front."""
    import numpy as np

    from costmodel.rules.numeric import TRANSFORMS

    source = known[node.body.array.name]
    shared = [i.atom for i in equation.indices if i.atom in _names(node.body.positions)]
    over = [index.atom for index in node.over]
    source = source.transpose([_axis(node.body.positions, name) for name in shared + over])
    points = node.length.at(sizes)
    result = TRANSFORMS[node.kind](source, points)
    target = known[equation.name]
    produced = [i.atom for i in equation.indices if i.atom not in shared]
    places = [_axis(equation.positions, name) for name in shared + produced]
    kept = tuple(slice(target.shape[axis]) for axis in places)
    target[...] = np.transpose(result[kept], np.argsort(places))


def _names(positions: tuple[Any, ...]) -> set[str]:
    return {a for p in positions for a in position_value(p).letters if a[0] == "@"}


def _axis(positions: tuple[Any, ...], atom: str) -> int:
    return next(k for k, p in enumerate(positions) if position_value(p) == Poly.atom(atom))
