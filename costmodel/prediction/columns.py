"""The columns of tables that need a board: the floor of a call's time, what sets the floor, and the
predicted time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import ceil, fsum, isnan
from typing import TYPE_CHECKING, Protocol

from costmodel.errors import BoardError, Unanswered
from costmodel.prediction.boards import CPU, GPU, Board
from costmodel.program.element_types import Dtypes
from costmodel.questions.question import Answer, Case, Figure, Whole
from costmodel.questions.registry import FIGURES
from costmodel.questions.traffic import moved

if TYPE_CHECKING:
    from costmodel.language.equations import Mixer
    from costmodel.prediction.layers import Step

NANO = 1e9
NO_BOARD = "no board is given: name one by --board"
"""The reason for what needs a board, without one."""


def board_of(case: Case) -> Board:
    """The board of a case, a row of a table; Unanswered without one."""
    if not isinstance(case.board, Board):
        raise Unanswered(NO_BOARD)
    return case.board


def refuse_letters(case: Case) -> None:
    """Raise Unanswered for a case whose sizes are letters."""
    if case.symbolic:
        raise Unanswered("a time needs a number for every size")


NO_SPAN = "span unknown"
"""The words for a floor without the limit of the span."""
WORK: Mapping[str, Figure] = {
    **{name: FIGURES[name] for name in ("mul", "add", "exp", "span")},
    "traffic": Figure("least", "the least traffic in bytes", lambda case: moved(case, "least")),
}
"""What sets the limits of a call. A backward pass may compute values of the forward pass anew, as
kernels of attention do: no value that was kept is among the least bytes."""


ABOUT_FLOOR = (
    "floor: the longest of these times, each taken alone: products at the fastest unit's dense "
    "peak; compulsory bytes at the memory's bandwidth; exponentials on the special function units; "
    "the span at one level a cycle; and, on a board with a kernel_time, the launch of one kernel, "
    "with --impl of all kernels of its module; bound names the longest"
)
ABOUT_KERNELS = (
    "kernels: each linear map is a matrix product, attention, a delta rule or a scan the kernels "
    "of one implementation; operations between them, which compilers fuse, take no time; none is "
    "below the floor"
)
ABOUT_MODULES = (
    "modules: the operations that torch dispatches, one after the other, without the host's "
    "launches, as reconcile --board predicts them; the module is that of --impl, whose form the "
    "row then has, else the fastest of the row's form or, if no module of the default form has a "
    "time, of another form; an interval may begin below the floor, which is that of the equations; "
    "on a CPU, whose last cache serves repeated calls, a time may lie below the floor too"
)
"""What a floor is, and what the calls of kernels and of modules are."""
OF_BACKWARD = (
    "floor of a backward pass: its bytes leave out values kept from the forward pass, which may be "
    "computed again; each pass reads inputs and weights, a training step reads them once, so that "
    "the floors of both passes may add up to more than the step's"
)
"""What the floor of a backward pass leaves out."""


def limits(
    case: Case, bytes_moved: int | None = None, kernels: int | None = None
) -> Mapping[str, float]:
    """Limit -> the seconds of a call if this limit alone held: `products` (multiplications and
    additions) on the board's fastest unit for the dtype, `exponentials` on its special function
    units, `memory`: `bytes_moved` (default: the least) at its bandwidth, `span`: one level of
    dependent operations a cycle (left out where the span is not derived, as in a search that is too
    large: the longest of the others is a floor too); and on a board with a `kernel_time`,
    `launches`: so many `kernels` one after the other (default: those that the case's module
    launches; one without a module).

    Raises:
        Unanswered: no board, a figure that the board does not have, or an answer that is missing.
    """
    on, found = board_of(case), {}
    refuse_letters(case)
    case = _whole(case)
    for name, figure in WORK.items():
        known = bytes_moved if name == "traffic" else None
        number = case.figure(figure) if known is None else known
        if isinstance(number, int | Fraction):
            found[name] = number
        elif name != "span":
            raise Unanswered(getattr(number, "reason", f"{name} is not derived"))
    dtype = (case.dtypes or Dtypes()).name_of("activations")
    try:
        launches = {}
        if "kernel_time" in on.figures:
            number = _launched(case) if kernels is None else kernels
            launches["launches"] = number * on["kernel_time"]
        rate = max(on[name] for name in on.product_units(dtype) or (f"matrix.{dtype}",))
        products = found["mul"] + found["add"]
        return launches | {
            "products": products / rate,
            "exponentials": found["exp"] / on["special"] if found["exp"] else 0.0,
            "memory": found["traffic"] / on["memory_bandwidth"],
            **({"span": found["span"] / on["clock"]} if "span" in found else {}),
        }
    except BoardError as error:
        raise Unanswered(str(error)) from None


@lru_cache(maxsize=4096)
def _whole(case: Case) -> Case:
    """The case of the whole call, not of a token; the same one for every figure, which it keeps."""
    return replace(case, per_token=False)


def _launched(case: Case) -> int:
    """The number of kernels that a case's module launches, 1 without one; Unanswered as `steps`."""
    return OF_MODULES[0]().launched(case) if case.implementation and OF_MODULES else 1


