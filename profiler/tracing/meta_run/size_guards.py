"""Records the conditions on input sizes that a module's code tests in one run.

torch's symbolic sizes replace the axes of the inputs: a comparison, a remainder or a minimum of
sizes, in the module's code or in torch's, is recorded as a condition and takes the branch that
holds at the sizes of the run. Code that takes a size as a plain number (a loop, `int()`, numpy)
ends the tracking: later comparisons of this size are not seen, and a doubt says so.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from traceback import FrameSummary, walk_stack
from types import FrameType
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from costmodel.errors import as_exception
from profiler.tracing.meta_run.shape_values import on_meta
from profiler.tracing.meta_run.target import (
    Built,
    Sizes,
    Target,
    build_target,
    foreign_line,
    is_foreign,
)

Axis = tuple[int, int]
"""The number of an input tensor, and one of its axes."""


@dataclass(frozen=True)
class AxisSize:
    """The size of an axis at some sizes, and its growth per step of each letter."""

    size: int
    slopes: Mapping[str, int]


@dataclass(frozen=True)
class Condition:
    """A tested condition as a sympy expression that holds at the sizes of the run (s0 >= 8 where s0
    < 8 failed), and its place in the code; "" if torch does not tell the place."""

    holds: Any
    place: str
    origin: str = ""
    """The place of the test in torch's code too, which tells conditions of one line apart."""


@dataclass(frozen=True)
class SizeGuards:
    """The conditions that a run tested, in the symbols of `axes`, and reasons why some may be
    missing. `axes` maps torch's symbol of an axis, such as s0, to the size of that axis."""

    conditions: tuple[Condition, ...] = ()
    axes: Mapping[Any, AxisSize] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()


@contextmanager
def silent_logs() -> Iterator[None]:
    """A context without logging, as torch logs a backtrace for an operation that refuses
    symbols."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def size_guards(target: Target, sizes: Sizes, further: Mapping[str, Sizes]) -> SizeGuards:
    """Run a module's forward pass with symbols for sizes, and return the conditions on sizes that
    its code tests; none if no axis of an input can be followed.

    Args:
        further: letter -> the sizes with one more step of that letter, from which the axes that
            grow with the letter are found.

    Raises:
        TraceError: the module cannot be made at these sizes.
    """
    built = build_target(target, sizes)
    axes = _followed_axes(built, {x: build_target(target, more) for x, more in further.items()})
    return _run(built, axes) if axes else SizeGuards()


def _followed_axes(built: Built, longer: Mapping[str, Built]) -> dict[Axis, AxisSize]:
    """The axes of the inputs that differ with one more step of a letter, each with its size and its
    growth per letter. A letter on which the shape of a parameter or buffer depends is left out.

    Args:
        longer: letter -> the module and its inputs with one more step of that letter.
    """
    found: dict[Axis, dict[str, int]] = {}
    here = _shapes(built)
    for letter, more in longer.items():
        if _weights(more) != _weights(built):
            continue
        for number, (one, other) in enumerate(zip(here, _shapes(more), strict=True)):
            for axis, (low, high) in enumerate(zip(one, other, strict=True)):
                if low != high:
                    found.setdefault((number, axis), {})[letter] = high - low
    return {at: AxisSize(here[at[0]][at[1]], slopes) for at, slopes in found.items()}


def _tensors(built: Built) -> list[Tensor]:
    """The tensors among a module's inputs, in order."""
    leaves, _ = tree_flatten((built.args, dict(built.kwargs)))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _shapes(built: Built) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in _tensors(built)]


def _weights(built: Built) -> list[tuple[int, ...]]:
    """The shapes of a module's parameters and buffers."""
    held = (*built.module.parameters(), *built.module.buffers())
    return [tuple(tensor.shape) for tensor in held]


