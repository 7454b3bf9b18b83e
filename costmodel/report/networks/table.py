"""The tables of a network's costs: lines and values, by phase and combination of sizes.

A line is a row of a table of costs, about one part; a sheet has the lines at one combination of
sizes in one stage: the phase itself, or for `generate` prefill and decode. A sheet is *settled* if
all its sizes have numbers; else its values are formulas in the remaining letters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from costmodel.errors import ModelError, SizeError, TableError
from costmodel.language.functions import CLASSES
from costmodel.networks.answers import PHASES, NetworkAnswers
from costmodel.networks.blocks import Description
from costmodel.networks.memory_budget import MemoryBudget, MemoryLine, MemoryOptions
from costmodel.networks.network import Network, generation, network, refuse_layers
from costmodel.networks.numerators import Compared, compared
from costmodel.networks.numerators.figures import Figures
from costmodel.networks.part_costs import Counting
from costmodel.prediction.columns import COLUMNS as OF_A_BOARD
from costmodel.program.chosen_sizes import (
    Given,
    combinations,
    given_sizes,
    listed,
    refuse_in_braces,
)
from costmodel.program.element_types import Dtypes
from costmodel.program.phases import PHASES as NAMES
from costmodel.questions.question import EVERY, Value
from costmodel.questions.registry import FIGURES
from costmodel.report.mixer_table import LABELS, Row, column_names
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sizes import LETTERS, is_letter

STAGES: Mapping[str, tuple[str, ...]] = {"generate": ("prefill", "decode")}
"""Phase -> its stages, for phases with several; any other phase is its own only stage."""

BY_LETTER: Mapping[str, tuple[str, ...]] = {"inference": ("t",), "generate": ("p", "q")}
"""Phase -> the sizes that only this phase depends on."""


USUAL = ("parameters", *CLASSES, "other", "once", "total", "state", "activations")
"""The figures that a table shows where they exist, in the order of its columns."""


def columns(text: str | None, wanted: Sequence[str]) -> tuple[tuple[str, ...] | None, bool]:
    """Read `--columns a,b,c`. Returns the names of figures and sizes, None if none is typed; and
    whether a figure needs element types: one in bytes, or in operations per byte.

    Raises:
        TableError: an unknown column, one of mixers alone (mixer, form, phase, best chunks, times
            on a board), or one that exists in none of the phases (`wanted`).
    """
    if text is None:
        return None, False
    found = column_names(text)
    if names := [x for x in found if x in LABELS]:
        raise TableError(
            f"'{names[0]}' is no column of a network, whose rows are parts: choose the column "
            "'part'"
        )
    if names := [x for x in found if not is_letter(x) and x not in FIGURES]:
        raise TableError(
            f"'{names[0]}' is a column of mixers alone: `costmodel model --board` predicts times"
            if names[0] in OF_A_BOARD else f"'{names[0]}' is a column of mixers alone"
        )  # fmt: skip
    there = {PHASES.get(stage, stage) for phase in wanted for stage in STAGES.get(phase, (phase,))}
    for name in found:
        if not is_letter(name) and not {*FIGURES[name].phases} & there:
            raise TableError(f"{FIGURES[name].elsewhere}: choose another --phase")
    units = {FIGURES[name].unit for name in found if name in FIGURES}
    return found, bool({"bytes", "operations/byte"} & units)


def phases(text: str) -> tuple[str, ...]:
    """The phases that the text of `--phase` means: of "decode" ("inference",), of "both" the
    forward pass and one new token, of "all" every phase.

    Raises:
        ModelError: an unknown name.
    """
    several = {"both": ("training", "inference"), "all": EVERY}
    if text in several:
        return several[text]
    known = {name: phase for name, phase in NAMES.items() if name != "prefill"}
    known["generate"] = "generate"
    if text == "prefill":
        raise ModelError(
            "--phase prefill: the prompt's forward pass is a part of generate: choose --phase "
            "generate"
        )
    if text not in known:
        raise ModelError(f"--phase '{text}': expected one of {', '.join(known)}, both, all")
    return (known[text],)


@dataclass(frozen=True)
class Request:
    """The options of a network's tables.

    Args:
        given: the sizes given by the user, which replace the network's own.
        kept: sizes that stay letters, even if the network has a value for them.
        symbolic: all sizes that are not given stay letters (b is 1 unless given).
        memory_options: the options of a training step that change its memory.
        columns: figures or sizes in place of the usual ones; None: the usual ones.
        dtypes: the element types of figures in bytes.
    """

    described: Description
    given: Given = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    phases: tuple[str, ...] = ("training", "inference")
    counting: Counting = field(default_factory=Counting)
    symbolic: bool = False
    memory_options: MemoryOptions = field(default_factory=MemoryOptions)
    columns: tuple[str, ...] | None = None
    dtypes: Dtypes = Dtypes()
    mfu: bool = False
    """Whether formulas for MFU stand beside the count of a training step."""


def asked(typed: Mapping[str, str | None]) -> tuple[Given, frozenset[str]]:
    """The values of the sizes on the command line, and the sizes to keep as letters (`--l l`)."""
    kept = frozenset(letter for letter, text in typed.items() if text == letter)
    return given_sizes({x: text for x, text in typed.items() if x not in kept}), kept


def one_number(letter: str, described: Description, given: Given) -> int | None:
    """The value of a size that is given, or that the network has; None for several values (a
    sweep), for a size tied to a letter, and for a size without a value."""
    found = listed(given).get(letter, (described.sizes.get(letter),))
    return found[0] if len(found) == 1 and isinstance(found[0], int) else None


@dataclass(frozen=True, eq=False)
class Line(Row):
    """One part, or all parts together, in one stage at one combination of sizes."""

    name: str = "total"
    runs: Poly | None = None
    """How often the part runs; None for the total."""

    def value(self, name: str, shown: Sequence[str] = ()) -> Value:
        """The value of a column for a part or the total: of `part`, its name; of `runs`, how often
        the part runs (None for the total); else the figure, `other` without the columns in
        `shown`."""
        if name == "part":
            return self.name
        if name == "runs":
            return None if self.runs is None else self.settled(Exact.of(self.runs))
        return super().value(name, shown)


@dataclass(frozen=True)
class Sheet:
    """A network in one stage of a phase at one combination of sizes."""

    request: Request
    network: Network
    stage: str
    sizes: Mapping[str, int]
    """The sizes with a value."""
    letters: tuple[str, ...]
    """All sizes that the network has in the stage."""
    lines: tuple[Line, ...]
    total: Line
    tables: Value
    """The parameters of the embeddings' tables; the total includes them."""
    memory: tuple[MemoryLine, ...] = ()
    """The memory of a training step: numbers if all sizes have values, else formulas."""
    formulas: tuple[Compared, ...] = ()
    """Formulas for MFU beside the exact count of one sequence, where they are asked for."""


