"""The calls of a mixer on a GPU: a matrix product for each linear map, and one kernel for what is
between them, with their predicted times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from costmodel.errors import Unanswered
from costmodel.language.nodes import Flat, Gather
from costmodel.prediction.boards import Board
from costmodel.prediction.calls import Calls
from costmodel.prediction.families import SSD_CHUNK
from costmodel.prediction.kernels import KERNELS
from costmodel.prediction.predict import predict
from costmodel.program.dependence import Read, reads
from costmodel.program.element_types import Dtypes
from costmodel.program.phases import IterationDomain, iteration_domains
from costmodel.questions.question import FORWARD, Case
from costmodel.questions.subject import system_of

FITTED = ("bf16", "fp16")
"""The element types whose kernels the constants describe: two bytes an entry."""

FUSED: Mapping[str, str] = {
    "self-attention": "attention",
    "mla": "latent attention",
    "gated-deltanet": "gated delta rule",
    "kda": "Kimi delta rule",
    "mamba-2": "Mamba-2 scan",
}
"""Mixer -> the one kernel that computes what is between its linear maps, such as attention."""
CONVOLUTIONS: Mapping[str, str] = {
    "gated-deltanet": "gated delta convolution",
    "kda": "Kimi convolution",
    "mamba-2": "Mamba-2 convolution",
}
"""Mixer -> the kernel of its short convolutions."""
ATTENTION_OPTIONS = {
    "grouped", "window", "gate", "biased-gate", "bias", "output-bias", "qkv-bias", "rotary",
    "rotary-pairs", "partial-rotary", "qk-norm", "whole-qk-norm", "unscaled",
}  # fmt: skip
"""The options of self-attention after which its kernel has the same products and bytes."""


class NoKernel(Unanswered):
    """What is between a mixer's linear maps has no known kernel in the phase."""


class NoType(Unanswered):
    """No times are known in an element type."""


@dataclass(frozen=True)
class Step:
    """A call: its kernel, its predicted seconds and joules, and the ends of their intervals (joules
    are nan on a board without a power limit, ends where no interval is known). `limits`: what
    limits the call -> the seconds that this alone takes at the board's peaks. `like`: the kernel
    whose family has the constants, by default the call's own. `instead`: the figures that the board
    lacks and for which others stood in."""

    kernel: str
    seconds: float
    low: float
    high: float
    joules: float
    joules_low: float
    joules_high: float
    limits: Mapping[str, float]
    like: str = ""
    instead: frozenset[str] = frozenset()


def predicted_steps(case: Case, on: Board) -> Sequence[Step]:
    """The calls of kernels that a mixer makes at the sizes of `case`, in a forward phase, each with
    its predicted time on a board: the matrix products of its linear maps, then the kernels between
    these maps, such as attention.

    Raises:
        NoKernel: no kernel for what is between the mixer's linear maps is known in the phase.
        Unanswered: the kernels have no constants for an element type.
        BoardError: the board has no figure that is needed.
    """
    if case.phase not in FORWARD:
        raise NoKernel(
            f"no kernels of the phase {case.phase} are known: choose {' or '.join(FORWARD)}"
        )
    fused = (*fused_kernels(case),)
    dtypes = _dtypes(case)
    calls = (*linear_maps(case), *fused)
    return [_step(kernel, sizes, dtypes, on) for kernel, sizes in calls]


