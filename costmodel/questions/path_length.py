"""How far apart are two positions at most, in hops of what a row reads of other rows?

The "maximum path length" of Table 1 of Vaswani et al. 2017, a property of the dependency graph; the
span counts operations, this counts positions. The nodes are the positions 1..l. One hop goes from
position p to q when an instance that belongs to row q of some array reads an entry that belongs to
row p. A row is what lies at one place of an array's token axis; what has none (a sum over all
tokens, a Fourier transform) belongs to every row that reads it, and so joins each to all rows that
it was made of. An entry for a whole chunk of tokens, such as the sums up to the end of a chunk that
later chunks read, is made of many rows, and belongs to the one that is nearest to its readers: the
last of them where later rows read it, the first where earlier ones do. What depends on no token
belongs to no row. What data or a table choose is a row, but no certain one, and reading it is no
hop; the choice reads all that it chooses among. So the answer holds whatever is chosen: a sort of
all rows joins them in one hop, and rows that a table draws shorten no path. Layers of the same kind
may be stacked, so that a path goes on from any array of a row to any other of the same row.

The distance of two positions is the least number of hops from the one to the other, in one layer or
in as many as it takes; the answer is the largest distance of all ordered pairs that are joined: 1
for self-attention, l-1 for a recurrence, which reads the row before; where a row reads the r rows
on either side, ceil((l-1)/r); ceil(l/C) where a row reads the rows of its chunk so far and the sums
of the chunk before, which are made of the sums before them; 0 where no two positions are joined, as
at l = 1.

Table 1 has O(log_k n) for a convolution of width k. That is a stack of layers whose dilation grows
from layer to layer, as section 4 says; one layer, stacked as it is, has contiguous kernels and
needs O(n/k) hops, by the same section. This is what follows here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

from costmodel.errors import Unsupported
from costmodel.language.equations import Mixer, System
from costmodel.questions.question import Answers, Case, Figure, Question
from costmodel.questions.subject import about_mixer, system_of
from costmodel.symbolic.at_sizes import Amount
from costmodel.symbolic.constraints import implied, infeasible
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import call


@dataclass(frozen=True)
class PathLength(Amount):
    """Hops between the two positions that are furthest apart; exact."""

    hops: Exact

    @property
    def alone(self) -> Exact:
        """The hops."""
        return self.hops


def _longer(one: Exact, two: Exact) -> Exact:
    """The larger of two numbers of hops."""
    result = Exact()
    for (here, hops), (there, others) in product(one.chambers(), two.chambers()):
        guards = here | there
        if implied(guards, others - hops):
            hops = others
        elif not implied(guards, hops - others):
            hops = call("Max", hops, others)
        if not infeasible(guards):
            result = result + Exact(((guards, hops),))
    return result


@cache
def _answer(system: System) -> PathLength:
    # loaded where it is asked for: most tables do not show it
    from costmodel.paths.hops import NOWHERE, Reach, by_chunks, by_hub, chunks_of, evenly, furthest
    from costmodel.paths.reachability import at_once, length, rows_of, rows_on_axes

    ends = length(system)
    if at_once(rows_on_axes(system)):
        return PathLength(evenly(None, None, ends))
    known = rows_of(system)
    chunks = chunks_of(known)
    reaches: dict[int, Reach] = {}
    for sign in (1, -1):
        try:
            reaches[sign] = furthest(known, sign)
        except Unsupported as reason:
            if chunks is None:
                try:
                    return PathLength(by_hub(known))
                except Unsupported:
                    raise reason from None
    if len(reaches) == 2 or chunks is None:
        return PathLength(evenly(reaches[1], reaches[-1], ends))
    back, ahead = (
        evenly(reaches[sign], NOWHERE, ends) if sign in reaches else by_chunks(known, chunks, sign)
        for sign in (1, -1)
    )
    return PathLength(_longer(back, ahead))


@about_mixer
def path_length(mixer: Mixer, form: str | None = None) -> PathLength:
    """The largest distance of two positions in hops, for layers of one kind, whatever data and
    tables choose.

    Where tokens lie in chunks, the hops from row to row are followed until they recur from chunk to
    chunk. Exact, for chunks of any length, the last one incomplete or not.

    Errors: Unsupported where the rows that a row reads depend on more than their distance and their
    place in a chunk, or where it reads a row and none of those between, unless it reads all, or all
    rows read row 1 and are read by it. At given sizes tables and explanations then have what is
    found by following every read.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 4 and Table 1.

    >>> import costmodel as cm
    >>> cm.path_length(cm.mixer("self-attention")).at(l=9)
    1
    >>> cm.path_length(cm.mixer("convolution")).at(l=9, k=3)
    4
    >>> cm.path_length(cm.mixer("linear-attention"), "chunked").at(l=9, C=4)
    3
    """
    return _answer(system_of(mixer, form, (), "training"))


def _hops(about: Answers) -> PathLength:
    return path_length(about.mixer, about.form)


def _searched(case: Case) -> int:
    # loaded where no formula is derived
    from costmodel.paths.followed import furthest_apart

    system = system_of(case.mixer, case.form, (), "training")
    return furthest_apart(system, {name: size for name, size in case.sizes.items() if name != "b"})


PATH_LENGTH = Question(
    "path_length",
    "Maximum path length",
    (
        Figure(
            "path_length",
            "hops between the two positions furthest apart that are joined",
            lambda case: case.about.of(_hops).exact,
            header="maximum\npath length",
            phases=("training",),
            varies=frozenset({"form"}),
            claim="path_length",
            search=_searched,
        ),
    ),
    path_length,
    untallied="execution has entries, and no rows that entries belong to",
)
