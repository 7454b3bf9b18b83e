"""The rates that a device reaches: matrix products, elementwise work, traffic.

No board reaches the rates of its datasheet. So each ceiling is measured, with the same meter that
times the calls, on torch operations that do one kind of work:

- A product of two random square matrices. The side is doubled while a product stays short and the
  operands fit; the best rate is the ceiling. An operation is a multiplication or an addition, as
  for dispatched operations: n multiplications and n - 1 additions per entry.
- Exponentials and multiply-adds, elementwise over data that the caches hold, eight times as much
  data each time, up to half the last-level cache; on a GPU, where the caches bound such a call,
  also chained in the registers of one kernel. The best rate is the ceiling; the details name the
  variant. A multiply-add is two operations, an exponential one.
- Copying, reading (a sum) and writing (a fill) of a buffer of four times the last-level cache; a
  copy moves each byte twice.

Beside the ceilings stand four rates of ordinary calls, whose result is a new array, as the results
of a mixer's operations are. The last-level cache holds the arrays of the first three:

- Products of a batch of narrow matrices, the scores of heads of attention.
- An addition of a number to every entry, by the bytes read and written, in half of the cache.
- A choice by a mask of random values, which no processor foresees.
- A fill of a new array of four times the cache, whose pages the operating system maps meanwhile.

`costmodel calibrate` writes them as the file of a board. Ceilings hold for the current settings
(threads, TF32, clocks).

In the arguments, `place` is the device, `dtype` the name of an element type (fp32), `kind` torch's
dtype of this name, and `timing` the meter that times a call (`latency`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace

from profiler.meters.caches import CacheError, cache_bytes
from profiler.meters.failure import why_failed
from profiler.meters.latency import LAUNCH_BOUND
from profiler.meters.sampler import LatencyLimits
from profiler.records.grades import DISTURBED_LABELS
from profiler.records.quantities import WIDTH
from profiler.records.reading import Measured, Reading, Unavailable

SMALLEST, LARGEST = 256, 16384
"""The first and the last side of the matrices; sides are doubled in between."""
LONGEST_S = 0.1
"""A side is doubled only if the next product, eight times the work, is expected to stay below
this."""
CACHES = 4
"""The size of the buffer for traffic to memory, in multiples of the last-level cache."""
BRIEF = LatencyLimits(max_blocks=50, min_seconds=0.2, max_seconds=2.0, warmup_seconds=1.0)

KEPT = (
    "ci_low", "ci_high", "ci_missing", "n", "blocks", "stop_rule", "sampled_s", "block",
    "timer", "clock_MHz", "lowest_clock_MHz", "threads", "labels",
)  # fmt: skip
"""The details of a latency that are copied to its ceiling; the interval's ends become rates."""

SMALL_BYTES = 2**14
"""Bytes of all arrays of the smallest elementwise operation: the first-level cache holds them."""
LINKS = 4096
"""Chained operations per entry in one kernel: loads and stores are a thousandth of the work, and
the launch, about 10 us, is a tenth or less."""
EAGER, REGISTERS = "operation by operation", "in registers"
"""The variants: one torch call per operation, or all operations chained in one kernel's
registers."""

COPY, READ, WRITE = "copy", "read", "write"
ADDED, CHOSEN, NEW = "addition in the cache", "choice", "new array"
ROWS = 512
"""Rows of a narrow matrix."""
SHARE = 4
"""The cache's bytes over those of a product of narrow matrices and of a choice: such a call takes a
few milliseconds at most, so that few calls are preempted."""


def product_name(dtype: str) -> str:
    """The name of the ceiling of matrix products with this dtype.

    >>> product_name("bf16")
    'product bf16'
    """
    return f"product {dtype}"


def narrow_name(dtype: str) -> str:
    """The name of the rate of products of narrow matrices with this dtype.

    >>> narrow_name("bf16")
    'narrow product bf16'
    """
    return f"narrow product {dtype}"


def exp_name(dtype: str) -> str:
    """The name of the ceiling of exponentials with this dtype.

    >>> exp_name("fp32")
    'exp fp32'
    """
    return f"exp {dtype}"


def multiply_add_name(dtype: str) -> str:
    """The name of the ceiling of elementwise multiply-adds with this dtype.

    >>> multiply_add_name("fp32")
    'multiply-add fp32'
    """
    return f"multiply-add {dtype}"


def rate_reading(timed: Measured, name: str, amount: float, unit: str, **facts: Any) -> Measured:
    """The rate `amount` / seconds in `unit`, from a time: the lower end of the time's interval
    becomes the upper end of the rate's. A time that is Unavailable is returned as it is. `facts`:
    further details."""
    if isinstance(timed, Unavailable):
        return timed
    found = timed.converted(name, unit, lambda seconds: amount / seconds, KEPT)
    return replace(found, details={**found.details, **facts})