def floor(case: Case) -> Answer:
    """The least time of a call in ns, rounded up: its longest limit; Unanswered as `limits`."""
    return ceil(NANO * max(limits(case).values()))


def bound(case: Case) -> Answer:
    """What sets the least time of a call: the name of its longest limit, as in `longest`."""
    return longest(limits(case))[0]


def longest(found: Mapping[str, float]) -> tuple[str, float]:
    """(the name of the longest limit, its seconds); the name says if the span is not known.

    >>> longest({"products": 2.0, "memory": 3.0, "span": 1.0}), longest({"memory": 3.0})
    (('memory', 3.0), ('memory, span unknown', 3.0))
    """
    name = max(found, key=lambda one: found[one])
    return (name if "span" in found else f"{name}, {NO_SPAN}"), found[name]


def span_unknown(case: Case) -> str:
    """The reason why the span of a case is not known; "" if it is."""
    number = _whole(case).figure(WORK["span"])
    return getattr(number, "reason", "") if not isinstance(number, int | Fraction) else ""


class Modules(Protocol):
    """What the modules of mixers dispatch."""

    def steps(self, case: Case) -> tuple[str, Sequence[Step]]:
        """(a module of the case's mixer, the operations that it dispatches, with predicted
        times)."""

    def launched(self, case: Case) -> int:
        """The number of kernels that the module named by the case launches."""

    def form_executed(self, mixer: Mixer, implementation: str, phase: str) -> str:
        """The form that a mixer's module executes in a phase; "" if there is none."""


OF_MODULES: list[Callable[[], Modules]] = []
"""The function that returns what modules dispatch; none before `import profiler`."""


def form_executed(mixer: Mixer, implementation: str, phase: str) -> str:
    """The form that a mixer's module executes in a phase; "" if there is no such module, or before
    `import profiler`."""
    return OF_MODULES[0]().form_executed(mixer, implementation, phase) if OF_MODULES else ""


@lru_cache(maxsize=4096)
def steps(case: Case) -> tuple[str, Sequence[Step]]:
    """(implementation, the calls that a mixer makes on the case's board, with predicted times): the
    calls of kernels for implementation "", else the operations that this module dispatches. Kernels
    are taken where they are known, also in the case's element types, the board is a GPU, and the
    case names no implementation. No module is known before `import profiler`.

    Raises:
        Unanswered: a size is a letter, no board is given, or a kernel, module or figure is not
            known.
    """
    refuse_letters(case)
    on = board_of(case)
    if isinstance(case.mixer, Whole):
        name = case.mixer.name
        raise Unanswered(f"for the time of a network, run costmodel model {name} --board {on.name}")
    # numpy, which only predictions need, takes a while to load
    from costmodel.prediction.layers import NoKernel, NoType, predicted_steps

    gpu = on.kind == GPU or not OF_MODULES  # kernels refuse a CPU in words
    try:
        if gpu and not case.implementation:
            return "", predicted_steps(case, on)
    except NoKernel as reason:
        if not OF_MODULES:
            also = "after `import profiler` the times of modules are predicted too"
            raise Unanswered(f"{reason}; {also}") from None
    except Unanswered as reason:  # no kernel is known in an element type
        if not OF_MODULES:
            raise
        try:
            return OF_MODULES[0]().steps(case)
        except NoType:
            raise reason from None
        except Unanswered as other:
            raise Unanswered(f"{reason}; {other}") from None
    except BoardError as error:
        raise Unanswered(str(error)) from None
    # no kernel does this mixer's work, a module is named, or the board is a CPU
    return OF_MODULES[0]().steps(case)


def together(case: Case) -> Mapping[str, float]:
    """{"seconds": the predicted seconds of all calls of a case, one after the other; "low", "high":
    the ends of their interval}. No time of kernels is below the floor (lower bound) of the case,
    where the floor is derived (each call alone is above the floor of its own operations and bytes).
    Raises Unanswered as `steps` does."""
    module, found = steps(case)
    try:
        least = 0.0 if module else max(limits(case).values())
    except Unanswered:
        least = 0.0
    return {
        end: max(sum(getattr(step, end) for step in found), least)
        for end in ("low", "seconds", "high")
    }


