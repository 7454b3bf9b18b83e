"""Which work has a fused kernel? Operations and bytes, derived from a mixer's equations.

A kernel executes some equations of a mixer in one call: attention's scores, softmax and sums, or a
delta rule without the maps around the rule. Operations and bytes are formulas in the mixer's sizes,
derived once, and evaluated for many calls at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.language.equations import Mixer, System
from costmodel.language.writing import sum_
from costmodel.mixers.load import mixer
from costmodel.program.element_types import BYTES
from costmodel.questions.counting.by_equation import count_equations
from costmodel.questions.subject import system_of
from costmodel.questions.traffic import moved_by
from costmodel.symbolic.piecewise import Exact

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

PRODUCTS = ("mul", "add")
"""The operations that matrix units execute."""


@dataclass(frozen=True)
class Work:
    """The work of each of N calls, arrays (N,): `products` (multiplications and additions),
    exponentials, and the bytes that move at least."""

    products: Floats
    exponentials: Floats
    bytes: Floats


@dataclass(frozen=True)
class Kernel:
    """A kernel that executes, in one call, those equations of a mixer in a phase that compute the
    arrays named in `equations`; `form` None: the mixer's first form."""

    mixer: str
    phase: str
    equations: tuple[str, ...]
    form: str | None = None
    state_dtype: str | None = None
    """The element type in which the kernel keeps a recurrence's state, whatever type is asked for;
    None: the type asked for."""

    @cached_property
    def _system(self) -> System:
        subject = linear_map() if self.mixer == LINEAR_MAP else mixer(self.mixer)
        return system_of(subject, self.form, (), self.phase)

    @cached_property
    def _formulas(self) -> Mapping[str, Any]:
        """Class of operations ("mul") or kind of moved entries ("moved weights") -> a function from
        sizes (letter -> array) to the number for one sequence; that of weights serves all."""
        counts = count_equations(self._system, self.phase, "strict")
        found: dict[str, Exact] = {}
        for name in self.equations:
            for operation in counts[name].classes:
                number = counts[name].exact(operation)
                found[operation] = found.get(operation, Exact()) + number
        moved = moved_by(self._system, self.phase, self.equations)
        found |= {f"moved {kind}": number for kind, number in moved.kinds.items()}
        return {name: _function(number) for name, number in found.items()}

    def work(self, dtype: str, sizes: Mapping[str, Floats], state: str = "") -> Work:
        """The work of each of N calls: products, exponentials, and compulsory bytes (each entry
        moved once).

        Args:
            dtype: the type of the entries that move, such as bf16.
            state: the type of a state's entries, by default `dtype`.
            sizes: letter -> array (N,); `b` is the number of sequences, by default 1.
        """
        size = {name: np.asarray(value, dtype=float) for name, value in sizes.items()}
        batch = size.pop("b", np.ones(()))
        if "h" in size:
            size["d"] = size["n"] * size["h"]  # the equations of mixers have the width d
        shape = np.broadcast_shapes(batch.shape, *(one.shape for one in size.values()))

        def of(name: str) -> Floats:
            """The number of a formula, such as "mul", for each call and one sequence."""
            return np.broadcast_to(self._formulas[name](size), shape).astype(float)

        totals = {"products": np.zeros(shape), "exp": np.zeros(shape), "bytes": np.zeros(shape)}
        for name in self._formulas:
            if name in PRODUCTS:
                totals["products"] += batch * of(name)
            elif name == "exp":
                totals["exp"] += batch * of(name)
            elif name.startswith("moved "):
                kind = name.removeprefix("moved ")
                own = (self.state_dtype or state or dtype) if kind == "state" else dtype
                number = of(name) * (1 if kind == "weights" else batch)
                totals["bytes"] += BYTES[own] * number
        return Work(totals["products"], totals["exp"], totals["bytes"])


def _function(number: Exact) -> Any:
    """A function that takes sizes (letter -> array) and evaluates the formula `number` there."""
    import sympy

    expression = number.expr
    letters = sorted(map(str, expression.free_symbols))
    compiled = sympy.lambdify(letters, expression, "numpy")
    return lambda sizes: compiled(*(sizes[letter] for letter in letters))


LINEAR_MAP = "linear map"


@cache
def linear_map() -> Mixer:
    """The mixer of one matrix product, y (l, f) = x (l, d) times the parameters W (d, f): the work
    of a matrix product is derived from equations like that of every other kernel."""
    m = Mixer("linear-map", title="A linear map", idea="rows times a matrix", source="", group="")
    l, d, f = m.sizes("l d f")
    x, W, y = m.input("x", l, d), m.parameter("W", d, f), m.output("y", l, f)
    with m.form("direct") as form:
        i, a, b = form.index("i", 1, l), form.index("a", 1, d), form.index("b", 1, f)
        y[i, b] = sum_(x[i, a] * W[a, b], over=a)
    return m


ATTENTION = "self-attention+grouped+window"

RULE = ("D", "U", "S", "R")
"""A delta rule: the decayed state, the corrected value, the new state, what the query reads."""
TAPS = ("C_Q", "H_Q", "C_K", "H_K", "C_V", "H_V")
"""The short convolutions of queries, keys and values, and their silu."""
MAMBA_TAPS = ("T_X", "X", "T_K", "K", "T_Q", "Q")
SCAN = ("U", "kept", "S", "O")
CHUNKED_SCAN = ("U", "F", "M", "W", "V", "E", "T", "B", "S", "L", "O")
"""Mamba-2 between convolution and gate, row by row and in chunks: what the states receive, how much
of a state is kept, the states, what the rows read."""

KERNELS: Mapping[str, Kernel] = {
    "gemm": Kernel(LINEAR_MAP, "training", ("y",)),
    "prefill attention": Kernel(ATTENTION, "training", ("Z", "A", "R")),
    "decode attention": Kernel(ATTENTION, "inference", ("Z", "A", "R")),
    "prefill latent attention": Kernel("mla+nope", "training", ("Z", "A", "O"), "expanded"),
    "prefill absorbed latent attention": Kernel(
        "mla+nope", "training", ("Z", "A", "M"), "absorbed"
    ),
    "decode latent attention": Kernel("mla+nope", "inference", ("Z", "A", "M"), "absorbed"),
    "prefill gated delta rule": Kernel("gated-deltanet+core", "training", RULE, state_dtype="fp32"),
    "decode gated delta rule": Kernel("gated-deltanet+core", "inference", RULE, state_dtype="fp32"),
    "prefill Kimi delta rule": Kernel("kda+core", "training", RULE, state_dtype="fp32"),
    "decode Kimi delta rule": Kernel("kda+core", "inference", RULE, state_dtype="fp32"),
    "prefill gated delta convolution": Kernel("gated-deltanet", "training", TAPS),
    "decode gated delta convolution": Kernel("gated-deltanet", "inference", TAPS),
    "prefill Kimi convolution": Kernel("kda", "training", TAPS),
    "decode Kimi convolution": Kernel("kda", "inference", TAPS),
    "prefill Mamba-2 convolution": Kernel("mamba-2", "training", MAMBA_TAPS),
    "decode Mamba-2 convolution": Kernel("mamba-2", "inference", MAMBA_TAPS),
    "prefill Mamba-2 scan": Kernel("mamba-2", "training", CHUNKED_SCAN, "chunked"),
    "decode Mamba-2 scan": Kernel("mamba-2", "inference", SCAN),
}
"""Name -> kernel; the sizes are those of the mixer."""