def of_the_work(found: Measured) -> Measured:
    """The rate `found` if it is a rate of the work itself; Unavailable if the timed call was
    launch-bound (the GPU waited for the host) or the device was disturbed. A power cap is accepted:
    the capped rate is the device's best rate."""
    if isinstance(found, Unavailable):
        return found
    said = ", ".join(x for x in (LAUNCH_BOUND, *DISTURBED_LABELS) if x in found.labels)
    return Unavailable(f"no ceiling: the timed call was {said}") if said else found


def better(best: Measured | None, found: Measured) -> Measured:
    """The higher of two rates, `best` being None before the first; a launch-bound or disturbed rate
    becomes Unavailable, and Unavailable never replaces a Reading."""
    sound = of_the_work(found)
    if not isinstance(best, Reading):
        return sound
    return sound if isinstance(sound, Reading) and sound.value > best.value else best


def product_ceiling(
    place: torch.device,
    dtype: str,
    kind: torch.dtype,
    timing: Callable[..., Measured],
    largest: int = LARGEST,
) -> Measured:
    """Measure the highest rate of a product of two square matrices over all sides, in operations
    per second.

    Sides are doubled up to `largest`, or until the next product would take `LONGEST_S` or fails.
    Details: `side`; `tried`, side -> operations per second; `ended_by`, the reason why a larger
    side failed. Unavailable if the first side failed, or every rate was launch-bound or disturbed.
    """
    best: Measured | None = None
    tried: dict[str, float] = {}
    facts: dict[str, Any] = {}
    for side in sides(largest):
        found = product_at(place, dtype, kind, side, timing)
        best = better(best, found)
        if isinstance(found, Unavailable):
            facts = {"ended_by": found.reason}
            break
        tried[str(side)] = found.value
        # the next side has 8 times the operations; samples are rates, the largest the fastest
        if 8 * product_operations(side) / max(found.samples) > LONGEST_S:
            break
    assert best is not None
    if isinstance(best, Unavailable):
        return best
    return replace(best, details={**best.details, "tried": tried, **facts})


def sides(largest: int) -> Iterator[int]:
    """Yield the sides of the matrices: `SMALLEST`, doubled while at most `largest`."""
    side = SMALLEST
    while side <= largest:
        yield side
        side *= 2


def product_operations(side: int) -> int:
    """Multiplications and additions in the product of two square matrices.

    >>> product_operations(2)  # 4 entries of 2 products and 1 sum
    12
    """
    return side * side * (2 * side - 1)


def product_at(
    place: torch.device, dtype: str, kind: torch.dtype, side: int, timing: Callable[..., Measured]
) -> Measured:
    """Measure the rate of the product of two random matrices of shape (side, side) and type `kind`
    (named `dtype`), in operations per second, timed by the meter `timing`; Unavailable if the
    product fails, or has no time."""
    try:
        chance = torch.Generator(device=place).manual_seed(side)
        a, b = (random_matrix(side, place, kind, chance) for _ in range(2))
        out = torch.empty_like(a)
        timed = timing(lambda: torch.mm(a, b, out=out), device=place, limits=BRIEF)
    except (RuntimeError, MemoryError) as error:
        return Unavailable(why_failed(error, f"in a product of {side} x {side}", place))
    return rate_reading(timed, product_name(dtype), product_operations(side), "op/s", side=side)


def random_matrix(
    side: int, place: torch.device, kind: torch.dtype, chance: torch.Generator
) -> torch.Tensor:
    """A (side, side) matrix of normal numbers over sqrt(side), so that the entries of a product
    have the variance 1 / side again."""
    drawn = torch.randn(side, side, device=place, generator=chance)
    scaled: torch.Tensor = drawn / side**0.5
    return scaled.to(kind)


@dataclass(frozen=True)
class Entrywise:
    """An elementwise operation whose ceiling is measured."""

    name: Callable[[str], str]
    """A function from the dtype's name to the ceiling's name."""
    counted: int
    """Scalar operations per entry."""
    eager: Callable[[torch.Tensor, torch.Tensor], Any]
    """Applies the operation to the first array and writes the second array, by one torch call."""
    arrays: int
    """The number of arrays that the operation reads and writes."""
    link: str
    """One operation of the chain in a kernel, as a C++ expression: the next value of x, of type T.
    The values stay bounded."""


ENTRYWISE = (
    Entrywise(exp_name, 1, lambda x, y: torch.exp(x, out=y), 2, "exp(-x)"),
    Entrywise(
        multiply_add_name, 2, lambda x, y: torch.addcmul(x, x, x, out=y), 2,
        "x * T(0.5) + T(0.25)",
    ),
)  # fmt: skip