def _run(built: Built, axes: Mapping[Axis, AxisSize]) -> SizeGuards:
    """Run the forward pass with a symbol for the size of each of `axes` (input, axis), and return
    the conditions that torch recorded. A run that fails keeps its conditions so far, and a doubt (a
    reason why formulas may fail elsewhere) says where it failed."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import (
        DimDynamic,
        ShapeEnv,
        StatelessSymbolicContext,
        uninteresting_files,
    )
    from torch.utils._traceback import format_frame

    caller = sys._getframe().f_code

    def inside(frame: tuple[FrameType, int]) -> bool:
        """Whether a frame of the stack lies inside of this function's call of the module."""
        return frame[0].f_code is not caller

    class Conditions(ShapeEnv):
        """torch's conditions on sizes, each with the line of a user's file that led to it."""

        def _get_sloc(self, framework_loc: str | None = None) -> Any:
            """torch's record of where a condition was tested: the innermost line besides those of
            symbolic sizes and, of the lines that the module runs, that of a user's file."""
            lines = [
                FrameSummary(
                    frame.f_code.co_filename, number, frame.f_code.co_name, lookup_line=False
                )
                for frame, number in takewhile(inside, walk_stack(sys._getframe(1)))
            ]
            skipped = uninteresting_files()
            tested = (format_frame(line) for line in lines if line.filename not in skipped)
            found = super()._get_sloc(framework_loc or next(tested, None))
            users = [line for line in lines if is_foreign(line.filename)]
            return replace(found, maybe_user_loc=f"({format_frame(users[0])})") if users else found

    known = Conditions(duck_shape=False, specialize_zero_one=False)
    mode = FakeTensorMode(shape_env=known, allow_non_fake_inputs=True, static_shapes=False)
    mode.cache_enabled = False  # no later run has these symbols: keeping results takes time alone
    symbols: dict[Any, AxisSize] = {}
    numbers = {id(tensor): k for k, tensor in enumerate(_tensors(built))}

    def symbolic(leaf: Any) -> Any:
        """A copy of a tensor with a symbol, noted in `symbols`, for the size of each followed axis;
        another argument as it is. `axes`: (number of the input, axis) -> its size."""
        if not isinstance(leaf, Tensor):
            return leaf
        followed = [axes.get((numbers[id(leaf)], axis)) for axis in range(leaf.dim())]
        kinds = [DimDynamic.DYNAMIC if size else DimDynamic.STATIC for size in followed]
        fake = mode.from_tensor(
            leaf, symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds)
        )
        for axis, size in enumerate(followed):
            if size:
                length: Any = fake.shape[axis]
                symbols[length.node.expr] = size
        return fake

    doubts: list[str] = []
    try:
        args, kwargs = tree_map(symbolic, (built.args, dict(built.kwargs)))
        with as_exception(), on_meta(), mode, silent_logs():
            built.module(*args, **kwargs)
    except Exception as error:  # torch, or a module's own code, refuses symbols
        where = foreign_line(error).removeprefix(", ") or "an operation of torch"
        doubts.append(
            f"comparisons of sizes cannot be traced after {where}, which accepts only numbers as "
            f"sizes"
        )
    return _recorded(known, symbols, doubts)


def _recorded(known: Any, symbols: Mapping[Any, AxisSize], doubts: list[str]) -> SizeGuards:
    """The conditions that torch's ShapeEnv `known` recorded in a run, in the `symbols` of axes, and
    `doubts`, which get one for each symbol that the code took as a plain number."""
    slocs = [(g.expr, getattr(g, "sloc", None)) for g in known.guards]  # condition, its place
    tested = [
        Condition(holds, getattr(sloc, "maybe_user_loc", None) or str(sloc or ""), str(sloc or ""))
        for holds, sloc in slocs
    ]
    # symbols that torch replaced with numbers, because the code took the size as a number
    fixed = {symbol for symbol, value in known.replacements.items() if value.is_number}
    for symbol in sorted(fixed & symbols.keys(), key=str):
        letters = " and ".join(symbols[symbol].slopes)
        made = (c.place for c in tested if c.holds.is_Equality and c.holds.free_symbols == {symbol})
        doubts.append(
            f"the module uses {letters} as a plain number {next(made, '')}, as a loop does: later "
            f"comparisons of this size are not seen"
        )
    return SizeGuards(tuple(tested), symbols, tuple(doubts))