def prediction_sentences(case: Case) -> Iterator[str]:
    """Yield sentences that explain a prediction: the predicted time of a case with each of its
    calls, then, for each family of kernels, the constants that its formula uses; raises
    Unanswered as `steps` does."""
    module, found = steps(case)
    # numpy, which only predictions need, takes a while to load
    from costmodel.prediction.families import family_of
    from costmodel.prediction.predict import among_kernels, constants_in_words, meanings

    each = ", ".join(f"{step.kernel} {1e6 * step.seconds:.4g} us" for step in found)
    low, seconds, high = (1e6 * number for number in together(case).values())
    within = "" if isnan(low) else f", nine of ten between {low:.4g} and {high:.4g} us"
    by = f" of the module {_named(module, case)}" if module else ""
    yield f"predicted {seconds:.4g} us{by}{within}: {each}"
    ends = ("joules", "joules_low", "joules_high")
    joules, least, most = (fsum(getattr(step, end) for step in found) for end in ends)
    if not isnan(joules):
        yield (
            f"predicted {joules:.4g} J, at the board's power while the call runs, nine of ten "
            f"between {least:.4g} and {most:.4g} J"
        )
    if isnan(low):  # by the rates of the board alone
        return
    kernels = (step.like or step.kernel for step in found)
    families = {family.name: family for name in kernels if (family := family_of(name, ""))}
    for family in families.values():
        by = constants_in_words(family, board_of(case).chip)
        yield f"constants of {family.name}, {by}. {meanings(family)}"
    if module and "kernel_time" not in board_of(case).figures:
        share, boards = among_kernels()
        yield (
            f"among other kernels, a small kernel's launch takes {share:.2g} of its time alone, as "
            f"measured on {', '.join(boards)}; the interval reaches from no launch to that time"
        )


def _known(number: float, case: Case, what: str) -> float:
    """The predicted `number` of a case, seconds or joules; Unanswered for nan, where the board
    lacks a figure of an operation that `what`, "interval" or "energy", needs."""
    if isnan(number):
        on = board_of(case)
        if on.kind == CPU:
            raise Unanswered(f"board {on.name} is a CPU, of which the {what} is not predicted")
        missing = on.product_unit((case.dtypes or Dtypes()).name_of("activations"))
        raise Unanswered(
            f"board {on.name} has no figure '{missing}', which the {what} of an operation needs: "
            f"add it to {on.path_shown}"
        )
    return number


def predicted(end: str) -> Figure:
    """The column, as a `Figure`, of the predicted time in nanoseconds (`end` = "seconds"), or of an
    end ("low", "high") of the interval that should hold nine of ten measured times."""
    names = {"seconds": "predicted_time", "low": "predicted_low", "high": "predicted_high"}
    meaning = "predicted nanoseconds of all calls, one after the other"
    side = {"seconds": "", "low": ", nine of ten above", "high": ", nine of ten below"}[end]
    return Figure(
        names[end],
        meaning + side,
        lambda case: ceil(NANO * _known(together(case)[end], case, "interval")),
        header=f"{names[end].replace('_', ' ')} (ns)",
        unit="ns",
    )


def energy(end: str) -> Figure:
    """The column of the predicted energy of all calls in microjoules (`end` = ""), or of the lower
    or upper end ("_low", "_high") of its interval. The column's value is unanswered if no time is
    predicted, or the board has no power limit."""

    def microjoules(case: Case) -> Answer:
        """The energy of a case's calls; Unanswered without the board's power limit."""
        on = board_of(case)
        if "power_limit" not in on.figures:
            where = f"add it to {on.path_shown}"
            raise Unanswered(f"board {on.name} has no figure 'power_limit': {where}")
        joules: float = sum(getattr(step, f"joules{end}") for step in steps(case)[1])
        return round(1e6 * _known(joules, case, "energy"))

    side = {"": "", "_low": ", nine of ten above", "_high": ", nine of ten below"}[end]
    return Figure(
        f"predicted_energy{end}",
        f"predicted microjoules of all calls, at the board's power while they run{side}",
        microjoules,
        header=f"predicted energy{end.replace('_', ' ')} (uJ)",
        unit="uJ",
    )


def _named(module: str, case: Case) -> str:
    """The name of a module, with the form that it executes where this is not the case's."""
    form = form_executed(case.mixer, module, case.phase)
    return module if form == case.form else f"{module} in its form {form}"


def predicted_by(case: Case) -> str:
    """What a prediction is of: `kernels`, or the module whose operations are predicted."""
    module = steps(case)[0]
    return _named(module, case) if module else "kernels"


