"""How long does a call of a kernel take, by its family, its work, its sizes and a board's figures?

A family is a kind of kernel: matrix products, attention of many rows, attention of one new row,
... Its seconds follow from at most six constants with a meaning, which are the same on all boards
(`tables/predictions/kernels.json`). Times of latencies are in cycles of the board's clock, rates in
shares of the board's peaks. Tiles, which a kernel's source states, are no constants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.prediction.boards import Board
from costmodel.prediction.calls import Calls

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

THOUSAND = 1e3
ENTRY = 2
"""Bytes of an entry that moves (bf16)."""


@dataclass(frozen=True)
class Constant:
    """A constant of a family: its meaning, and the range in which it is fitted."""

    meaning: str
    least: float
    most: float


Constants = Mapping[str, float]


@dataclass(frozen=True)
class Family:
    """A family of kernels.

    Args:
        kernels: the names of `KERNELS` that it predicts.
        seconds: (constants, calls, board) -> the seconds of each call.
        sources: a pattern of the names of implementations; "" matches all.
    """

    name: str
    kernels: tuple[str, ...]
    constants: Mapping[str, Constant]
    seconds: Callable[[Constants, Calls, Board], Floats]
    sources: str = ""
    like: str = ""
    """The family whose constants stand in on a board without which this one was fitted nowhere."""
    stand_in: Constants = field(default_factory=dict)
    """Constants that are not those of `like` then."""

    def covers(self, kernel: str, source: str) -> bool:
        """Whether this family predicts an implementation of a kernel."""
        return kernel in self.kernels and re.search(self.sources, source) is not None


START = Constant("launch and tail of a call, in microseconds", 0.5, 25)
TILE = Constant("start and end of a tile, in thousands of cycles", 0.1, 20)
PEAK = Constant("share of the matrix units' dense peak that a full tile reaches", 0.3, 1)
BANDWIDTH = Constant("share of the memory's bandwidth that large calls reach", 0.3, 1)
FEED = Constant("bytes a cycle that one SM loads", 4, 128)
STREAM = Constant("how many times its share of the memory's bandwidth one SM streams", 0.2, 10)
OVERLAP = Constant(
    "overlap p of arithmetic and movement: their times add as (a**p + m**p)**(1/p)", 1, 8
)


def together(one: Floats, two: Floats, overlap: float) -> Floats:
    """The time of two activities that overlap, (one**p + two**p)**(1/p) with p = `overlap`:
    their sum for p = 1, the longer of the two as p grows."""
    larger, smaller = np.maximum(one, two), np.minimum(one, two)
    share = smaller / np.maximum(larger, 1e-300)
    return np.asarray(larger * (1 + share**overlap) ** (1 / overlap))


GEMM_TILES = ((256, 128), (128, 128), (64, 128), (64, 64))
"""Rows and columns of the output tiles that libraries offer."""
GEMM_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""In how many parts the inner dimension is split (split-K)."""
GEMM_STEP = 64
"""Entries of the inner dimension in one step of a tile."""


def gemm(c: Constants, calls: Calls, on: Board) -> Floats:
    """Seconds of a matrix product (l, d) by (d, f), the least over tiles and splits of d: waves of
    tiles over the SMs, overlapped with the bytes of operands, results and partial results."""
    m, n, k = (calls.sizes[x] for x in "lfd")
    cycle, sms = 1 / on["clock"], on["sms"]
    peak = on[f"matrix.{calls.dtype}"] / sms * c["peak"]
    movement = calls.movement(on) / c["bandwidth"]
    best = np.full(m.shape, np.inf)
    for rows, columns in GEMM_TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / columns)
        step = max(2 * rows * columns / peak, ENTRY * (rows + columns) * cycle / c["feed"])
        for split in GEMM_SPLITS:
            depth = np.ceil(k / split / GEMM_STEP) * GEMM_STEP
            waves = np.ceil(tiles * split / sms)
            busy = waves * (depth * step + c["tile"] * THOUSAND * cycle)
            moved = movement
            if split > 1:
                busy = busy + c["tile"] * THOUSAND * cycle
                # partial results in fp32 are written and read: 8 bytes an entry
                partial = 8 * split * m * n / on["memory_bandwidth"]
                moved = movement + partial / c["bandwidth"]
            best = np.minimum(best, together(busy, moved, c["overlap"]))
    return np.asarray(c["start"] * 1e-6 + best)


@dataclass(frozen=True)
class Attended:
    """Attention as a kernel sees it, arrays (N,): `groups` of rows that share keys (a sequence and
    a head of keys), `rows` of a group (tokens and heads of queries), `tokens` of a group that have
    rows, the most `keys` of a row, and the widths of a key and of a value."""

    groups: Floats
    rows: Floats
    tokens: Floats
    keys: Floats
    key: Floats
    value: Floats
    shared: bool
    """Whether values are part of the keys (a latent row), and so move once."""