def letters_of(net: Network, phase: str) -> tuple[str, ...]:
    """The sizes that a network has in a phase, in the order of `LETTERS`."""
    found = {"b", *BY_LETTER.get(phase, ())}
    for use in net.uses:
        found |= use.runs.letters | use.copies.letters
        for letter in ("l", *use.mixer.letters):
            found |= use.sizes.get(letter, Poly.atom(letter)).letters
    return tuple(letter for letter in LETTERS if letter in found)


def sheets(request: Request) -> list[Sheet]:
    """The costs of a network as sheets: one for every stage (a phase, or prefill and decode, which
    make up generation) at every combination of sizes, with a line per part and the total.

    Raises:
        SizeError: sizes that do not fit.
        ModelError: layers of several kinds (dense and sparse, say) while the number L of layers has
            no value, so that it is unknown how many there are of each kind.
        Unanswered: generation by a network without a head over the vocabulary.
    """
    found = []
    for phase in request.phases:
        for sizes in _combinations(request, phase):
            net = _network(request, sizes)
            letters = letters_of(net, phase)
            found += _stages(request, net, phase, sizes, letters)
    return found


def refuse_unread(found: Sequence[Sheet]) -> None:
    """Raise SizeError for a given size that no part of the networks reads, since braces say it."""
    read = {x for sheet in found for x in (*sheet.letters, *sheet.sizes)}
    mixers = [use.mixer for sheet in found for use in sheet.network.uses if use.mixer.given]
    refuse_in_braces([x for x in found[0].request.given if x not in read], mixers)


def _given(request: Request) -> dict[str, tuple[int, ...] | str]:
    """Size -> its values, or the letter that it equals: those given, else the network's own unless
    the table is symbolic; without the sizes that the user keeps as letters."""
    own: dict[str, tuple[int, ...]] = {}
    if not request.symbolic:
        sizes = request.described.sizes
        own = {x: v if isinstance(v, tuple) else (v,) for x, v in sizes.items()}
    found = {**own, **request.given}
    return {x: v for x, v in found.items() if x not in request.kept}


def _without_replaced_formulas(request: Request) -> Description:
    """The network's description without its formulas for sizes that are given or kept as letters,
    so that these sizes are no longer computed from others."""
    formulas = {
        letter: poly
        for letter, poly in request.described.formulas.items()
        if letter not in request.given and letter not in request.kept
    }
    return replace(request.described, formulas=formulas)