COLUMNS: Mapping[str, Figure] = {
    one.name: one
    for one in (
        Figure("floor", "the least nanoseconds by the board's peaks", floor,
               header="floor (ns)", unit="ns"),
        Figure("bound", "what sets the floor", bound, kind="label"),
        *(predicted(end) for end in ("seconds", "low", "high")),
        Figure("predicted_by", "the module whose operations are predicted, or kernels",
               predicted_by, header="predicted by", kind="label"),
        *(energy(end) for end in ("", "_low", "_high")),
    )
}  # fmt: skip
"""Name in `--columns` -> the column."""


def notes(cases: Sequence[Case], shown: Sequence[str]) -> Iterator[str]:
    """Yield the sentences below the table of a phase: on which board, what the columns floor, bound
    and predicted mean, as far as they are among `shown`, for which figures that the board lacks
    others stand in, and where constants were fitted; none without a board or such a column."""
    on = next((case.board for case in cases if isinstance(case.board, Board)), None)
    if on is None or not {*COLUMNS} & {*shown}:
        return
    instead: set[str] = set()
    yield f"board {on.caption}"
    if {"floor", "bound"} & {*shown}:
        yield ABOUT_FLOOR
        instead |= _of_floors(on, cases)
        yield from _without_span(cases)
        if any(case.phase == "backward" for case in cases):
            yield OF_BACKWARD
    if not any(name.startswith("predicted") for name in shown):
        yield from _lacking(on, cases, instead)
        return
    of_modules: dict[str, None] = {}
    of_kernels: dict[str, None] = {}
    boards: set[str] = set()
    for case in cases:
        with suppress(Unanswered):
            module, found = steps(case)
            instead |= {name for step in found for name in step.instead}
            if module:
                named = _named(module, case)
                own = "" if named == module else f" (the row's form, of the floor: {case.form})"
                of_modules[f"{case.mixer.name} {named}{own}"] = None
            else:
                of_kernels[case.mixer.name] = None
            boards |= _fitted_on(on, found)
    kinds = {"the kernels of": of_kernels, "the modules": of_modules}
    if each := [f"of {kind} {', '.join(found)}" for kind, found in kinds.items() if found]:
        yield f"phase {cases[0].phase}, predicted: {'; '.join(each)}"
    if of_kernels:
        yield ABOUT_KERNELS
    if of_modules:
        yield ABOUT_MODULES
    yield from _lacking(on, cases, instead)
    if boards:
        yield (
            f"constants of {on.name} were fitted on {', '.join(sorted(boards))}, and never on the "
            "board itself: two boards have different constants, and which of them is predicted to "
            "be faster means nothing where their intervals overlap"
        )


STANDS_IN: Mapping[str, str] = {
    "kernel_time": "constants fitted to other boards",
    "matrix": "the vector units",
    "narrow": "matrix",
    "l2_bandwidth": "memory_bandwidth",
    "allocation": "memory_bandwidth",
    "selection": "no time",
    "capability": "FlashAttention 3 or later",
}
"""Figure -> what stands in for it on a board whose file lacks it."""


def _fitted_on(on: Board, found: Sequence[Step]) -> set[str]:
    """The boards on which the constants were fitted by which calls are predicted on a board; none
    of calls that are predicted by the rates of the board alone."""
    from costmodel.prediction.families import family_of
    from costmodel.prediction.predict import fit_for

    named = {step.like or step.kernel for step in found if not isnan(step.low)}
    families = [family for name in named if (family := family_of(name, ""))]
    return {board for family in families for board in fit_for(family, on.chip).boards}


def _of_floors(on: Board, cases: Sequence[Case]) -> set[str]:
    """{"matrix"} if the floor of some case takes the vector units, as no matrix unit takes its
    element type; else none."""
    for case in cases:
        dtype = (case.dtypes or Dtypes()).name_of("activations")
        if on.product_unit(dtype).startswith("vector"):
            with suppress(Unanswered):
                limits(case)
                return {"matrix"}
    return set()


def _without_span(cases: Sequence[Case]) -> Iterator[str]:
    """Yield a sentence with the reason for each case that has a floor, but no limit of the span."""
    for case in cases:
        with suppress(Unanswered):
            if "span" not in limits(case):
                yield (
                    f"floor of {case.mixer.name}, {case.form}, phase {case.phase}: at least "
                    f"the longest of the other limits, as its span is not known: "
                    f"{span_unknown(case)}"
                )


def _lacking(on: Board, cases: Sequence[Case], figures: Collection[str]) -> Iterator[str]:
    """Yield the sentence that names those of `figures` for which others stood in, and what stood in
    for each, with the element type of the cases; none without figures."""
    if figures:
        dtype = next(case.dtypes or Dtypes() for case in cases).name_of("activations")
        each = ", ".join(f"{name} ({x})" for name, x in STANDS_IN.items() if name in figures)
        yield f"not among the figures of {on.name} in {dtype}, with what stands in: {each}"
