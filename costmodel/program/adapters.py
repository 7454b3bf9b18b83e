"""Which equations does a mixer have with a low-rank adapter beside each of its linear maps?

A linear map x W becomes x W + (x A) B, with A (in, r) and B (r, out): LoRA, Hu et al. 2021, arXiv
2106.09685, section 4.1, without the constant factor of B, which may be multiplied into B.
`--adapter layers.*.attn=16` asks for rank 16 in parts of a network, whose weights are then frozen.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import cache, partial

from costmodel.language.equations import Equation, Form, Mixer
from costmodel.language.indices import Index
from costmodel.language.nodes import (
    Add,
    Array,
    Gather,
    Mul,
    Node,
    Position,
    Reduce,
    Ref,
    names_in,
    rewrite,
)
from costmodel.symbolic.polynomial import Poly


@cache
def adapted(mixer: Mixer, rank: int) -> tuple[Mixer, frozenset[str]]:
    """(the mixer with an adapter of this rank beside each linear map by a parameter, the names of
    the parameters of the adapters); the names are empty for a mixer without a linear map."""
    made = copy.copy(mixer)
    made.arrays, made.forms, made.at_any_sizes = dict(mixer.arrays), {}, made
    made.checked = made.builtin = False
    own: dict[tuple[str, tuple[int, ...]], Array] = {}
    for form in mixer.forms.values():
        made.forms[form.name] = _Adapting(made, form, rank, own).form()
    return made, frozenset(made.arrays.keys() - mixer.arrays.keys())


class _Adapting:
    """Writes one form anew, with adapters."""

    def __init__(
        self, made: Mixer, form: Form, rank: int, own: dict[tuple[str, tuple[int, ...]], Array]
    ) -> None:
        """The form `form` of a mixer, to be written with adapters of this rank for mixer `made`.
        `own`: ("A_W" or "B_W" for weights W, the axes of W that x W sums over) -> this parameter of
        an adapter. All forms share `own`, which `form` fills."""
        self.made, self.old, self.own = made, form, own
        self.p = Index("rank", (Poly.of(1),), (Poly.of(rank),))
        self.narrow: dict[tuple[Array, Ref, tuple[Index, ...]], Array] = {}
        """(weights W, rows x, free indices of x) -> the array of x A, shared by sums."""
        self.equations: list[Equation] = []  # of the new form, so far
        self.arrays = dict(form.arrays)  # of the new form: name -> array

    def form(self) -> Form:
        """The form with adapters: the author's equations, with x A B added to each linear map x W,
        and the equations of the arrays x A."""
        for equation in self.old.equations:
            value = rewrite(equation.value, partial(self._beside, equation))
            self.equations.append(replace(equation, value=value))
        indices = {**self.old.indices, self.p.name: self.p}
        return Form(self.made, self.old.name, indices, self.arrays, self.equations)

    def _beside(self, equation: Equation, node: Node) -> Node:
        """For a sum that is a linear map, sum over k of x[i, k]*W[k, j], this sum plus the sum over
        p of U[i, p]*B[p, j], with A and B declared as parameters and the equation of U = x A added
        to `self.equations` at its first use; any other node as it is."""
        found = _linear_map(node, equation)
        if found is None or not isinstance(node, Reduce):
            return node
        x, W = found
        # axes of W: `inner` are summed over, `outer` are not; U has the positions of x not summed
        summed = {index.atom for index in node.over}
        inner = [k for k, at in enumerate(W.positions) if {*names_in((at,))} <= summed]
        outer = [k for k in range(len(W.positions)) if k not in inner]
        r, p = self.p.upper[0], self.p.as_poly()
        B = self._parameter(f"B_{W.array.name}", inner, (r, *(W.array.shape[k] for k in outer)))
        rows, extents = self._rows(equation, x, summed)
        named = names_in(rows)
        over = tuple(index for index in equation.indices if index.atom in named)
        U = self.narrow.get((W.array, x, over))
        if U is None:
            A = self._parameter(f"A_{W.array.name}", inner, (*(W.array.shape[k] for k in inner), r))
            U = self._array(f"x_{A.name}", (*extents, r))
            body = Mul(x, Ref(A, (*(W.positions[k] for k in inner), p)))
            value = Reduce("sum", body, node.over)
            self.equations.append(Equation(U, (*rows, p), value, (*over, self.p), U))
            self.narrow[W.array, x, over] = U
        added = Mul(Ref(U, (*rows, p)), Ref(B, (p, *(W.positions[k] for k in outer))))
        return Add(node, Reduce("sum", added, (self.p,)))

    def _rows(
        self, equation: Equation, x: Ref, summed: Set[str]
    ) -> tuple[tuple[Position, ...], tuple[Poly, ...]]:
        """The positions and extents of U for rows x: positions of x without an index that is
        summed, and in place of a position with both, the free indices in it: (i,) and (l,) for
        x[i - s + 1, a] with a sum over s and a."""
        found: dict[Position, Poly] = {}
        for at, extent in zip(x.positions, x.array.shape, strict=True):
            if not (named := {*names_in((at,))}) & summed:
                found.setdefault(at, extent)
                continue
            for index in equation.indices:
                if index.atom in named - summed:
                    found.setdefault(index.as_poly(), index.upper[0])
        return (*found,), (*found.values(),)

    def _parameter(self, name: str, inner: Sequence[int], shape: tuple[Poly, ...]) -> Array:
        """The parameter `name` of an adapter, declared at the first call, with primes behind a name
        that an array of the mixer or of one of its forms has. `inner`: the summed axes of the
        weights W, so that x W and y W^T have an adapter each."""
        if (key := (name, tuple(inner))) not in self.own:
            forms = self.old.mixer.forms.values()
            name = _free(name, {*self.made.arrays}.union(*(form.arrays for form in forms)))
            self.own[key] = self.made.arrays[name] = Array(name, "parameter", shape, self.made)
        return self.own[key]

    def _array(self, name: str, shape: tuple[Poly, ...]) -> Array:
        """A new array of the form, with primes behind a `name` that an array of the form or of the
        mixer has."""
        name = _free(name, self.arrays.keys() | self.made.arrays.keys())
        self.arrays[name] = Array(name, "intermediate", shape, self.made)
        return self.arrays[name]


def _linear_map(node: Node, equation: Equation) -> tuple[Ref, Ref] | None:
    """(rows, weights) of a node that sums rows times weights over exactly the indices that both
    have, so that each output reads each input: (x[i, k], W[k, j]) of the sum over k of x[i, k]*W[k,
    j]. None for any other node: a convolution per channel, a sum of x[i, k]*v[k] over k."""
    if not (isinstance(node, Reduce) and node.kind == "sum" and isinstance(node.body, Mul)):
        return None
    pair = (node.body.left, node.body.right)
    for x, W in (pair, pair[::-1]):
        if not isinstance(x, Ref) or not isinstance(W, Ref) or W.array.role != "parameter":
            continue
        if x.array.role == "parameter" or any(map(_gathers, (*x.positions, *W.positions))):
            continue
        summed, free = {index.atom for index in node.over}, {i.atom for i in equation.indices}
        of_x, of_W = {*names_in(x.positions)}, {*names_in(W.positions)}
        if of_x & of_W == summed and of_W - summed and of_x - summed <= free:
            return x, W
    return None


def _free(name: str, taken: Set[str]) -> str:
    """The name, with as many primes as none of the names `taken` has."""
    while name in taken:
        name += "'"
    return name


def _gathers(position: Position) -> bool:
    return isinstance(position, Gather)