def _combinations(request: Request, phase: str) -> list[dict[str, int]]:
    """All combinations of the sizes that have values; the other sizes stay letters: `request.kept`
    (typed as `--l l`), and of a symbolic request all but b and those given.

    A network whose layers have several kinds needs the number L of layers to be built: L then gets
    a value in every combination.

    Raises:
        SizeError: a size without a value and without a default; ModelError: such a network without
            a number L.
    """
    given = _given(request)
    described = _without_replaced_formulas(request)
    if described.patterned:
        if (request.symbolic and "L" not in given) or "L" in request.kept:
            network(replace(described, sizes={}))  # raises the ModelError
        given.setdefault("L", (LETTERS["L"].default or 1,))
    # layers of several kinds are built at the first L, for the letters of the network
    sample = {"L": listed(given).get("L", (1,))[0]} if described.patterned else {}
    letters = letters_of(network(described, **sample), phase)
    letters = tuple(x for x in LETTERS if x in letters or (x == "L" and described.patterned))
    if request.symbolic:
        named = [x for x in letters if x in given or x == "b"]
    else:
        named = [x for x in letters if x not in request.kept]
    missing = [x for x in named if x not in given and x != "t" and LETTERS[x].default is None]
    if missing:
        raise SizeError(f"size {missing[0]} has no default: give --{missing[0]}")
    # the default of t is l: where l stays a letter, t does too
    if "t" in named and "t" not in given and "l" in request.kept:
        named.remove("t")
    return combinations(named, given)


def _network(request: Request, sizes: Mapping[str, int]) -> Network:
    described = _without_replaced_formulas(request)
    layers = {"L": sizes["L"]} if described.patterned else {}
    return network(described, **layers)


def _stages(
    request: Request, net: Network, phase: str, sizes: Mapping[str, int], letters: tuple[str, ...]
) -> list[Sheet]:
    """The sheets (costs by part) of all stages of a phase at one combination of sizes: prefill and
    decode of `generate` (Unanswered without a head), else the phase itself. If all `letters` have
    numbers, these must fit the network (SizeError); ModelError for a number of layers at which
    layers do not share weights as the network says."""
    numbers = {x: v for x, v in sizes.items() if x in letters or x == "L"}
    settled = set(letters) <= set(numbers)
    refuse_layers(net.described, numbers.get("L"))
    if settled:
        net.fit(numbers)
    if phase == "generate":
        generation(net)  # refuses a network that generates no tokens
    recompute = request.memory_options.recompute
    found = []
    for stage in STAGES.get(phase, (phase,)):
        about = net.answers(stage, request.counting, recompute)
        # at numbers, sums over steps need no formula, and only parts that end before the last
        # position have no answer
        if settled and (stage == "decode" or about.beyond(numbers)):
            about = about.at_numbers(numbers)
        found.append(_sheet(request, net, about, numbers, letters, settled))
    return found


def sheet_of(request: Request, net: Network, phase: str, sizes: Mapping[str, int]) -> Sheet:
    """The sheet (costs by part) of a network in a phase, at sizes that are all numbers."""
    about = net.answers(phase, request.counting)
    if about.beyond(sizes):
        about = about.at_numbers(sizes)
    return _sheet(request, net, about, sizes, letters_of(net, phase), settled=True)


def _sheet(
    request: Request,
    net: Network,
    about: NetworkAnswers,
    sizes: Mapping[str, int],
    letters: tuple[str, ...],
    settled: bool,
) -> Sheet:
    """The sheet of the stage of `about`: a line per part and their total, the parameters in
    embeddings' tables, and of a training step the memory and, if asked for, the formulas for MFU.
    `settled`: all sizes (`letters`) are numbers; else figures are formulas. ModelError: MFU without
    numbers."""
    total = Line(
        about, sizes, not settled, dtypes=request.dtypes,
        optimiser=request.memory_options.optimiser,
    )  # fmt: skip
    lines = tuple(
        replace(total, about=part, name=part.use.name, runs=part.runs) for part in about.parts
    )
    own = net.parameters()
    tables = total.settled(Exact.of(own.poly - own.without_tables.poly))
    memory: tuple[MemoryLine, ...] = ()
    if about.stage == "training-step":
        options = request.memory_options
        held = MemoryBudget(net, request.counting, options, sizes if settled else None)
        memory = tuple(one.at(sizes, settled=settled) for one in held.lines())
    formulas: tuple[Compared, ...] = ()
    if about.stage == "training-step" and request.mfu:
        if not settled:
            raise ModelError("--mfu compares numbers: give a number for every size")
        formulas = tuple(compared(Figures(net, request.counting, sizes["l"])))
    return Sheet(
        request, net, about.stage, sizes, letters, lines, total, tables, memory, formulas
    )  # fmt: skip
