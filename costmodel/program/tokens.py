"""Tokens: the latest input row tau that each array entry depends on.

Entries that depend on parameters and buffers alone have tau = 0. (Which token triggers the
computation of an entry is another question: see `owners`.) tau is derived from bounds and indices,
as the maximum of affine terms, each under conditions (i - 1 where i >= 2): of an array's entry in
its position (`#0`, `#1` along the axes), of an equation in the free indices.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property

from costmodel.errors import Unsupported
from costmodel.language.equations import Equation, System
from costmodel.language.nodes import Array, Gather, Node, Ref, position_value, refs
from costmodel.program.chunks import row_number
from costmodel.program.dependence import (
    SOMETHING,
    Term,
    Terms,
    in_parts,
    joined_terms,
    latest,
    read_term,
    reads,
)
from costmodel.program.nonempty import never_empty
from costmodel.program.recurrences import Block, blocks
from costmodel.symbolic.constraints import Constraints, implied, variables_of
from costmodel.symbolic.polynomial import axis_atom


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of a system's arrays and equations."""

    system: System

    @cached_property
    def from_inputs(self) -> frozenset[Array]:
        """The inputs and the arrays that depend on one: the work of tokens."""
        return self._depending({*self.system.inputs})

    @cached_property
    def from_inputs_or_contexts(self) -> frozenset[Array]:
        """The inputs, the contexts, and the arrays that depend on one and are computed for each
        sequence; others, such as a product of weights, are computed once a pass."""
        return self._depending({*self.system.inputs, *self.system.mixer.contexts})

    def _depending(self, found: set[Array]) -> frozenset[Array]:
        """The arrays of `found`, such as the inputs, and all that depend on one of them."""
        while True:
            more = {
                equation.array
                for equation in self.system.equations
                if any(read.ref.array in found for read in reads(equation))
            }
            if more <= found:
                return frozenset(found)
            found = found | more

    @cached_property
    def _terms(self) -> tuple[Mapping[Array, Terms], Mapping[Equation, Terms]]:
        """tau of arrays (in their axes) and of equations (in their free indices)."""
        return self._derived(
            {array: (Term(row_number(self.system, array)),) for array in self.system.inputs}
        )

    @cached_property
    def _from_context(self) -> tuple[Mapping[Array, Terms], Mapping[Equation, Terms]]:
        """(of arrays, of equations): token 1 (`SOMETHING`) where they depend on a context, 0
        elsewhere."""
        given = dict.fromkeys(self.system.mixer.contexts, (Term(SOMETHING),))
        return self._derived({**given})

    @cached_property
    def _dependence(self) -> tuple[Mapping[Array, Terms], Mapping[Equation, Terms]]:
        """(array -> terms, equation -> terms), each term (token, conditions): token 1 (`SOMETHING`)
        where they depend on an input or a context, 0 elsewhere. tau, the latest input row that an
        entry depends on, cannot tell, as it assumes an endless sequence: a sum over later rows has
        no term at row l. Zeros read outside of an array count as inputs where the array depends on
        one: such zeros surround the rows of each sequence."""
        given = (*self.system.inputs, *self.system.mixer.contexts)
        return self._derived(dict.fromkeys(given, (Term(SOMETHING),)), zeros=self.system.beyond)

    def _derived(
        self, arrays: dict[Array, Terms], *, zeros: bool = False
    ) -> tuple[Mapping[Array, Terms], Mapping[Equation, Terms]]:
        """(array -> terms, equation -> terms), each term (token, conditions): the tokens of all
        arrays and all equations, derived from `arrays`, those of the given arrays (extended in
        place; none without any); `zeros`: reads outside of an array count as token 1."""
        equations: dict[Equation, Terms] = {}
        for block in blocks(self.system) if arrays else ():
            self._settle(block, arrays, equations, zeros)
        return arrays, equations

    @cached_property
    def _read(self) -> frozenset[Array]:
        """The arrays that some equation reads."""
        return frozenset().union(*(equation.value.arrays for equation in self.system.equations))

    def _settle(
        self,
        block: Block,
        arrays: dict[Array, Terms],
        equations: dict[Equation, Terms],
        zeros: bool,
    ) -> None:
        """Derive the tokens of a block (the equations of one array, or of one loop) into `arrays`
        and `equations`, for a loop by iteration to a fixed point. In the first rounds (`alike`) the
        equations with known tokens give the tokens of all rows; once settled, each equation gives
        those of its own rows. Any fixed point is correct, as every row follows from the row before.
        `zeros`: reads outside of an array count as token 1. Raises Unsupported: the iteration does
        not converge, or tokens of an array that is read are not terms in its axes."""
        alike = block.is_loop
        # a round passes tokens on by one equation or more; more rounds than these do not end
        for _ in range(len(block.equations) + 4):
            before = [equations.get(equation) for equation in block.equations]
            for equation in block.equations:
                equations[equation] = latest(equation, arrays, self.length, self.system, zeros)
                known = {e: equations[e] for e in block.equations if equations.get(e)}
                if alike and known:
                    arrays[equation.array] = joined_terms(self.system, equation.array, known)
            settled = before == [equations[equation] for equation in block.equations]
            if settled or not alike:
                for array in dict.fromkeys(equation.array for equation in block.equations):
                    complete = {e: equations[e] for e in block.equations if e.array is array}
                    # an array without readers may do without tokens in its axes
                    with suppress(*(() if array in self._read else (Unsupported,))):
                        arrays[array] = joined_terms(self.system, array, complete)
            if not block.is_loop or (settled and not alike):
                return
            alike = alike and not settled
        raise Unsupported(
            f"the last token that {block.equations[0].name} depends on was not found in "
            f"{len(block.equations) + 4} rounds of a search"
        )

    def of(self, array: Array) -> Terms:
        """tau of an array's entry, as a maximum of terms in its axes; () is token 0."""
        return self._found(array, self._terms[0])

    def _found(self, array: Array, table: Mapping[Array, Terms]) -> Terms:
        """The terms (token, conditions) of an array in a table of tokens; () for token 0. Raises
        Unsupported: the array's token has no terms in its axes (possible for arrays without
        readers)."""
        # an empty table: nothing is given on which an array could depend
        if table and array not in table and array in self.system.defining:
            raise Unsupported(
                f"the last token that an entry of {array.name} depends on is no formula in the "
                "position of the entry"
            )
        return table.get(array, ())

    def at(self, ref: Ref) -> Terms:
        """tau of a referenced entry, in the indices of the reference."""
        return tuple(read_term(ref, term) for term in self.of(ref.array))

    def spanned(self, node: Node, equation: Equation) -> bool:
        """Whether a node of an equation binds an index over the token axis, while the latest input
        row (tau) that an instance depends on is the same for all instances, as of a Fourier
        transform over all rows: the reason to give why there is no one-token inference."""
        by_row = variables_of(term.token for term in self.instance(equation))
        rows = frozenset().union(*(self.indices_of(ref) for ref, _ in refs(node)))
        over = any(index.atom in rows for index in node.binders)
        return over and not by_row

    def indices_of(self, ref: Ref) -> frozenset[str]:
        """The indices in those positions of a reference on which the entry's tau (the latest input
        row that it depends on) depends, {i} for x[i, k]. Gathered positions, as in x[p[i]], are
        left out, and so are positions that only the conditions of tau's terms name."""
        axes = frozenset().union(*(term.token.letters for term in self.of(ref.array)))
        return frozenset().union(
            *(
                position_value(position).letters
                for axis, position in enumerate(ref.positions)
                if axis_atom(axis) in axes and not isinstance(position, Gather)
            )
        )

    def instance(self, equation: Equation) -> Terms:
        """tau of an equation's instance, in its free indices."""
        return self._terms[1][equation]

    def dependent(self, equation: Equation) -> list[tuple[Constraints, bool]]:
        """The disjoint parts of an equation's points, as (constraints, whether they depend on an
        input or a context).

        Raises:
            Unsupported: tokens are not derived, nor are all points proven to depend on an input.
        """
        if equation.array not in self.from_inputs_or_contexts:
            return [(equation.domain, False)]
        if equation.array in self._wholly_dependent:
            return [(equation.domain, True)]
        if why := self._undecided:
            return [(equation.domain, self._proven_dependent(equation, why))]
        return in_parts(equation.domain, self._dependence[1].get(equation, ()), ())

    def dependent_entries(
        self, ref: Ref, around: Constraints, *, ends: bool = True
    ) -> list[tuple[Constraints, bool]]:
        """The points around a reference in disjoint parts, as (constraints, whether the entry that
        is read depends on an input or a context); one part, if tokens are not derived and each
        entry is proven to depend. `ends`: the sequence is finite; False: it is endless.

        Raises:
            Unsupported: which entries depend on an input is not derived.
        """
        if ref.array not in self.from_inputs_or_contexts:
            return [(around, False)]
        if why := self._undecided if ends else self.underivable:
            defining = self.system.defining.get(ref.array, ())
            return [(around, all(self._proven_dependent(equation, why) for equation in defining))]
        if ends:
            here = self._found(ref.array, self._dependence[0])
            return in_parts(around, tuple(read_term(ref, term) for term in here), ())
        context = self._found(ref.array, self._from_context[0])
        if self.system.beyond:  # zeros that surround the rows of each sequence
            context += self._found(ref.array, self._dependence[0])
        return in_parts(around, self.at(ref), tuple(read_term(ref, term) for term in context))

    @cached_property
    def underivable(self) -> Unsupported | None:
        """The reason why tokens cannot be derived; None if they can."""
        try:
            _ = self.causal, self._from_context, self._dependence
        except Unsupported as error:
            return error.with_traceback(None)
        return None

    @cached_property
    def _undecided(self) -> Unsupported | None:
        """The reason why it is not derived which entries depend on some row of an input or a
        context; None if they are derived."""
        try:
            _ = self._dependence
        except Unsupported as error:
            return error.with_traceback(None)
        return None

    def _proven_dependent(self, equation: Equation, why: Unsupported) -> bool:
        """True: every point of an equation is proven to depend on an input or a context, which
        suffices where tokens cannot be derived, for the reason `why`.

        Raises:
            Unsupported: it is not proven; the reason is why tokens cannot be derived.
        """
        if equation.array not in self._wholly_dependent:
            raise Unsupported(
                f"which entries depend on the input is not derived: {why}", why.advice
            )
        return True

    @cached_property
    def _wholly_dependent(self) -> frozenset[Array]:
        """The arrays each entry of which is proven to depend on an input or a context: every
        equation of the array reads such an array, in a sum that is never empty or in none."""
        found = set(self.from_inputs_or_contexts)
        while True:
            partly = {
                equation.array
                for equation in self.system.equations
                if not any(
                    read.ref.array in found and never_empty(read.over, equation)
                    for read in reads(equation)
                )
            }
            if not partly & found:
                return frozenset(found)
            found -= partly

    @cached_property
    def causal(self) -> bool:
        """Whether it is proven that every output row i depends on input rows up to i alone."""
        output = self.system.mixer.role("output")
        return all(
            implied(
                equation.domain | term.where, position_value(equation.positions[0]) - term.token
            )
            for equation in self.system.defining[output]
            for term in self.instance(equation)
        )

    @cached_property
    def length(self) -> frozenset[str]:
        """The sizes in the length of the sequence."""
        return self.system.mixer.role("input").shape[0].letters


@cache
def tokens(system: System) -> Tokens:
    """The tokens of a system: which input row, at the latest, each entry and each instance (of an
    equation, at one value of its indices) depends on; i for y[i] = sum over j <= i of x[j].

    Raises:
        EquationError: an array is read before it is complete, or defined at gathered positions.
        Unsupported: circular equations that no order of rows can satisfy.
    """
    blocks(system)
    return Tokens(system)