def _step(kernel: str, sizes: Mapping[str, float], dtypes: Dtypes, on: Board) -> Step:
    """The call of a kernel at `sizes` (letter -> value), with its predicted seconds, interval and
    joules, and the seconds that its products, bytes ("memory") and exponentials take alone at the
    board's peaks. `instead` names `capability` if attention needs it and the board lacks it. Raises
    BoardError: the board lacks a figure, or no family predicts the kernel."""
    given = {x: np.array([float(size)]) for x, size in sizes.items()}
    calls = Calls(kernel, given, dtypes.name_of("activations"), dtypes.state or "")
    one = predict(calls, on)
    joules, least, most = (
        float("nan") if found is None else float(found[0])
        for found in (one.joules, one.joules_low, one.joules_high)
    )
    ends = float(one.low[0]), float(one.high[0])
    limits = {"products": float(calls.arithmetic(on)[0]), "memory": float(calls.movement(on)[0])}
    exponentials = float(calls.work.exponentials[0])
    if exponentials and "special" in on.figures:  # else the formula of the kernel does without
        limits["exponentials"] = exponentials / on["special"]
    versions = "attention" in kernel and "capability" not in on.figures
    instead = frozenset(["capability"] if versions else [])
    seconds = float(one.seconds[0])
    return Step(kernel, seconds, *ends, joules, least, most, limits, instead=instead)


def products(case: Case, on: Board) -> Sequence[Step]:
    """The matrix products of a case alone. Unanswered: an element type without constants;
    BoardError: the board lacks a figure."""
    dtypes = _dtypes(case)
    return [_step(kernel, sizes, dtypes, on) for kernel, sizes in linear_maps(case)]


def _dtypes(case: Case) -> Dtypes:
    """The element types of a case (fp32 if it states none); Unanswered for activations, weights or
    a cache in a type other than `FITTED`."""
    dtypes = case.dtypes or Dtypes()
    for role, told in (
        ("activations", ""),
        ("weights", "with weights "),
        ("cache", "with a cache "),
    ):
        if (dtype := dtypes.name_of(role)) not in FITTED:
            known = " and ".join(FITTED)
            raise Unanswered(f"times of kernels are known {told}in {known} alone, not in {dtype}")
    return dtypes


def _reads(case: Case) -> Iterator[tuple[IterationDomain, Read]]:
    """Yield each part of an equation that a call executes, with each read of the equation."""
    system = system_of(case.mixer, case.form, case.about.convention.rewrites, case.phase)
    for part in iteration_domains(system, case.phase):
        for read in reads(part.equation):
            yield part, read


def chooses_weights(case: Case) -> bool:
    """Whether each row chooses the weights that it reads, such as its experts: how many weights
    move then depends on data."""
    return any(
        read.ref.array.role == "parameter" and isinstance(position, Gather)
        for _, read in _reads(case)
        for position in read.ref.positions
    )