def attended(calls: Calls) -> Attended:
    """The shapes of calls of attention or latent attention, from their sizes by letter; one token
    (`tokens` 1, keys t) if they have no length l."""
    s = calls.sizes
    tokens = s["l"] if "l" in s else np.ones_like(s["t"])
    keys = s["l"] if "l" in s else s["t"]
    if "latent" not in calls.kernel:
        keys = np.minimum(keys, s["w"])
        rows = tokens * s["n"] / s["g"]
        return Attended(s["b"] * s["g"], rows, tokens, keys, s["h"], s["h"], shared=False)
    if calls.kernel == "prefill latent attention":
        return Attended(
            s["b"] * s["n"], tokens, tokens, keys, s["K"] + s["R"], s["V"], shared=False
        )
    latent = s["c"] + s["R"]
    return Attended(s["b"], tokens * s["n"], tokens, keys, latent, s["c"], shared=True)


ROWS, KEYS = 128, 128
"""Rows of queries and of keys in a tile of attention over many rows."""


def prefill(c: Constants, calls: Calls, on: Board) -> Floats:
    """Seconds of attention of many rows. A block of `ROWS` rows visits tiles of `KEYS` keys, and an
    SM multiplies and takes exponentials in turn. Busy is the longer of the longest block alone and
    of all blocks shared by the SMs; busy overlaps with the bytes moved."""
    a = attended(calls)
    cycle, sms = 1 / on["clock"], on["sms"]
    blocks = np.ceil(a.rows / ROWS)
    lines = calls.work.exponentials / (a.groups * a.rows)
    """The mean number of keys of a row."""
    spread = ROWS * a.tokens / a.rows
    longest = np.ceil(np.minimum(a.keys + spread, calls.sizes["l"]) / KEYS)
    # tiles of the mean block, to half a tile
    mean = np.minimum(longest, np.ceil((lines + spread / 2) / KEYS * 2) / 2 + 0.5)
    mean = np.maximum(1, mean)
    product = 2 * (a.key + a.value) / (on[f"matrix.{calls.dtype}"] / sms * c["peak"])
    pair = product + c["softmax"] / (on["special"] / sms)
    start = c["tile"] * THOUSAND * cycle
    waves = np.ceil(a.groups * blocks / sms)
    whole = a.groups * blocks / sms
    total = np.where(waves > 1, np.maximum(whole, 1), 1) * (start + mean * ROWS * KEYS * pair)
    alone = start + longest * ROWS * KEYS * pair
    busy = np.maximum(total, alone)
    moved = calls.movement(on) / c["bandwidth"]
    return np.asarray(c.get("start", 0) * 1e-6 + together(busy, moved, c["overlap"]))


DECODE_ROWS, DECODE_KEYS = 64, 128
DECODE_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
"""In how many parts the keys of a new token are split over SMs."""


def decode(c: Constants, calls: Calls, on: Board) -> Floats:
    """Seconds of attention of one new row, the least over splits of the keys. Blocks (a group of
    heads, a part of the keys) take the SMs in whole waves, each streaming its keys and values at
    one SM's rate; this overlaps with all bytes at the memory's rate. A split adds a join."""
    a = attended(calls)
    cycle, sms = 1 / on["clock"], on["sms"]
    blocks = a.groups * np.ceil(a.rows / DECODE_ROWS)
    tiles = np.ceil(a.keys / DECODE_KEYS)
    wide = a.key if a.shared else a.key + a.value
    tile = DECODE_KEYS * wide * ENTRY / (c["stream"] * on["memory_bandwidth"] / sms)
    movement = calls.movement(on) / c["bandwidth"]
    best = np.full(tiles.shape, np.inf)
    for split in DECODE_SPLITS:
        waves = np.ceil(blocks * split / sms)
        busy = waves * (c["tile"] * THOUSAND * cycle + np.ceil(tiles / split) * tile)
        taken = together(busy, movement, c["overlap"])
        if split > 1:
            taken = np.where(split <= tiles, taken + c["join"] * THOUSAND * cycle, np.inf)
        best = np.minimum(best, taken)
    return np.asarray(c["start"] * 1e-6 + best)


TRITON_HEADS, TRITON_SPLITS = 16, 4
"""Heads of queries in a tile of vLLM's Triton kernel, and the parts of the keys."""


def few_splits(c: Constants, calls: Calls, on: Board) -> Floats:
    """Seconds of latent attention of one new row by a kernel that splits the keys into
    `TRITON_SPLITS` parts and reads the keys again for each `TRITON_HEADS` heads: the longer of the
    waves of blocks and of all bytes."""
    a = attended(calls)
    blocks = a.groups * np.ceil(a.rows / TRITON_HEADS) * TRITON_SPLITS
    streamed = c["stream"] * on["memory_bandwidth"] / on["sms"]
    part = np.ceil(a.keys / TRITON_SPLITS) * a.key * ENTRY / streamed
    again = calls.movement(on) * np.ceil(a.rows / TRITON_HEADS) / c["bandwidth"]
    return np.maximum(np.ceil(blocks / on["sms"]) * part, again)


