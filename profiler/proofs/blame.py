"""Which entry of a module's result differs first, and which equation does the module miss?

Example: a module leaves out the softmax of y = softmax(q k) v. A recorder sees every number that
the call computes. The scores q k are among them, the weights are not: the softmax is blamed. An
array is unseen if no tensor of the call has its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import combinations, islice, permutations
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from costmodel.errors import as_exception
from costmodel.language.equations import Equation, Form, Mixer
from costmodel.oracle.execute import execute
from costmodel.proofs.check import evaluated
from costmodel.proofs.tried_sizes import small_sizes, words
from costmodel.questions.evaluate import evaluate_all
from profiler.counting.call import tensors_in
from profiler.counting.mode import DispatchMode, OperationKind
from profiler.proofs.cases import TOLERANCE
from profiler.records.words import told_apart

if TYPE_CHECKING:
    from profiler.proofs.cases import ModuleCase, Values

Numbers = np.ndarray[Any, Any]

TELLING = 2
"""How many tokens after the first wrong one are examined to tell arrays of equal values apart."""

NEAR_SINGLE = 1e-6
"""The error allowed in place of TOLERANCE of the numbers of a call that computes in float32."""

PAIRS = 200
"""The most pairs of recorded tensors that are tried in the places of two arrays."""


@dataclass(frozen=True)
class Blame:
    """The first array that a call computes otherwise than the equations, and a sentence on it."""

    array: str
    """"" if no array is named: the call computes every array, or the arrays were not compared."""
    words: str


def first_difference(
    found: torch.Tensor,
    expected: torch.Tensor,
    who: str,
    before: tuple[int, ...] = (),
    allowed: float = 0.0,
) -> str:
    """Words on the first entry of a result y (`found`) that differs from `expected` beyond
    rounding; "" if none does, and NaN in `expected` differs from nothing. A different shape is said
    instead. `who` introduces the expected value ("the equations give"). `before` is the index of
    the row, from 0, if `found` is a row of y; printed indices count from 1. `allowed` is added to
    the error that float64 may have."""
    if found.shape != expected.shape:
        return f"y is {tuple(found.shape)}, expected {tuple(expected.shape)}"
    finite = expected.where(expected.isfinite(), 0.0)
    near = TOLERANCE * max(1.0, float(finite.abs().max())) + allowed
    apart = (found - expected).abs() > near
    apart |= found.isnan() & ~expected.isnan()
    if not apart.any():
        return ""
    where = tuple(int(k) for k in apart.nonzero()[0])
    entry = ", ".join(str(k + 1) for k in before + where)
    return f"y[{entry}] is {told_apart(float(found[where]), who, float(expected[where]))}"


class Recorder(DispatchMode):
    """Records every number that a call of `batch` sequences computes, for sequence `sample` (from
    0): in `seen`, and integers in `positions`, counted from 1 as the equations count positions."""

    exact: ClassVar[bool] = True
    """Whether the recorded numbers have the digits of float64."""

    def __init__(self, batch: int, sample: int = 0) -> None:
        """Begin to record a call; the part of one sequence is compared."""
        super().__init__()
        self.batch, self.sample = batch, sample
        self.seen: list[torch.Tensor] = []
        self.positions: list[torch.Tensor] = []

    def see(self, kind: OperationKind, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operation and record its result; a new tensor without values, as of
        `torch.empty`, holds none."""
        result = super().see(kind, args, kwargs)
        return result if "empty" in kind.name else self.record(result)

    def see_functions(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a higher-order operator and record its result."""
        return self.record(super().see_functions(func, args, kwargs))

    def record(self, result: Any) -> Any:
        """Record a copy of the numbers in the result of an operation (tensors, nested), flattened,
        and return the result: floats and complex numbers (as pairs) in `seen`, integers plus 1 in
        `positions`; no booleans."""
        for tensor in tensors_in(result):
            if tensor.is_complex():
                pairs = torch.view_as_real(tensor.detach().resolve_conj())
                self.seen.append(pairs.flatten().clone())
            elif tensor.is_floating_point():
                self.seen.append(tensor.detach().flatten().clone())
            elif tensor.dtype != torch.bool:
                self.positions.append(tensor.detach().flatten() + 1)
        return result

    @cached_property
    def values(self) -> Numbers:
        """All recorded finite values, and 0, in ascending order."""
        found = torch.cat([torch.zeros(1, dtype=torch.float64), *(t.double() for t in self.seen)])
        return found[found.isfinite()].sort().values.numpy()

    def has(self, wanted: Numbers) -> bool:
        """Whether every nonzero number of `wanted` was computed, up to rounding."""
        return within(wanted, self.values, self.near)

    @cached_property
    def near(self) -> float:
        """The distance at which numbers up to 1 count as equal."""
        single = any(tensor.dtype == torch.float32 for tensor in self.seen)
        return NEAR_SINGLE if single else TOLERANCE

    def of_size(self, wanted: Numbers) -> Iterator[Numbers]:
        """Yield the recorded tensors with as many entries per sequence as `wanted`, each as a row
        of numbers: the part of the sequence `sample` if the tensor holds all sequences, batch axis
        first, else the tensor itself, as made from parameters alone. Floats are compared with
        floats, positions with integers."""
        seen = self.seen if wanted.dtype.kind == "f" else self.positions
        for tensor in seen:
            if len(tensor) == wanted.size * self.batch:
                yield tensor.double().numpy()[self.sample * wanted.size :][: wanted.size]
            elif len(tensor) == wanted.size:
                yield tensor.double().numpy()

    def reorders(self, wanted: Numbers, others: Mapping[str, Numbers]) -> bool:
        """Whether the call orders the entries of `wanted` (an array of the equations that only
        moves entries of the arrays `others`) wrongly: no tensor holds `wanted`, with its axes in
        any order, and some tensor of its size holds only entries of `others` without being one of
        them."""
        found = [*self.of_size(wanted)]
        if not found or any(in_some_order(own, wanted) for own in found):
            return False
        known = ascending(others.values())
        same = [other for other in others.values() if other.size == wanted.size]
        return any(
            within(own, known) and not any(in_some_order(own, other) for other in same)
            for own in found
        )


def within(wanted: Numbers, known: Numbers, near: float = TOLERANCE) -> bool:
    """Whether every nonzero number of `wanted` is among the ascending numbers `known` (0 and at
    least one other number, else none is), up to rounding: to `near`, of a large number its part."""
    values = wanted[wanted != 0]
    if len(known) < 2:
        return not len(values)
    at = np.searchsorted(known, values).clip(1, len(known) - 1)
    nearest = np.minimum(abs(known[at] - values), abs(known[at - 1] - values))
    return bool((nearest <= near * abs(values).clip(1.0)).all())


def ascending(arrays: Iterable[Numbers]) -> Numbers:
    """The finite numbers of some arrays, and 0, in ascending order."""
    found = np.concatenate([np.zeros(1), *(np.asarray(array, float).ravel() for array in arrays)])
    return np.sort(found[np.isfinite(found)])


def in_some_order(own: Numbers, wanted: Numbers) -> bool:
    """Whether the row of numbers `own` is the array `wanted`, flattened with its axes in some
    order, up to rounding."""
    return any(
        np.allclose(own, wanted.transpose(order).ravel(), rtol=0, atol=TOLERANCE)
        for order in permutations(range(wanted.ndim))
    )


class Multisets(Recorder):
    """Records the values of a call in low precision, and looks for whole tensors among them."""

    exact = False
    NEAR = 0.1
    """The largest difference of sorted values, as a share of the largest value: several roundings
    to eight bits stay below this share, and a different array of as many entries exceeds it."""

    def has(self, wanted: Numbers) -> bool:
        """Whether one recorded tensor holds the row of numbers `wanted` for the sequence `sample`,
        in any order, up to the rounding of the low precision; False if `wanted` is empty. Infinite
        numbers may differ."""
        values = np.sort(wanted)
        finite = np.isfinite(values)
        near = self.NEAR * np.abs(values[finite]).max(initial=0.0)
        sequences = (
            t.double().view(self.batch, -1)[self.sample].sort().values.numpy()
            for t in self.seen
            if len(t) == len(values) * self.batch > 0
        )
        return any((np.abs(own[finite] - values[finite]) <= near).all() for own in sequences)

    def reorders(self, wanted: Numbers, others: Mapping[str, Numbers]) -> bool:
        """False: in low precision no order of entries is recognised."""
        return False


Part = tuple[str, Any, bool]
"""Array, index of its evaluated entries, whether the call computes these entries."""


def first_unseen(
    mixer: Mixer, form: str, expected: Values, recorder: Recorder, other: Other | None = None
) -> Blame:
    """Find the equation to blame for a wrong result: the first, in the order of evaluation, whose
    values the recorded call never computed; a Blame without array if there is none.

    A kernel may fuse an equation away: an equation is passed over if a later equation that reads it
    was computed. An array that only holds entries of other arrays, as a gather does, has its values
    in the call in any case; it is named if the call orders these entries otherwise. An array that
    the call computes and then changes is blamed for the equations that read the changed values.

    Args:
        expected: every array of the equations, for the recorder's sequence.
        recorder: the recorded call.
        other: evaluates the equations with other values of some arrays; None: no array is tried
            with other values.
    """
    equations = {e.name: e for e in mixer.forms[form].equations}
    expected = {k: v for k, v in expected.items() if k in equations or k in mixer.arrays}
    # parts: (array, its evaluated entries, whether the call has their values), in order; first: the
    # first array without its values, by itself or in a later array; "" if there is none
    parts, first = _compared(mixer.forms[form], expected, recorder)
    reads = sources(mixer.forms[form].equations)
    output = mixer.role("output").name
    moved, unplaced = _out_of_place(first, parts, expected, recorder, reads, output)
    if unplaced:
        first = unplaced[0]
    wrong = {other for other, _, found in parts if not found} | {*moved, *unplaced}
    wrong |= {name for name, _, _ in parts if reads[name] & {*unplaced}}
    known = {name for name, _, _ in parts} - wrong - {output}
    listed = ", ".join(other for other in equations if other in known)
    led = f"the module computes {listed} as the equations do; " if listed else ""
    if moved:
        cited = _cited(equations[moved[0]])
        said = f"{led}{cited} is the first whose entries the module orders in another way"
        return Blame(moved[0], said)
    if unplaced:
        said = "is the first whose values the module never computes at their places"
        return Blame(first, f"{led}{_cited(equations[first])} {said}")
    if not first:
        every = "the module computes the values of every equation but returns other values"
        return Blame("", every if recorder.exact else "")
    changed = _changed(mixer.forms[form], first, recorder, other) if other else {}
    if changed:
        places = [f"{' and '.join(of)} in {_cited(equations[at])}" for at, of in changed.items()]
        reading = f"it reads other values in the place of {' and of '.join(places)}"
        return Blame(changed[first][0], f"{led}{reading}")
    said = f"{led}{_cited(equations[first])} is the first whose values the module never computes"
    return Blame(first, said + _fused_clause(first, parts, expected, recorder, reads))


def _out_of_place(
    first: str, parts: Sequence[Part], expected: Values, recorder: Recorder,
    reads: Mapping[str, set[str]], output: str,
) -> tuple[list[str], list[str]]:  # fmt: skip
    """(moved, unplaced) among the arrays whose values the call has and which `first`, if any, reads
    (`reads`: array -> all its sources): `moved` only hold entries of other arrays, which the call
    orders otherwise; `unplaced`, if none is moved, have values that a wrong array may have too, and
    no tensor of the call has these at their places."""

    @cache
    def others(name: str) -> Numbers:
        return ascending(v for other, v in expected.items() if other != name)

    alike = {  # arrays without a value of their own
        name
        for name, where, _ in parts
        if within(np.asarray(expected[name][where], float).ravel(), others(name))
    }
    # right arrays with values of their own: the arrays that they read must be in order too
    distinct = {name for name, _, right in parts if right} - {output, *alike}
    # ... is the index of a whole array; a row of a loop is not tested for its order
    moved = [
        name
        for name, where, right in parts
        if where is ... and right and name in alike and (not first or name in reads[first])
        and not any(name in reads[other] for other in distinct)
        and recorder.reorders(expected[name], {k: v for k, v in expected.items() if k != name})
    ]  # fmt: skip
    # right arrays of which a wrong array may have every value, at other places
    alike |= {name for name, where, _ in parts if _repeats(np.asarray(expected[name][where]))}
    doubtful = [
        name
        for name, _, right in parts
        if right and name in alike and (not first or name in reads[first])
        and not any(name in reads[other] for other in distinct - alike)
    ]  # fmt: skip
    held = _held(expected, parts, recorder) if doubtful and not moved else {}
    return moved, [
        name
        for name in doubtful
        if held.get(name) is False and not any(held[o] and name in reads[o] for o in held)
    ]


def _repeats(array: Numbers) -> bool:
    """Whether two entries of an array other than 0 are equal, up to rounding."""
    values = np.sort(array[np.isfinite(array) & (array != 0)].astype(float))
    return bool((np.diff(values) <= TOLERANCE * np.abs(values[1:]).clip(1.0)).any())


def _held(expected: Values, parts: Sequence[Part], recorder: Recorder) -> dict[str, bool | None]:
    """Array -> whether a recorded tensor holds the whole array, each value at its place: the zeros
    and ones of a saturated softmax have their values in any call. None if no tensor holds the array
    and each tensor of its size holds another array of the equations; {} in low precision.
    `expected` are all arrays, `parts` the compared entries of each."""
    if not recorder.exact:
        return {}
    wanted = {name: np.asarray(expected[name][where]) for name, where, _ in parts}
    for name, array in wanted.items():  # of a step, the row of its token
        wanted[name] = array if any(True for _ in recorder.of_size(array)) else _box(array)

    def holds(own: Numbers, array: Numbers) -> bool:
        """Whether the numbers `own` of a tensor, flattened, are those of an array, its axes in some
        order. Entries of the array that are 0 or infinite may differ: a dense tensor has numbers
        where the array is 0."""
        finite = array[np.isfinite(array)]
        near = recorder.near * max(1.0, float(np.abs(finite).max(initial=0.0)))
        orders = (array.transpose(order).ravel() for order in permutations(range(array.ndim)))
        with np.errstate(invalid="ignore"):  # inf - inf
            return any(
                bool((np.abs(own - values)[(values != 0) & np.isfinite(values)] <= near).all())
                for values in orders
            )

    found: dict[str, bool | None] = {}
    for name, array in wanted.items():
        tensors = [*recorder.of_size(array)]
        same = [other for other in wanted.values() if other.size == array.size]
        if any(holds(own, array) for own in tensors):
            found[name] = True
        else:
            others = any(not any(holds(own, other) for other in same) for own in tensors)
            found[name] = False if others else None
    return found


def _compared(form: Form, expected: Values, recorder: Recorder) -> tuple[list[Part], str]:
    """(parts, name): a `Part` for each array of a form, in the order of evaluation, which says
    whether the recorded call computed the array's values; and the first array whose values the call
    computed neither by themselves nor within a later array that reads them, "" if there is none.
    Arrays of zeros alone are left out, and integers of which no tensor has the size."""
    parts: list[Part] = []
    for name, where in evaluated(form, expected):
        wanted = expected[name][where]
        if wanted.dtype.kind == "f" and wanted.any():
            parts.append((name, where, recorder.has(wanted.ravel())))
        elif wanted.any() and (
            found := [*recorder.of_size(wanted)]
        ):  # small integers are told apart by their order
            parts.append((name, where, any(in_some_order(own, wanted) for own in found)))
    reads = sources(form.equations)
    for k, (name, _, right) in enumerate(parts):
        if not right and not any(ok and name in reads[later] for later, _, ok in parts[k + 1 :]):
            return parts, name
    return parts, ""


@dataclass(frozen=True)
class Other:
    """Evaluates a case's equations for sequence `sample` with other values of some arrays."""

    case: ModuleCase
    form: str
    sample: int
    token: int = 0
    """The token whose part of all arrays is compared, counted from 1; 0: whole arrays are."""
    tokens: Values = field(default_factory=dict)
    """Name of an array -> the token of every entry."""

    @cached_property
    def right(self) -> Values:
        """Every array of the equations, whole."""
        return self.values({})

    def values(self, held: Values) -> Values:
        """Every array, whole, evaluated with the values that the arrays of `held` keep."""
        arrays, sizes = self.case.arrays(self.sample), self.case.sizes
        return evaluate_all(self.case.mixer, arrays, sizes, self.form, held=held)

    def compared(self, held: Values) -> Values:
        """The part of every array that is compared, evaluated with the arrays of `held`."""
        found = self.values(held)
        return found if not self.token else _part(found, self.tokens, self.token)

    def replaced(self, name: str, recorder: Recorder) -> Iterator[Numbers]:
        """Yield copies of the array `name` with the values of one recorded tensor, axes in any
        order, in place of all entries or, of a step, also of the entries of its token, or of all
        tokens up to this token. No copy comes twice, and none equals the right array."""
        right, tried = self.right[name], set()
        boxes: list[tuple[slice, ...]] = [tuple(slice(0, n) for n in right.shape)]
        if self.token:
            token = self.tokens[name]
            boxes += [_span(token == self.token), _span((token > 0) & (token <= self.token))]
        for box in boxes:
            for order in permutations(range(right.ndim)):
                there = right[box].transpose(order)
                for own in recorder.of_size(there):
                    found = right.copy()
                    found[box].transpose(order)[...] = own.reshape(there.shape)
                    if found.tobytes() not in tried and not np.allclose(found, right):
                        tried.add(found.tobytes())
                        yield found


def _changed(form: Form, first: str, recorder: Recorder, other: Other) -> dict[str, list[str]]:
    """The arrays that the call computes and changes afterwards, by the array whose equation reads
    the changed values: those that explain the missing array `first`, then those that explain the
    next missing array; {} if none explains `first`. `other` evaluates the equations with changed
    values, those of tensors that `recorder` recorded."""
    equations = {e.name: e for e in form.equations}
    reads = sources(form.equations)
    held: Values = {}
    found: dict[str, list[str]] = {}
    while first and first not in found:
        values = other.compared(held)
        read = {array.name for array in equations[first].value.arrays}
        operands = [
            name
            for name, _, right in _compared(form, values, recorder)[0]
            if right
            and name in read
            and first not in reads[name]
            and values[name].dtype.kind == "f"
        ]
        changes = _explaining(form, first, operands, recorder, other, held)
        if not changes:
            break
        found[first] = [*changes]
        held = {**held, **changes}
        first = _compared(form, other.compared(held), recorder)[1]
    return found


def _explaining(
    form: Form, first: str, operands: Sequence[str], recorder: Recorder, other: Other, held: Values
) -> Values:
    """One or two of the `operands` of the missing array `first` -> the operand with values of
    a recorded tensor, so that the equations give values that the call has: of `first`, or of a
    later array that reads `first`; {} if there are none. `held` are the changes found before. Of
    several changes, which `other` evaluates, the one that leaves the fewest arrays missing is
    taken. Two arrays are changed together only to tensors that are none of the equations' arrays,
    `PAIRS` times at most."""
    reads = sources(form.equations)
    usual = other.compared(held)
    before = ascending(usual.values())
    own = {name: [*other.replaced(name, recorder)] for name in operands}
    new = {
        name: [
            v
            for v in found
            if not any(in_some_order(v.ravel(), k) for k in usual.values() if k.size == v.size)
        ]
        for name, found in own.items()
    }
    singles = ({name: values} for name, found in own.items() for values in found)
    pairs = (
        {one: a, two: b}
        for one, two in combinations(operands, 2)
        for a in new[one]
        for b in new[two]
    )
    for tried in (singles, islice(pairs, PAIRS)):
        found = []
        for changes in tried:
            values = other.compared({**held, **changes})
            parts, missing = _compared(form, values, recorder)
            explained = (
                right and first in {name, *reads[name]} and not within(values[name][where], before)
                for name, where, right in parts
            )
            if missing != first and any(explained):
                found.append((sum(not right for _, _, right in parts), changes))
        if found:
            return min(found, key=itemgetter(0))[1]
    return {}


def _part(values: Values, tokens: Values, token: int) -> Values:
    """The part of all arrays that one token computes: name of each array of `tokens` -> its
    values, with 0 for every entry of another token."""
    return {name: np.where(of == token, values[name], 0) for name, of in tokens.items()}


def _span(where: Numbers) -> tuple[slice, ...]:
    """The smallest box that holds all true entries."""
    return tuple(slice(at.min(), at.max() + 1) for at in where.nonzero() if len(at))


def _cited(equation: Equation) -> str:
    """An equation by its number, if it has one, and the name of its array."""
    cite = equation.array.cite
    return f"equation {cite} {equation.name}" if cite else f"equation {equation.name}"


def _fused_clause(
    first: str,
    parts: Sequence[Part],
    expected: Values,
    recorder: Recorder,
    reads: Mapping[str, set[str]],
) -> str:
    """A clause that one operation computes the array `first` together with later arrays, so that
    the fault may lie in any of these; "" if `first` is computed by itself, if no missing array is,
    or in low precision. `parts` are in the order of evaluation; an array of a loop has a part for
    each row, and its first missing part stands for it. `expected` are the arrays of the equations,
    `recorder` holds the tensors of the call, `reads` gives all sources of an array.

    The missing arrays are `first` and those that depend on it and are not in the call. A missing
    array is computed by itself if the call holds, for it and each later missing array of its size,
    a tensor of this size that is no right array. Example: weights and y are missing, one wrong
    tensor has the size of y, none that of the weights: one operation computes both.
    """
    if not recorder.exact:
        return ""
    right = [_box(expected[name][where]) for name, where, found in parts if found]
    missing = {
        name: _box(expected[name][where])
        for name, where, found in reversed(parts)
        if not found and (name == first or first in reads[name])
    }
    wrong = [*dict.fromkeys(name for name, _, _ in parts if name in missing)]
    for k, name in enumerate(wrong):
        box = missing[name]
        with np.errstate(over="ignore"):  # rounding makes a number near the largest one infinite
            held = {
                tuple(np.sort(own.round(9)))
                for own in recorder.of_size(box)
                if not any(in_some_order(own, known) for known in right if known.size == own.size)
            }
        if len(held) >= sum(missing[later].size == box.size for later in wrong[k:]):
            group = ", ".join(wrong[: k + 1])
            said = f"; one operation computes {group} together, so that the fault may lie in any"
            return said if k else ""
    return ""


def _box(values: Numbers) -> Numbers:
    """The smallest box of an array that holds all its nonzero entries, as the row of one token in
    an array with zeros for all other tokens."""
    return values[_span(values != 0)]


def sources(equations: Iterable[Equation]) -> dict[str, set[str]]:
    """A dict: name of an array -> the names of all arrays on which it depends, at any depth."""
    reads: dict[str, set[str]] = {}
    for equation in equations:
        reads.setdefault(equation.name, set()).update(a.name for a in equation.value.arrays)
    while True:
        wider = {
            a: found.union(*(reads.get(x, set()) for x in found)) for a, found in reads.items()
        }
        if wider == reads:
            return reads
        reads = wider


def executed(
    mixer: Mixer, form: str, arrays: Values, sizes: Mapping[str, int]
) -> tuple[Values, Values]:
    """The values of all entries of each equation's array, by name, and their tokens (0: no token,
    or no such entry), in arrays of execution's shape: an array that execution holds chunk by chunk
    has more axes than declared."""
    run = execute(mixer.forms[form], sizes, arrays=arrays)
    own = {e.array for e in mixer.forms[form].equations}
    values = {array.name: np.zeros(run.trace.shape(array)) for array in own}
    tokens = {name: np.zeros(found.shape, int) for name, found in values.items()}
    for (array, where), scalar in run.trace.memory.items():
        if array in own:
            at = tuple(p - 1 for p in where)
            values[array.name][at], tokens[array.name][at] = scalar.value, scalar.token
    return values, tokens


def blame_in_words(
    mixer: Mixer, smallest: Mapping[str, int], blame_at: Callable[[Mapping[str, int]], Blame | None]
) -> str:
    """The array that a failing module computes wrongly, in words; "" if `blame_at` names none.

    At the `smallest` sizes many arrays hold the same numbers, as attention to one row and the row's
    value do. The largest small sizes at which the module fails tell arrays apart, so the blame at
    these sizes is taken; the words name the sizes if the blame at the smallest ones differs.

    Args:
        smallest: the smallest sizes at which the module fails.
        blame_at: the blame at some sizes; None if the module is right there.
    """

    def tried(sizes: Mapping[str, int]) -> Blame | None:
        """The blame at some sizes; None, too, if the module raises an error there."""
        try:
            with as_exception():
                return blame_at(sizes)
        except Exception:  # a module of a user's own that raises an error blames no array
            return None

    here = tried(smallest)
    if here is None:
        return ""
    for sizes in wide_sizes(mixer):
        wide = tried(sizes)
        if wide is not None and (wide.words or not here.words):
            if not wide.words:
                return ""
            at = f"at {words(sizes)} " if wide.array != here.array else ""
            return f"; {at}{wide.words}"
    return f"; {here.words}" if here.words else ""


def wide_sizes(mixer: Mixer) -> list[dict[str, int]]:
    """The small sizes with l above 1, in the order of trial: those with l above 2 first, then by
    the product of all sizes, the largest first."""
    sizes = [found for found in small_sizes(mixer) if found["l"] > 1]
    return sorted(sizes, key=lambda found: (found["l"] > 2, prod(found.values())), reverse=True)


def blamed_step(case: ModuleCase, form: str, token: int, sample: int = 0) -> Blame:
    """Find the first equation whose values `step` never computes at `token` (from 0), the first
    token whose row differs, in sequence `sample`.

    Arrays may hold the same values at this token, as attention to one row and the row's value do;
    the next `TELLING` tokens tell them apart. An array that a next token misses is blamed instead,
    unless it depends on the array blamed before, whose error the state may carry on.
    """
    found = _of_token(case, form, token, sample)
    reads = sources(case.mixer.forms[form].equations)
    for after in range(token + 1, min(token + 1 + TELLING, case.x.shape[1])):
        next_one = _of_token(case, form, after, sample)
        if (
            next_one.array
            and next_one.array != found.array
            and found.array not in reads[next_one.array]
        ):
            found = next_one
    return found


def _of_token(case: ModuleCase, form: str, token: int, sample: int) -> Blame:
    """Decode the tokens before `token` (from 0), record its step, and blame the first equation
    whose entries of this token the step never computes in the sequence `sample` of the batch."""
    recorder = Recorder(len(case.x), sample)
    with torch.no_grad():
        state = case.initial_state()
        for before in range(token):
            case.step(before + 1, state)
        with recorder:
            case.step(token + 1, state)
    values, tokens = executed(case.mixer, form, case.arrays(sample), case.sizes)
    own = _part(values, tokens, token + 1)
    equations = case.mixer.forms[form].equations
    # held chunk by chunk, an array has other axes than `Other`, which evaluates it as declared
    chunked = any(own[e.name].ndim > len(e.array.shape) for e in equations)
    other = None if chunked else Other(case, form, sample, token + 1, tokens)
    return first_unseen(case.mixer, form, own, recorder, other)