def linear_maps(case: Case) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield ("gemm", sizes of the product: l rows of all sequences, d depth, f columns) for each
    matrix of parameters by which an equation multiplies rows and sums: of self-attention at b = 2,
    l = 8 and d = 4, {"l": 16, "d": 4, "f": 4} four times; one row per sequence in inference. Left
    out: products of parameters alone, and the taps of short convolutions. Matrices that each row
    chooses (its experts) are one product, with the columns of all matrices that the rows of a batch
    choose if choices are even."""
    sizes = dict(case.sizes)
    rows: float = sizes.pop("b", 1) * (1 if case.phase == "inference" else sizes["l"])
    maps = {
        (part.equation.part_of, read.ref.array.name): read
        for part, read in _reads(case)
        if read.ref.array.role == "parameter" and len(read.ref.array.shape) > 1 and not part.once
    }
    convolved: tuple[str, ...] = ()
    short = CONVOLUTIONS.get(_named(case))
    if short and "core" not in _options(case):  # taps are read by a kernel of their own
        convolved = KERNELS[f"prefill {short}"].equations
    for (name, _), read in maps.items():
        if name not in convolved:
            yield from _product(read, rows, sizes)


def _product(
    read: Read, rows: float, sizes: Mapping[str, int]
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield ("gemm", {"l": rows, "d": depth, "f": columns}) for the product of `rows` rows with the
    matrix of parameters that `read` reads, at `sizes` (letter -> value): its axes that are summed
    over have d entries, all others f. Nothing if d is 1. Of matrices that rows choose (experts), f
    counts those that some row chooses if choices are even, and l is the mean number of rows that
    choose one of them."""
    summed, depth, columns = {index.atom for index in read.over}, 1, 1.0
    for position, extent in zip(read.ref.positions, read.ref.array.shape, strict=True):
        if isinstance(position, Gather):
            chosen = prod(one.at(sizes) for one in position.at.array.shape[1:])
            share = chosen / extent.at(sizes)
            met = extent.at(sizes) * (1 - (1 - share) ** rows)  # matrices that some row chooses
            columns, rows = columns * met, rows * chosen / met
            continue
        # a flattened axis (j, c) has two indices, each summed or not
        inner = position.extent.at(sizes) if isinstance(position, Flat) else 1
        flat = (position.outer, position.inner) if isinstance(position, Flat) else (position,)
        for value, length in zip(flat, (extent.at(sizes) // inner, inner), strict=False):
            if summed & value.variables:
                depth *= length
            else:
                columns *= length
    if depth > 1:
        yield "gemm", {"l": rows, "d": depth, "f": columns}


def _named(case: Case) -> str:
    """The mixer's name without its options."""
    return case.mixer.name.partition("+")[0].partition("{")[0]


def _options(case: Case) -> set[str]:
    """The options in the mixer's name."""
    return {*case.mixer.name.partition("{")[0].split("+")[1:]}


def fused_kernels(case: Case) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield (name of a kernel, its sizes by letter) for each kernel between a mixer's linear maps:
    of `kda` at l = 8, d = 4, n = 2, ("prefill Kimi delta rule", {b: 1, l: 8, n: 2, k: 4, h: 2})
    and ("prefill Kimi convolution", ...).

    Raises:
        Unanswered: no kernel is known for this mixer, one of its options, or its form.
    """
    name, sizes = _named(case), dict(case.sizes)
    options = _options(case)
    unknown = options - ATTENTION_OPTIONS if name == "self-attention" else set()
    if name not in FUSED or unknown:
        what = f"{name} with {', '.join(sorted(unknown))}" if unknown else name
        known = [*sorted(ATTENTION_OPTIONS)] if unknown else [*FUSED]
        raise NoKernel(f"no time is predicted of {what}: expected {', '.join(known)}")
    decode = case.phase == "inference"
    tokens = sizes["t"] if decode else sizes["l"]
    taken: dict[str, float] = {"b": sizes.get("b", 1), "t" if decode else "l": tokens}
    letters = {  # the sizes of the mixer on which its kernel depends, beside l or t
        "self-attention": "n g", "mla": "n K R V c", "gated-deltanet": "n g K V k", "kda": "n k",
        "mamba-2": "n P N G k",
    }[name].split()  # fmt: skip
    taken |= {letter: sizes[letter] for letter in letters if letter in sizes}
    if name == "mla" and "R" not in sizes:
        raise NoKernel(
            "no time is predicted of mla without a shared key: leave out the option no-shared-key"
        )
    if name in ("self-attention", "kda"):
        taken["h"] = sizes.get("h", sizes["d"] // sizes["n"])
    if name == "self-attention":
        taken.setdefault("g", sizes["n"])
        taken["w"] = min(sizes.get("w", tokens), tokens)
    if name == "mamba-2" and not decode:
        taken["C"] = SSD_CHUNK  # the kernel's own chunk, whichever the table's is
    when = "decode" if decode else "prefill"
    yield _kernel(case, name, when), taken
    if name in CONVOLUTIONS and "core" not in options:  # option core: the rule without its maps
        yield f"{when} {CONVOLUTIONS[name]}", taken


def _kernel(case: Case, name: str, when: str) -> str:
    """The name of the kernel of a mixer's form, for when it runs: "prefill" (a prompt) or "decode"
    (a new token); Unanswered for a form of latent attention that has no kernel there."""
    if name == "mla":
        usual = "absorbed" if when == "decode" else "expanded"
        absorbed = "absorbed " if case.form == "absorbed" and when == "prefill" else ""
        if case.form not in (usual, "absorbed"):
            raise NoKernel(f"the form {case.form} has no kernel: choose {case.mixer.name}:{usual}")
        return f"{when} {absorbed}{FUSED[name]}"
    return f"{when} {FUSED[name]}"