CHUNK = 64
"""Rows of a chunk of a delta rule."""


def chunked(c: Constants, calls: Calls, on: Board) -> Floats:
    """Seconds of a delta rule in chunks of `CHUNK` rows, of three times that overlap: the chunks of
    one head one after the other, the products of all chunks at the peak, and the bytes moved."""
    s = calls.sizes
    cycle = 1 / on["clock"]
    chunks = np.ceil(s["l"] / CHUNK)
    widths = s["h"] ** 2 if "h" in s else s["K"] * s["V"]
    # the constant is for a state of 128 by 128 entries
    alone = chunks * c["chunk"] * THOUSAND * cycle * widths / 128**2
    padded = calls.arithmetic(on) * chunks * CHUNK / s["l"] / c["peak"]
    state = 4 * s["b"] * s["n"] * widths / on["memory_bandwidth"]
    moved = (calls.movement(on) + state) / c["bandwidth"]
    busy = together(alone, padded, c["overlap"])
    return np.asarray(c["start"] * 1e-6 + together(busy, moved, c["overlap"]))


FLA_ROWS = 20
"""Rows of a head's width that flash-linear-attention's six kernels read or write for each token and
head of values: chunk_scaled_dot_kkt (k, and A in fp32: 2), solve_tril (A twice: 1.5), recompute_w_u
(k, v, A, w, u: 4.5), chunk_delta_h (k, w, u, v_new, and a state every 64 tokens: 6), and chunk_o
(q, k, v_new, o, and the state: 6)."""


def by_six(c: Constants, calls: Calls, on: Board) -> Floats:
    """Seconds of a delta rule by the six kernels of flash-linear-attention: a constant for each,
    plus two times that overlap: the chunks of one head one after the other, and the bytes of the
    rows that the kernels pass on through the memory."""
    s = calls.sizes
    cycle = 1 / on["clock"]
    widths = s["h"] ** 2 if "h" in s else s["K"] * s["V"]
    alone = np.ceil(s["l"] / CHUNK) * c["chunk"] * THOUSAND * cycle * widths / 128**2
    state = 8 * s["b"] * s["n"] * widths
    tokens = s["b"] * np.ceil(s["l"] / CHUNK) * CHUNK * s["n"]
    moved = (tokens * FLA_ROWS * ENTRY * np.sqrt(widths) + state) / on["memory_bandwidth"]
    taken = together(alone, moved / c["bandwidth"], c["overlap"])
    return np.asarray(6 * c["kernel"] * 1e-6 + taken)


def channels(calls: Calls) -> Floats:
    """The channels of a short convolution, (N,): of Mamba-2, of Kimi delta attention (h wide), or
    of a gated delta rule (keys, queries and values)."""
    s = calls.sizes
    if "P" in s:
        return s["n"] * s["P"] + 2 * s["G"] * s["N"]
    return 3 * s["n"] * s["h"] if "h" in s else 2 * s["g"] * s["K"] + s["n"] * s["V"]


def convolved(c: Constants, calls: Calls, on: Board) -> Floats:
    """Seconds of a short convolution: blocks, one for each channel of each sequence, shared by the
    SMs, overlapped with the bytes at a share of the bandwidth."""
    blocks = calls.sizes["b"] * channels(calls) / on["sms"] * c["block"] / on["clock"]
    moved = calls.movement(on) / c["bandwidth"]
    return np.asarray(c["start"] * 1e-6 + together(blocks, moved, c["overlap"]))


def streaming(c: Constants, calls: Calls, on: Board) -> Floats:
    """Seconds of a delta rule of one new row: blocks, one for each head of each sequence, in whole
    waves over the SMs, overlapped with the bytes (the state) at a share of the bandwidth."""
    waves = np.ceil(calls.sizes["b"] * calls.sizes["n"] / on["sms"])
    busy = waves * c["block"] / on["clock"]
    moved = calls.movement(on) / c["bandwidth"]
    return np.asarray(c["start"] * 1e-6 + together(busy, moved, c["overlap"]))


def by_host(device: Callable[[Constants, Calls, Board], Floats]) -> Any:
    """A function like `device`, of the seconds of work on the device, for kernels that the host
    launches one by one: the longer of `device` and of the launches (`host` microseconds)."""

    def seconds(c: Constants, calls: Calls, on: Board) -> Floats:
        return np.maximum(c["host"] * 1e-6, device(c, calls, on))

    return seconds


