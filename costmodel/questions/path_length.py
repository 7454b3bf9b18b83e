"""The "maximum path length" of Table 1 of Vaswani et al. 2017: hops between any two positions.

The graph: its nodes are the positions 1..l; an edge (hop) leads from p to q if an instance of row q
reads an entry of row p. The rows of entries:

- with a token axis: the position on that axis;
- for a chunk of tokens, such as sums up to the end of a chunk: of the rows that the entry is
  computed from, the row nearest to its readers: the last if later rows read it, else the first;
- from all tokens without a token axis (a total sum, a Fourier transform): every row that reads the
  entry; each reader is joined to all rows that the entry is computed from;
- independent of tokens: no row.

Reading an entry that data or a table choose is no hop, since its row is not certain; the choice
itself reads all entries among which it chooses. So the answer holds for any data: a sort of all
rows joins them in one hop. Equal layers may be stacked: a path continues from any array of a row.

The distance from p to q is the least number of hops, over any number of layers. The answer is the
largest distance of all connected pairs: 1 for self-attention; l-1 for a recurrence; ceil((l-1)/r)
if a row reads r rows on either side; ceil(l/C) if a row reads its own chunk so far and the running
sums of the previous chunk; 0 if no positions are connected, as for l = 1.

Table 1 states O(log_k n) for a convolution of width k, which is a stack of layers with growing
dilation (section 4). Here all layers are equal: by the same section, O(n/k) hops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from costmodel.errors import Unsupported
from costmodel.language.equations import Mixer, System
from costmodel.questions.question import Answers, Case, Figure, Question, Share, Tally, over_parts
from costmodel.questions.subject import about_mixer, system_of
from costmodel.symbolic.at_sizes import Amount
from costmodel.symbolic.constraints import implied, infeasible
from costmodel.symbolic.piecewise import Exact
from costmodel.symbolic.polynomial import Poly, call

ONE = Poly.of(1)


@dataclass(frozen=True)
class PathLength(Amount):
    """The largest distance of two positions, in hops; exact."""

    hops: Exact

    @property
    def alone(self) -> Exact:
        """The hops."""
        return self.hops


def _longer(one: Exact, two: Exact) -> Exact:
    """The larger of two numbers of hops, for each pair of their cases that can hold together; the
    function `Max` of both where neither is proven larger."""
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
    """The path length (the most hops between two positions, layer by layer) by the first method
    that applies: every row of some array reads all rows (1 hop); each row reads rows at the same
    distances; the hops are followed from chunk to chunk; or every pair of rows is joined through
    row 1.

    Raises:
        Unsupported: no method applies; the reason is why the rows have no common distances.
    """
    # imported here because most tables do not show this figure
    from costmodel.paths.hops import NOWHERE, Reach, by_chunks, by_hub, chunks_of, evenly, furthest
    from costmodel.paths.reachability import each_row_reads_all, length, rows_of, rows_on_axes

    last = length(system)
    if each_row_reads_all(rows_on_axes(system)):
        return PathLength(evenly(None, None, last))  # without limit, back and ahead
    rows = rows_of(system)
    chunks = chunks_of(rows)
    reaches: dict[int, Reach] = {}
    for sign in (1, -1):
        try:
            reaches[sign] = furthest(rows, sign)
        except Unsupported as reason:
            if chunks is None:
                try:
                    return PathLength(by_hub(rows))
                except Unsupported:
                    raise reason from None
    if len(reaches) == 2 or chunks is None:
        return PathLength(evenly(reaches[1], reaches[-1], last))
    back, ahead = (
        evenly(reaches[sign], NOWHERE, last) if sign in reaches else by_chunks(rows, chunks, sign)
        for sign in (1, -1)
    )
    return PathLength(_longer(back, ahead))


@about_mixer
def path_length(mixer: Mixer, form: str | None = None) -> PathLength:
    """The maximum over all pairs of positions of the least number of hops (layers) between them,
    for equal layers, whatever data and tables of positions contain.

    Exact. For tokens in chunks of any length, the last possibly incomplete, the hops from row to
    row are followed until they repeat from chunk to chunk.

    Raises:
        Unsupported: the rows that a row reads depend on more than their distance and place in a
            chunk, have gaps, or reach a distance that is not derived, unless every row reads all
            rows, or all rows are joined through row 1. Tables and explanations at given sizes then
            follow every read instead.

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


def _of_parts(shares: Sequence[Share[PathLength]]) -> PathLength:
    """The number of hops in a network, from the answers of its parts (`shares`): the largest of its
    stacks (parts with the same tokens: an encoder is one, a decoder another). A stack has the hops
    of its mixers if all have equally many, and 1 if one of them has 1; mixers without hops do not
    count. Unsupported for other stacks: a path through layers of several kinds may have fewer."""
    stacks: dict[Poly, dict[Exact, str]] = {}
    for share in shares:
        hops = share.answer.hops.substitute(share.sizes)
        if hops.pieces:
            tokens = share.sizes.get("l", Poly.atom("l"))
            stacks.setdefault(tokens, {}).setdefault(hops, share.name)
    most = Exact()
    for found in stacks.values():
        single = [hops for hops in found if all(value == ONE for _, value in hops.pieces)]
        if len(found) > 1 and not single:
            named = ", ".join(found.values())
            raise Unsupported(
                f"the layers {named} need different numbers of hops, and a path may go through any "
                "layer: ask for each mixer by itself"
            )
        most = _longer(most, (single or [*found])[0])
    return PathLength(most)


@over_parts(_of_parts)
def _hops(about: Answers) -> PathLength:
    if about.mixer.group == "part of a network":
        return PathLength(Exact())  # rows pass alone, or are joined by a loss behind them
    return path_length(about.mixer, about.form)


def _searched(case: Case) -> int:
    """The hops at the case's sizes, found by visiting all entries, for mixers without a formula.
    Raises Unsupported if there are too many entries."""
    # imported here because it is only needed where no formula is derived
    from costmodel.paths.followed import furthest_apart

    system = system_of(case.mixer, case.form, (), "training")
    return furthest_apart(system, {name: size for name, size in case.sizes.items() if name != "b"})


def _notes(cases: Sequence[Case], shown: Sequence[str]) -> Iterator[str]:
    """Yield the notes below a table: one if some case reads entries that data or a table choose.
    `shown` (the columns) is not used: all notes take it."""
    if any(case.gathers for case in cases):
        yield (
            "maximum path length counts certain hops only: a row that data or a table selects "
            "is no hop, and a selection counts as a read of all its candidates"
        )


def _tallied(about: Answers, sizes: Mapping[str, int]) -> int:
    """The hops at some sizes, for comparison with an execution; by search without a formula."""
    try:
        return about.of(_hops).at(**sizes)
    except Unsupported:
        return _searched(Case(about, sizes, symbolic=False))


PATH_LENGTH = Question(
    "path_length",
    "Maximum path length",
    (
        Figure(
            "path_length",
            "hops between the two connected positions furthest apart",
            lambda case: case.about.of(_hops).exact,
            header="maximum\npath length",
            phases=("training",),
            varies=frozenset({"form"}),
            claimed=True,
            search=_searched,
            notes=(_notes,),
        ),
    ),
    path_length,
    (Tally("path length", _tallied),),
)
