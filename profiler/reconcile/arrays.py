"""Matches the tensors that a record lists with arrays of the equations, by shape.

A *row* is one entry of a record's list of live tensors (`schema.LiveTensor`). A tensor that the
call returns under a name (its result, a gradient) is the array of that name. All other tensors are
compared by their extents, in any order: first with whole arrays, then with arrays without one axis,
since a module that loops over an axis holds one slice. If several arrays fit, all are named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from math import prod
from typing import Any

from costmodel.errors import Unsupported
from costmodel.language.equations import System
from costmodel.language.nodes import Array
from costmodel.questions.peak import entries_held, held_once
from costmodel.questions.question import BATCH
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from profiler.meters.memory.listed import COPY, WORKSPACE, extents_of
from profiler.reconcile.levels import ListedTensor
from profiler.records.reading import Objects

DENSE = "dense"
PART_OF = "part of "

Extents = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Arrays:
    """The arrays of a system of equations at some sizes."""

    system: System
    sizes: Mapping[str, int]

    @cached_property
    def shapes(self) -> Mapping[Array, Extents]:
        """A dict: array of the equations -> its shape at the sizes, as a tuple of ints. The batch
        size b comes first, except for arrays that all sequences share (weights, buffers)."""
        return {
            array: tuple([extent.at(self.sizes) for extent in shape])
            for array, shape in shapes_of(self.system).items()
        }

    @cached_property
    def extents(self) -> Mapping[Array, Extents]:
        """A dict: array of the equations -> `extents_of` its shape."""
        return {array: extents_of(shape) for array, shape in self.shapes.items()}

    @cached_property
    def by_name(self) -> Mapping[str, Array]:
        """Name -> array of the equations."""
        return {array.name: array for array in reversed([*self.shapes])}

    @property
    def output(self) -> str:
        """The name of the result."""
        return self.system.mixer.role("output").name

    def candidates(self, row: Mapping[str, Any]) -> Iterator[tuple[str, Array | None]]:
        """Yield (name, array) for each array of the equations that a listed tensor may hold.

        - A tensor with a name is the array of this name; None if the equations have no such array.
        - Another tensor is any array with the tensor's extents; if no array has them, any array
          that has them when one axis is left out, as ("part of A", None).
        - A tensor of unknown shape has no candidates.

        `row` is one tensor in a record's list of live tensors: a dict with its name, shape, other
        shapes under which it was seen (`views`), operation and autograd node.
        """
        if row["name"]:
            name = self.output if row["name"] == "result" else row["name"]
            yield name, self.by_name.get(name)
            return
        if row["shape"] is None:
            return
        shapes = frozenset(extents_of(shape) for shape in (row["shape"], *row["views"]))
        yield from self.of_extents(shapes, row["cause"] == COPY, bool(row["node"]))

    def of_extents(
        self, shapes: frozenset[Extents], copy: bool, backward: bool
    ) -> list[tuple[str, Array | None]]:
        """(name, array; None for a part) for each array that a tensor may hold, seen under several
        `shapes` (as `extents_of` gives them). `copy`: an operation that copies made the tensor;
        `backward`: in the backward pass. Tensors that are alike share one answer."""
        asked = (shapes, copy, backward)
        if asked not in self.told:
            pool = made_by(self.system, copy, backward)
            whole: list[tuple[str, Array | None]] = [
                (a.name, a) for a in pool if self.extents[a] in shapes
            ]
            part = [a for a in pool if not (whole or shapes.isdisjoint(self.slices[a]))]
            self.told[asked] = whole or [(PART_OF + array.name, None) for array in part]
        return self.told[asked]

    @cached_property
    def told(self) -> dict[tuple[frozenset[Extents], bool, bool], list[tuple[str, Array | None]]]:
        """The candidates that `of_extents` found so far, by its arguments."""
        return {}

    @cached_property
    def slices(self) -> Mapping[Array, Collection[Extents]]:
        """A dict: array -> the extents that it has without one of its axes longer than 1; the batch
        is no axis. Example: x (b, l, d) = (2, 7, 5) gives (2, 5) and (2, 7)."""
        found = {}
        for array, own in self.shapes.items():
            extents = self.extents[array]
            axes = {extent for extent in own[len(own) - len(array.shape) :] if extent != 1}
            places = map(extents.index, axes)
            found[array] = [extents[:k] + extents[k + 1 :] for k in places]
        return found

    def is_dense(self, shape: Any, found: list[tuple[str, Array | None]]) -> bool:
        """Whether a tensor of this shape stores masked entries too: it has more entries than the
        equations define for each of its candidates `found` (name, array), whose extents are the
        tensor's.

        False if there are no candidates, if no equation defines a candidate, or if the number of a
        candidate's entries has no formula.
        """
        arrays = [
            array for _, array in found if array is not None and array in self.system.defining
        ]
        if not arrays or len(arrays) < len(found):
            return False
        try:
            return all(self.entries(array) < prod(shape) for array in arrays)
        except Unsupported:  # the number of entries has no formula
            return False

    def entries(self, array: Array) -> int:
        """The number of entries that the equations define of an array, over all sequences."""
        return entries_of(self.system, array).at(self.sizes)


@cache
def shapes_of(system: System) -> Mapping[Array, tuple[Poly, ...]]:
    """Array of the equations -> its shape in the sizes, b first unless all sequences share it."""
    found: dict[Array, tuple[Poly, ...]] = {}
    for array in (*system.defining, *system.mixer.arrays.values()):
        once = array.role in ("parameter", "buffer") or held_once(system, array)
        found[array] = array.shape if once else (BATCH, *array.shape)
    return found


@cache
def made_by(system: System, copy: bool, backward: bool) -> tuple[Array, ...]:
    """The arrays that a torch operation may have computed: one that copies or another one, of the
    backward or the forward pass.

    Operations of the backward pass make gradients, the forward pass makes all other arrays that
    equations define. A copy may also make an array that no equation defines, such as an input; a
    copy in the backward pass may be of any array.
    """
    defining, forward = system.defining, system.forward.defining

    def may_hold(array: Array) -> bool:
        gradient = array not in forward and (array in defining or array.gradient_of is not None)
        if copy:
            return backward or not gradient
        return array in defining and gradient == backward

    return tuple(filter(may_hold, shapes_of(system)))


@cache
def entries_of(system: System, array: Array) -> Exact:
    """The number of entries that the equations define of an array, for b sequences."""
    number = entries_held(system, array)
    return number if held_once(system, array) else number * BATCH


def listed_tensors(
    rows: Sequence[Mapping[str, Any]], arrays: Arrays | None
) -> tuple[ListedTensor, ...]:
    """A `ListedTensor` for each row of a record's list of live tensors. Records with one list and
    one `arrays`, such as the rounds of a sweep, share the answer."""
    if isinstance(rows, Objects):
        return _listed_again(rows, arrays)
    return tuple(listed_tensor(row, arrays) for row in rows)


@lru_cache(maxsize=64)
def _listed_again(rows: Objects, arrays: Arrays | None) -> tuple[ListedTensor, ...]:
    """The tensors of `listed_tensors`, kept for the next call with these rows and arrays."""
    return tuple(listed_tensor(row, arrays) for row in rows)


def listed_tensor(row: Mapping[str, Any], arrays: Arrays | None) -> ListedTensor:
    """A `ListedTensor` from a row, which is one tensor in a record's list of live tensors: its
    operation, shape, dtype, bytes and number, and the equations' arrays that it may hold.

    No array is named for workspaces (memory inside one operation) and masks, nor without `arrays`.
    The cause (why the tensor is no array of the equations) is the row's; a tensor without one that
    stores masked entries has the cause `DENSE`.
    """
    operation, cause = row["operation"], row["cause"]
    by = f" ({row['node']})" if row["node"] else ""
    found: list[tuple[str, Array | None]] = []
    if arrays is not None and cause not in (WORKSPACE, "mask"):
        found = list(arrays.candidates(row))
        if not cause and row["shape"] is not None and arrays.is_dense(row["shape"], found):
            cause = DENSE
    return ListedTensor(
        f"{operation or 'outside of operations'}{by}",
        row["shape"] and tuple(row["shape"]),
        row["dtype"],
        row["bytes"],
        row["number"],
        " or ".join(dict.fromkeys(name for name, _ in found)),
        f"{WORKSPACE} inside {operation}" if cause == WORKSPACE else cause,
        cause == WORKSPACE,
    )