SOFTMAX = Constant("exponentials' worth of the softmax of a pair that products do not hide", 0, 3)
JOIN = Constant("joining the parts of split keys, in thousands of cycles", 0, 15)
HOST = Constant("launches by the host, in microseconds", 20, 1000)
CHAIN = Constant("one chunk of a head after the one before, in thousands of cycles", 0.5, 50)
BLOCK = Constant("a block (a head or channel of a sequence) on an SM, in cycles", 0, 3000)
KERNEL = Constant("each of six kernels, in microseconds", 0.5, 6)

PREFILL = {
    "start": START, "tile": TILE, "peak": PEAK, "softmax": SOFTMAX, "bandwidth": BANDWIDTH,
    "overlap": OVERLAP,
}  # fmt: skip
DECODE = {
    "start": START, "tile": TILE, "stream": STREAM, "bandwidth": BANDWIDTH, "overlap": OVERLAP,
    "join": JOIN,
}  # fmt: skip

ROWWISE = {"start": START, "block": BLOCK, "bandwidth": BANDWIDTH, "overlap": OVERLAP}
CHUNKED = {
    "start": START, "chunk": CHAIN, "peak": Constant(PEAK.meaning, 0.02, 1),
    "bandwidth": Constant(BANDWIDTH.meaning, 0.05, 1), "overlap": OVERLAP,
}  # fmt: skip
LATENT_PREFILL = ("prefill latent attention", "prefill absorbed latent attention")
BY_HOST = 160.0
"""Microseconds of a Triton kernel's launch by the host: the three short convolutions of KDA take at
least 424 on H100, the one of Gated DeltaNet 221 on H200 (`benchmarks.published_kernels`)."""


def _without(constants: Mapping[str, Constant], *names: str) -> dict[str, Constant]:
    """The constants except those named."""
    return {name: one for name, one in constants.items() if name not in names}


FAMILIES = (
    Family(
        "matrix products",
        ("gemm",),
        {"start": Constant(START.meaning, 0.05, 6), "tile": TILE, "peak": PEAK, "feed": FEED,
         "bandwidth": BANDWIDTH, "overlap": OVERLAP},
        gemm,
    ),
    Family("attention of many rows", ("prefill attention",), PREFILL, prefill),
    Family("attention of one new row", ("decode attention",), DECODE, decode),
    Family(
        "latent attention of many rows by Triton",
        LATENT_PREFILL,
        {"host": HOST, **_without(PREFILL, "start")},
        by_host(prefill),
        sources="triton",
        like="attention of many rows",
        stand_in={"host": 2 * BY_HOST},
    ),
    Family("latent attention of many rows", LATENT_PREFILL, PREFILL, prefill,
           like="attention of many rows"),
    Family(
        "latent attention of one new row by Triton",
        ("decode latent attention",),
        {"host": HOST, "stream": STREAM, "bandwidth": BANDWIDTH},
        by_host(few_splits),
        sources="triton",
        like="latent attention of one new row",
        stand_in={"host": 2 * BY_HOST},
    ),
    Family("latent attention of one new row", ("decode latent attention",), DECODE, decode,
           like="attention of one new row"),
    Family("delta rule of many rows by FlashKDA", ("prefill Kimi delta rule",), CHUNKED, chunked,
           like="delta rule of many rows by Triton",
           stand_in={"start": 12.0, "peak": 0.8}),
    Family("delta rule of many rows by FlashInfer", ("prefill gated delta rule",), CHUNKED, chunked,
           sources="flashinfer", like="delta rule of many rows by Triton",
           stand_in={"start": 12.0, "peak": 0.8}),
    Family("delta rule of many rows by Triton", ("prefill gated delta rule",),
           {"kernel": KERNEL, "chunk": CHAIN, "bandwidth": BANDWIDTH, "overlap": OVERLAP}, by_six,
           like="delta rule of many rows by FlashInfer",
           stand_in={"kernel": 3.0, "bandwidth": 0.8}),
    Family("delta rule of one new row", ("decode gated delta rule", "decode Kimi delta rule"),
           ROWWISE, streaming),
    Family("short convolution of many rows", ("prefill Mamba-2 convolution",), ROWWISE, convolved),
    Family("short convolution of many rows of q, k and v",
           ("prefill gated delta convolution", "prefill Kimi convolution"), ROWWISE, convolved,
           like="short convolution of one new row"),
    Family("short convolution of one new row",
           ("decode gated delta convolution", "decode Kimi convolution",
            "decode Mamba-2 convolution"), ROWWISE, convolved),
)  # fmt: skip
"""All families; the first that covers a kernel and an implementation predicts it."""


def family_of(kernel: str, source: str) -> Family | None:
    """The family that predicts an implementation of a kernel; None if there is none."""
    return next((one for one in FAMILIES if one.covers(kernel, source)), None)
