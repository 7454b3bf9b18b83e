"""The named scalar functions, and the operations that each is counted as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CLASSES = ("mul", "add", "div", "exp")
"""Operation classes with a column of their own; every other operation is counted under its name."""


@dataclass(frozen=True)
class Function:
    """A scalar function: its chain of operations in order of execution, and its LaTeX template."""

    name: str
    steps: tuple[str, ...]
    latex: str


TABLE: Mapping[str, Function] = {
    f.name: f
    for f in (
        Function("exp", ("exp",), r"e^{{{}}}"),
        Function("sqrt", ("sqrt",), r"\sqrt{{{}}}"),
        Function("rsqrt", ("sqrt", "div"), r"\frac{{1}}{{\sqrt{{{}}}}}"),
        Function("log", ("log",), r"\log\left({}\right)"),
        Function("sin", ("sin",), r"\sin\left({}\right)"),
        Function("cos", ("cos",), r"\cos\left({}\right)"),
        Function("tanh", ("tanh",), r"\tanh\left({}\right)"),
        Function("erf", ("erf",), r"\mathrm{{erf}}\left({}\right)"),
        Function("relu", ("compare",), r"\mathrm{{relu}}\left({}\right)"),
        Function("sigmoid", ("exp", "add", "div"), r"\sigma\left({}\right)"),
        Function("silu", ("exp", "add", "div", "mul"), r"\mathrm{{silu}}\left({}\right)"),
        Function("softplus", ("exp", "add", "log"), r"\mathrm{{softplus}}\left({}\right)"),
        Function(
            "elu_plus_1",
            ("exp", "add", "compare"),
            r"\left(\mathrm{{elu}}\left({}\right) + 1\right)",
        ),
        Function("gelu", ("mul", "erf", "add", "mul", "mul"), r"\mathrm{{gelu}}\left({}\right)"),
        Function(
            "silu_slope",
            ("exp", "add", "div", "add", "mul", "add", "mul"),
            r"\mathrm{{silu}}'\left({}\right)",
        ),
        Function("erf_slope", ("mul", "exp", "mul"), r"\mathrm{{erf}}'\left({}\right)"),
        Function(
            "gelu_slope",
            ("mul", "erf", "add", "mul", "mul", "mul", "exp", "mul", "mul", "add"),
            r"\mathrm{{gelu}}'\left({}\right)",
        ),
    )
}
"""gelu is x * 0.5 * (1 + erf(x * 2**-0.5)); silu is x * sigmoid(x); elu_plus_1 is x + 1 above 0 and
exp(x) elsewhere, both computed everywhere. silu_slope is s * (1 + x * (1 - s)) with s = sigmoid(x);
erf_slope is exp(-(x * x)) * 2 / sqrt(pi); gelu_slope is 0.5 * (1 + erf(x * 2**-0.5)) + x * p with
the normal density p = exp(-0.5 * (x * x)) * (2 pi)**-0.5. Constants are precomputed."""
