"""The order of a grid's measurements: drift cancels in ratios, and shards are of similar size.

Candidates at equal sizes form a block. A block is measured in rounds, each of which has every
candidate once. Rounds come in pairs: the second is the reverse of the first, so that over a pair a
drift linear in time affects all candidates equally. The order of each pair, and the order of the
blocks, are drawn from the seed and the process.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from costmodel.language.equations import Mixer
from costmodel.language.options import braces
from costmodel.program.phases import phase_name
from profiler.records.reading import MeasureError
from profiler.records.words import PHASES, sizes_words
from profiler.run.plan import refuse_too_many
from profiler.run.request import Request
from profiler.sweep.points import Block, Point


def blocks(
    requests: Sequence[Request], rounds: int = 2, seed: int = 0, process: int = 0
) -> list[Block]:
    """Make the blocks of a grid's points, each request once per round, in the order in which a
    process measures them; each process has its own order. A block has the candidates at equal
    sizes.

    The order depends on the set of requests, the seed and the process, and not on the order of the
    requests; duplicate requests count once.
    """
    groups: dict[str, dict[str, Request]] = {}
    shared = shared_letters(requests)
    for request in requests:
        group = groups.setdefault(_name(request, shared), {})
        group.setdefault(Point(request).key, request)
    ordered = sorted(groups.items(), key=lambda item: drawn(seed, process, item[0]))
    return [_block(name, group, rounds, seed, process) for name, group in ordered]


def shared_letters(requests: Iterable[Request]) -> dict[str, frozenset[str]]:
    """A dict: phase -> the letters of the sizes that all requests of the phase have and that no
    mixer has in braces, such as l and d of `gqa{g=2}` and `gqa{g=4}`. Requests of one dtype with
    equal values of these sizes form a block."""
    found: dict[str, frozenset[str]] = {}
    for request in requests:
        phase, letters = phase_name(request.phase), frozenset(request.sizes)
        own = braces(request.mixer.name) if isinstance(request.mixer, Mixer) else {}
        found[phase] = found.get(phase, letters) & letters - own.keys()
    return found


def _name(request: Request, shared: Mapping[str, frozenset[str]]) -> str:
    """The name of a request's block: phase, sizes of the `shared` letters, and dtype, in words."""
    phase = phase_name(request.phase)
    common = {x: value for x, value in request.sizes.items() if x in shared[phase]}
    return f"{PHASES[phase]}, {sizes_words(common)}, {request.dtype}"


def _block(name: str, group: Mapping[str, Request], rounds: int, seed: int, process: int) -> Block:
    """Make a block with its rounds in a process: each pair of rounds in an order drawn by `seed`,
    the second round reversed (B A C, C A B; A C B, B C A). `group`: key of a point -> request."""
    points = []
    for number in range(rounds):
        pair = number // 2
        turns = sorted(group, key=partial(drawn, seed, process, name, pair))
        for turn, key in enumerate(reversed(turns) if number % 2 else turns):
            points.append(Point(group[key], number, turn, seed, process))
    return Block(name, tuple(points))


def grid(
    requests: Sequence[Request],
    rounds: int,
    seed: int,
    processes: int,
    shard: tuple[int, int] | None,
) -> list[Block]:
    """Make the blocks of a grid (candidates at equal sizes, measured in turns): those of process 0,
    then, in another order, of process 1, and so on; with `shard` (i, n) the i-th, from 1, of n
    parts of each. MeasureError: in all, requests x rounds x processes exceed `MOST_POINTS`."""
    refuse_too_many(len(requests), rounds, processes)
    each = [blocks(requests, rounds, seed, process) for process in range(processes)]
    return [block for found in each for block in (part(found, *shard) if shard else found)]


def shuffled(requests: Sequence[Request], process: int) -> list[Request]:
    """The requests in the order of a process: unchanged in process 0, shuffled in later ones."""
    if not process:
        return list(requests)
    return sorted(requests, key=lambda request: drawn(process, Point(request).key))


def drawn(*of: object) -> bytes:
    """A sort key by hashing the arguments: sorting by it shuffles, equally on every machine."""
    return hashlib.sha256(repr(of).encode()).digest()


_SHARD = re.compile(r"([0-9]{1,18})/([0-9]{1,18})")


def shard(text: str) -> tuple[int, int]:
    """The two numbers in a text `i/n`, the i-th of n parts.

    >>> shard("2/8")
    (2, 8)

    Raises:
        MeasureError: anything else, or i outside 1..n.
    """
    found = _SHARD.fullmatch(text.strip())
    number, of = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= of:
        raise MeasureError(
            f"--shard '{text}': expected i/n, the i-th of n parts counted from 1, such as 1/4"
        )
    return number, of


def part(found: Sequence[Block], number: int, of: int) -> list[Block]:
    """The blocks of the `number`-th (from 1) of `of` shards of a grid, in the grid's order.

    Blocks stay whole. They are dealt in turns, from the largest volume down: shards differ by at
    most one block in number, and by at most the largest block in volume.
    """
    sorted_ = sorted(found, key=lambda block: (-volume(block), block.name))
    mine = {block.name for block in sorted_[number - 1 :: of]}
    return [block for block in found if block.name in mine]


def volume(block: Block) -> int:
    """The work of a block: the products of its points' sizes, summed."""
    return sum(math.prod(point.request.sizes.values()) for point in block.points)
