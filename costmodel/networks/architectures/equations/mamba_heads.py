"""What are the equations of Mamba whose step, input and output each head makes of its own channels,
as in Zamba?"""

from __future__ import annotations

from collections.abc import Collection

from costmodel.language.equations import Mixer
from costmodel.language.indices import Index
from costmodel.language.nodes import Array
from costmodel.language.writing import exp, function, sum_
from costmodel.mixers.selective import (
    biased,
    declare_map,
    declare_out,
    declare_rows,
    gated,
    rows,
)
from costmodel.networks.parts import noting


@noting
def mamba(chosen: Collection[str]) -> Mixer:
    """Make Mamba of n heads, as a mixer of rows x (l, d) to y (l, d): N states for each of E inner
    channels; a head has maps of its own from its E/n channels to B and C (the paper's), and to the
    R numbers that give the step. `chosen`: Mamba's options about biases, such as "in-bias".

    Gu and Dao 2023, arXiv 2312.00752; heads: Glorioso et al. 2024, arXiv 2405.16712, ZambaModel.
    """
    source = "Glorioso et al. 2024, arXiv 2405.16712; transformers, ZambaMambaMixer"
    m = Mixer("mamba-of-heads", title="Mamba of heads", source=source, group="state-space")
    l, d, n, N = m.sizes("l d n N")
    E, R = m.size("E", "inner channels", 256), m.size("R", "rank of the step size", 8)
    m.input("x", l, d)
    y, each = m.output("y", l, d), E / n
    declare_rows(m, "X", E, chosen)
    declare_map(m, "Z", E, chosen)
    declare_out(m, E, chosen)
    shapes = {
        "W_R": (n, each, R), "W_dt": (n, R, each), "b_dt": (n, each), "W_B": (n, each, N),
        "W_C": (n, each, N), "log_A": (n, each, N), "D": (n, each),
    }  # fmt: skip
    W = {name: m.parameter(name, *shape) for name, shape in shapes.items()}
    W_out = m.arrays["W_out"]
    with m.form("recurrent") as f:
        X = rows(f, "X", "u", n)  # makes the indices g, a head, and u, a channel of a head
        i, later, b = f.index("i", 1, l), f.index("i2", 2, l), f.index("b", 1, d)
        g, u, o = f.indices["g"], f.indices["u"], f.index("o", 1, each)
        s, r = f.index("s", 1, N), f.index("r", 1, R)

        def mapped(name: str, map_: str, at: Index) -> Array:
            """Define and return `name` (l, n, width of `at`): channels of a head times its map."""
            found = f.array(name, l, n, at.upper[0])
            found[i, g, at] = sum_(X[i, g, o] * W[map_][g, o, at], over=o)
            return found

        T, B, C = mapped("T", "W_R", r), mapped("B", "W_B", s), mapped("C", "W_C", s)
        step, U, O = (f.array(name, l, n, each) for name in ("step", "U", "O"))
        # S: the states; `kept`: the share of a state that the next row keeps; U: what a row adds
        A, kept, S = f.array("A", n, each, N), *(f.array(x, l, n, each, N) for x in ("kept", "S"))
        given = sum_(T[i, g, r] * W["W_dt"][g, r, u], over=r) + W["b_dt"][g, u]
        step[i, g, u] = function("softplus", given)
        U[i, g, u] = step[i, g, u] * X[i, g, u]
        A[g, u, s] = -exp(W["log_A"][g, u, s])
        kept[later, g, u, s] = exp(step[later, g, u] * A[g, u, s])
        S[1, g, u, s] = U[1, g, u] * B[1, g, s]
        S[later, g, u, s] = (
            kept[later, g, u, s] * S[later - 1, g, u, s] + U[later, g, u] * B[later, g, s]
        )
        O[i, g, u] = sum_(S[i, g, u, s] * C[i, g, s], over=s) + W["D"][g, u] * X[i, g, u]
        H = gated(f, O, "u")
        y[i, b] = biased(m, "out", sum_(H[i, g, u] * W_out[(g - 1) * each + u, b], over=(g, u)), b)
    return m