def elementwise_ceilings(
    place: torch.device, dtype: str, kind: torch.dtype, timing: Callable[..., Measured]
) -> Mapping[str, Measured]:
    """A dict: name of each elementwise operation's ceiling -> its rate in operations per second, or
    why it could not be measured."""
    try:
        held, source = cache_bytes(place)
    except CacheError as error:
        why = Unavailable(f"the size of an array that fits the caches is unknown: {error}")
        return {operation.name(dtype): why for operation in ENTRYWISE}
    facts = {"cache_bytes": held, "cache_source": source}
    return {
        operation.name(dtype): elementwise_ceiling(
            place, dtype, kind, operation, held, timing, facts
        )
        for operation in ENTRYWISE
    }


def elementwise_ceiling(
    place: torch.device,
    dtype: str,
    kind: torch.dtype,
    operation: Entrywise,
    held: int,
    timing: Callable[..., Measured],
    facts: Mapping[str, Any],
) -> Measured:
    """Measure the highest rate of one elementwise operation over all sizes and variants, in
    operations per second.

    Details: `entries`, `how` (the variant: torch's own kernel or, on a GPU, one that keeps entries
    in registers) of the highest rate; `tried`, variant and entries -> operations per second;
    `not_tried`, variant -> why a size of it failed. Unavailable if all failed or were disturbed.

    Args:
        held: bytes of the caches, of which all arrays take at most half.
        timing: the meter of the calls.
        facts: further details of the reading.
    """
    name = operation.name(dtype)
    best: Measured = Unavailable("nothing was tried")
    tried: dict[str, float] = {}
    missing: dict[str, str] = {}
    width = operation.arrays * kind.itemsize
    counts = [size // width for size in resident(held)]
    ways = [(EAGER, count) for count in counts]
    ways += [(REGISTERS, counts[-1])] if place.type == "cuda" else []
    for how, count in ways:
        try:
            chance = torch.Generator(device=place).manual_seed(count)
            x = torch.rand(count, device=place, generator=chance).to(kind)
            y = torch.empty_like(x)
            call, times = repeated_entrywise(operation, how, x, y)
            timed = timing(call, device=place, limits=BRIEF)
        except (RuntimeError, MemoryError, AttributeError) as error:  # a private part of torch
            timed = Unavailable(why_failed(error, f"for {count} entries {how}", place))
        about = {**facts, "entries": count, "how": how}
        found = rate_reading(timed, name, operation.counted * times * count, "op/s", **about)
        best = better(best, found)
        if isinstance(found, Unavailable):
            missing[how] = found.reason
            continue
        tried[f"{how}, {count} entries"] = found.value
    if isinstance(best, Unavailable):
        return best
    more = {"tried": tried, **({"not_tried": missing} if missing else {})}
    return replace(best, details={**best.details, **more})


def resident(held: int) -> list[int]:
    """The sizes in bytes of arrays to be tried, which the caches hold: from `SMALL_BYTES`, eight
    times as many each time, up to half of `held`.

    >>> resident(2**20)
    [16384, 131072]
    """
    sizes = [SMALL_BYTES]
    while 8 * sizes[-1] <= held // 2:
        sizes.append(8 * sizes[-1])
    return sizes


def repeated_entrywise(
    operation: Entrywise, how: str, x: torch.Tensor, y: torch.Tensor
) -> tuple[Callable[[], Any], int]:
    """(a call to be timed, how often it applies the operation to every entry of x): once, into y,
    by torch's own kernel if `how` is `EAGER`; else `LINKS` times, by a kernel that keeps x in
    registers."""
    if how == EAGER:
        return (lambda: operation.eager(x, y)), 1
    kernel = in_registers(operation.link)
    return (lambda: kernel(x)), LINKS


def in_registers(link: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Make a function that runs a GPU kernel, compiled by torch, that applies the C expression
    `link` of x `LINKS` times, one after another, to each entry x."""
    return torch.cuda.jiterator._create_jit_fn(
        "template <typename T> T chained(T x) { "
        f"for (int k = 0; k < {LINKS}; ++k) {{ x = {link}; }} return x; }}"
    )


def moving(place: torch.device, timing: Callable[..., Measured]) -> dict[str, Measured]:
    """Measure the bytes per second that are copied, read and written in a buffer larger than the
    caches, by the meter `timing`: name -> rate; each is Unavailable if there is no such buffer, or
    its call was disturbed."""
    names = (COPY, READ, WRITE)
    try:
        held, source = cache_bytes(place)
        size = CACHES * held
        numbers = torch.randn(size // 4, device=place)
        target = torch.empty_like(numbers)
    except CacheError as error:
        why = f"the size of a buffer that exceeds the cache is unknown: {error}"
        return dict.fromkeys(names, Unavailable(why))
    except (RuntimeError, MemoryError) as error:
        why = why_failed(error, f"for two buffers of {size:,} B", place)
        return dict.fromkeys(names, Unavailable(why))
    # name -> (call, how often it moves the bytes of the buffer)
    calls: Mapping[str, tuple[Callable[[], Any], int]] = {
        COPY: (lambda: target.copy_(numbers), 2),
        READ: (lambda: numbers.sum(), 1),
        WRITE: (lambda: target.fill_(0.5), 1),
    }
    facts = {"buffer_bytes": size, "cache_bytes": held, "cache_source": source}
    found: dict[str, Measured] = {}
    for name, (call, times) in calls.items():
        timed = timing(call, device=place, limits=BRIEF)
        found[name] = of_the_work(rate_reading(timed, name, times * size, "B/s", **facts))
    return found


def ordinary(
    place: torch.device, kinds: Mapping[str, torch.dtype], timing: Callable[..., Measured]
) -> dict[str, Measured]:
    """Measure the rates of ordinary calls, whose result is a new array, by the meter `timing`: name
    -> rate. These are, for each dtype of `kinds`, the products of narrow matrices in operations per
    second; an addition in bytes per second; a choice by a random mask in entries per second; all
    three in the last-level cache; and a fill beyond the cache in bytes per second. Each is
    Unavailable if the cache's size is unknown, or its call failed or was disturbed."""
    chance = torch.Generator(device=place).manual_seed(ROWS)

    def product(kind: torch.dtype, held: int) -> tuple[Callable[[], Any], int, str]:
        """(call, its operations, unit): the scores of heads that fill `held / SHARE` bytes."""
        heads = max(held // SHARE // (ROWS * ROWS * kind.itemsize), 1)
        rows = torch.randn(heads, ROWS, WIDTH, device=place, generator=chance).to(kind)
        columns = rows.transpose(1, 2)
        return lambda: rows @ columns, heads * ROWS * ROWS * (2 * WIDTH - 1), "op/s"

    def addition(held: int) -> tuple[Callable[[], Any], int, str]:
        """(call, its bytes, unit): an array and the result, together `held / 2` bytes."""
        x = torch.randn(held // 16, device=place, generator=chance)
        return lambda: x + 1.0, 8 * x.numel(), "B/s"

    def choice(held: int) -> tuple[Callable[[], Any], int, str]:
        """(call, its entries, unit): an array, mask and result, about `held / SHARE` bytes."""
        x = torch.randn(held // SHARE // 8, device=place, generator=chance)
        mask = x > 0
        return lambda: torch.where(mask, x, 0.0), x.numel(), "op/s"

    def fill(held: int) -> tuple[Callable[[], Any], int, str]:
        """(call, its bytes, unit): a new array of `CACHES` times `held` bytes."""
        entries = CACHES * held // 4
        return lambda: torch.full((entries,), 0.5, device=place), 4 * entries, "B/s"

    calls: Mapping[str, Callable[[int], tuple[Callable[[], Any], int, str]]] = {
        **{narrow_name(name): partial(product, kind) for name, kind in kinds.items()},
        ADDED: addition,
        CHOSEN: choice,
        NEW: fill,
    }
    found: dict[str, Measured] = {}
    for name, made in calls.items():
        try:
            held, source = cache_bytes(place)
            call, amount, unit = made(held)
            timed = timing(call, device=place, limits=BRIEF)
        except CacheError as error:
            timed = Unavailable(f"the size of the cache is unknown: {error}")
        except (RuntimeError, MemoryError) as error:
            timed = Unavailable(why_failed(error, f"in {words_of(name)}", place))
        if isinstance(timed, Reading):
            facts = {"cache_bytes": held, "cache_source": source}
            timed = of_the_work(rate_reading(timed, name, amount, unit, **facts))
        found[name] = timed
    return found


WORDS: Mapping[str, str] = {
    COPY: "copying", READ: "reading", WRITE: "writing", ADDED: "additions in the last cache",
    CHOSEN: "choices by a random mask", NEW: "filling a new array",
}  # fmt: skip
"""Ceiling -> its words in a sentence."""
TYPED: Mapping[str, str] = {
    product_name(""): "products of matrices in ",
    narrow_name(""): "products of narrow matrices in ", exp_name(""): "exponentials in ",
    multiply_add_name(""): "multiply-adds in ",
}  # fmt: skip
"""The beginning of the name of a ceiling that depends on the dtype -> its words in a sentence."""


def words_of(name: str) -> str:
    """The work whose rate the ceiling `name` is, in words.

    >>> words_of("copy"), words_of("exp bf16")
    ('copying', 'exponentials in bf16')
    """
    for beginning, words in TYPED.items():
        if name.startswith(beginning):
            return words + name.removeprefix(beginning)
    return WORDS[name]
