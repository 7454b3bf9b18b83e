"""How long does a call of a kernel take, by its family, its work, its sizes and a board's figures?

A family is a kind of kernel: matrix products, attention of many rows, attention of one new row,
... Its seconds follow from at most six constants with a meaning, which are the same on all boards
(`tables/predictions/kernels.json`): microseconds (`start`, `kernel`), thousands of cycles of the
board's clock (`tile`, `join`, `chunk`), shares of the board's peaks, and an exponent p, `overlap`:
a and b seconds side by side take (a**p + b**p)**(1/p). Tiles, which a kernel's source states, are
no constants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.prediction.boards import Board
from costmodel.prediction.calls import Calls

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

THOUSAND = 1e3
ENTRY, FP32 = 2, 4
"""Bytes of an entry that moves: in bf16, and in fp32."""


@dataclass(frozen=True)
class Constant:
    """A constant of a family: its meaning, and the range in which it is fitted."""

    meaning: str
    least: float
    most: float

    def rounded(self, value: float) -> float:
        """A fitted value to four digits; near an end of the range, the end."""
        near = (end for end in (self.least, self.most) if abs(value - end) < max(0.005 * end, 1e-3))
        return next(near, float(f"{value:.4g}"))

    def in_words(self, value: float) -> str:
        """A value, with a remark at an end of the range."""
        remark = {self.least: " (the least allowed)", self.most: " (the most allowed)"}
        return f"{value:g}{remark.get(value, '')}"


Constants = Mapping[str, float]


@dataclass(frozen=True)
class Family:
    """A family of kernels.

    Args:
        kernels: the names of `KERNELS` that it predicts.
        seconds: (name of a constant -> its value, calls, board) -> the seconds of each call.
        sources: a regular expression found in the names of implementations; "" matches all.
    """

    name: str
    kernels: tuple[str, ...]
    constants: Mapping[str, Constant]
    seconds: Callable[[Constants, Calls, Board], Floats]
    sources: str = ""
    like: str = ""
    """The family whose constants of the same names stand in on the only board on which this family
    was fitted: a board's times are predicted by constants from other boards."""
    instead: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Constants that another family than `like` stands in for: name -> (family, its name there)."""

    def stand_in(self, name: str) -> tuple[str, str]:
        """(family, its constant) that stands in for a constant; no family ("") if none does."""
        return self.instead.get(name, (self.like, name))

    def covers(self, kernel: str, source: str) -> bool:
        """Whether this family predicts an implementation of a kernel."""
        return kernel in self.kernels and re.search(self.sources, source) is not None


START = Constant("launch and tail of a call, in microseconds", 0.5, 25)
TILE = Constant("start and end of a tile, in thousands of cycles", 0.1, 20)
PEAK = Constant("share of the matrix units' dense peak that a full tile reaches", 0.3, 1)
BANDWIDTH = Constant("share of the memory's bandwidth that large calls reach", 0.3, 1)
FEED = Constant("bytes that one SM loads for a thousand operations at its dense peak", 4, 128)
STREAM = Constant("how many times its share of the memory's bandwidth one SM streams", 0.2, 10)
OVERLAP = Constant(
    "overlap p of arithmetic and movement: their times add as (a**p + m**p)**(1/p)", 1, 8
)


EXPOSED = Constant(
    "share of the shorter of arithmetic and movement that the first wave of tiles does not hide",
    0, 1,
)  # fmt: skip


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
    """Seconds, for each call, of a matrix product (l, d) by (d, f), or of `batch` such products,
    the least over sizes of tiles and splits of d: the longer of waves of tiles over the GPU's
    multiprocessors (SMs), and of the bytes of operands, results and partial results; in the first
    wave, a share of the shorter one is not hidden. `c`: the family's constants."""
    m, n, k = (calls.sizes[x] for x in "lfd")
    batch = calls.sizes.get("batch", np.ones(()))
    cycle, sms = 1 / on["clock"], on["sms"]
    dense = on[f"matrix.{calls.dtype}"] / sms
    movement = calls.movement(on) / c["bandwidth"]
    best = np.full(m.shape, np.inf)
    for rows, columns in GEMM_TILES:
        tiles = batch * np.ceil(m / rows) * np.ceil(n / columns)
        loads = ENTRY * (rows + columns) / (c["feed"] / THOUSAND)
        # the seconds of a tile for one entry of the inner dimension: of its operations or loads
        step = max(2 * rows * columns / c["peak"], loads) / dense
        for split in GEMM_SPLITS:
            depth = np.ceil(k / split / GEMM_STEP) * GEMM_STEP
            waves = np.ceil(tiles * split / sms)
            busy = waves * (depth * step + c["tile"] * THOUSAND * cycle)
            moved = movement
            if split > 1:
                busy = busy + c["tile"] * THOUSAND * cycle
                # partial results in fp32 are written and read: 8 bytes an entry
                partial = 8 * split * batch * m * n / on["memory_bandwidth"]
                moved = movement + partial / c["bandwidth"]
            bare = c["exposed"] * np.minimum(busy, moved) / np.maximum(waves, 1)
            best = np.minimum(best, np.maximum(busy, moved) + bare)
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
    edges: Floats
    """Masked ends of a row's keys: the last key, and where a window hides early keys, the first."""
    copies: Floats
    """1 if heads of queries that share keys are copied before the kernel, and results after it,
    where rows stand for tokens, else 0: of one sequence or one head of keys, whose entries lie in
    this order already."""
    shared: bool
    """Whether values are part of the keys (a latent row), and so move once."""


def attended(calls: Calls) -> Attended:
    """The shapes of calls of attention, or of attention on a latent row of c entries from which
    keys and values are projected: rows, which the formulas tile, in place of tokens and heads. b
    sequences; l tokens, or one new token with t keys; n heads of queries, g of keys, h wide, window
    w; K, R and V are the widths of a key's own part and shared part, and of a value."""
    s = calls.sizes
    tokens = s["l"] if "l" in s else np.ones_like(s["t"])
    keys = s["l"] if "l" in s else s["t"]
    if "latent" not in calls.kernel:
        rows = tokens * s["n"] / s["g"]
        # several sequences, and several heads of keys, each for several heads of queries
        copies = np.where((s["b"] > 1) & (s["g"] > 1) & (s["n"] > s["g"]), 1.0, 0.0)
        edges, seen = np.where(s["w"] < keys, 2.0, 1.0), np.minimum(keys, s["w"])
        return Attended(
            s["b"] * s["g"], rows, tokens, seen, s["h"], s["h"], edges, copies, shared=False
        )
    one, none = np.ones_like(keys), np.zeros_like(keys)
    if calls.kernel == "prefill latent attention":
        return Attended(
            s["b"] * s["n"], tokens, tokens, keys, s["K"] + s["R"], s["V"], one, none, shared=False
        )
    latent = s["c"] + s["R"]
    rows = tokens * s["n"]
    return Attended(s["b"], rows, tokens, keys, latent, s["c"], one, none, shared=True)


def flash_attention_2(on: Board) -> bool:
    """Whether attention on a board is FlashAttention 2, which multiplies and takes exponentials in
    turn, and splits the keys of a new token only where several heads of queries share keys: on
    CUDA's compute capabilities 8 and 12. Versions 3 and 4, for 9 and 10, do both at once, as a
    board without a `capability` (a board of another maker) is assumed to do."""
    return "capability" in on.figures and int(on["capability"]) in (8, 12)


ROWS, KEYS = 128, 128
"""Rows of queries and of keys in a tile of attention over many rows."""
PREFILL_SPLITS = (1, 2, 4, 8, 16, 32)
"""In how many parts the keys of a block of rows are split over SMs."""


def prefill(c: Constants, calls: Calls, on: Board) -> Floats:
    """Seconds, for each call, of attention of many rows; inputs and results move once."""
    return tiled(c, calls, on, attended(calls), calls.movement(on))


def tiled(c: Constants, calls: Calls, on: Board, a: Attended, movement: Floats) -> Floats:
    """The seconds of each call, (N,), of attention of many rows, at the best split of keys. A block
    of `ROWS` rows visits tiles of `KEYS` keys; a multiprocessor (SM) multiplies and takes
    exponentials at once, in FlashAttention 2 in turn. Busy is the longer of the longest block alone
    and of all blocks shared by the SMs; busy overlaps with `movement`, the seconds in which all
    bytes move at the memory's bandwidth. `c`: the constants; `a`: each call's rows and keys."""
    cycle, sms = 1 / on["clock"], on["sms"]
    blocks = np.ceil(a.rows / ROWS)
    lines = calls.work.exponentials / (a.groups * a.rows)
    """The mean number of keys of a row."""
    spread = ROWS * a.tokens / a.rows  # the tokens to which the rows of a block belong
    # tiles of the longest block, the last one under a causal mask
    longest = np.ceil(np.minimum(a.keys + spread, calls.sizes["l"]) / KEYS)
    # tiles of the mean block, to half a tile
    mean = np.minimum(longest, np.ceil((lines + spread / 2) / KEYS * 2) / 2 + 0.5)
    mean = np.maximum(1, mean)
    product = 2 * (a.key + a.value) / (on[f"matrix.{calls.dtype}"] / sms * c["peak"])
    # where products hid the exponentials no constant is fitted: these run at their units' peak
    softmax = c.get("softmax", 1) / (on["special"] / sms)
    pair = product + softmax if flash_attention_2(on) else np.maximum(product, softmax)
    start = c["tile"] * THOUSAND * cycle
    pair = ROWS * KEYS * pair  # seconds of a tile on one SM; before, of one row and one key
    best = np.full(blocks.shape, np.inf)
    for split in (1,) if flash_attention_2(on) else PREFILL_SPLITS:
        waves = np.ceil(a.groups * blocks * split / sms)
        # of several waves, an SM begins its next block at once: the last wave need not be whole
        whole = a.groups * blocks * split / sms
        part = start + mean / split * pair
        total = np.where(waves > 1, np.maximum(whole, 1), 1) * part
        alone = start + np.ceil(longest / split) * pair
        busy, moved = np.maximum(total, alone), movement
        if split > 1:
            # partial results in fp32 are written and read
            partial = 2 * FP32 * split * a.groups * a.rows * a.value / on["memory_bandwidth"]
            busy, moved = busy + start, movement + partial
        best = np.minimum(best, together(busy, moved / c["bandwidth"], c["overlap"]))
    return np.asarray(c.get("start", 0) * 1e-6 + best)


def copied_entries(s: Mapping[str, Floats]) -> Floats:
    """The entries that vLLM's latent attention of many rows moves for each token and head beside
    those of its kernel, on boards with FlashAttention 2, (N,): it writes keys and values from the
    latent row, reads the keys and writes them with the shared ones, pads values to the keys' width,
    lets the kernel read and write the padding, and cuts the results. `s`: sizes (`attended`)."""
    key = s["K"] + s["R"]
    written, joined = s["K"] + s["V"], s["K"] + key
    return written + joined + (s["V"] + key) + 2 * (key - s["V"]) + 2 * s["V"]


def projected(c: Constants, calls: Calls, on: Board) -> Floats:
    """Seconds, for each call, of latent attention of many rows by vLLM: the product that makes the
    keys and values of all heads, attention whose values are padded to the width of keys, and the
    copies between these. `c`: the family's constants; letters of sizes as in `attended`."""
    s, a = calls.sizes, attended(calls)
    heads = s["b"] * s["l"] * s["n"]
    rate = on[f"matrix.{calls.dtype}"] * c["peak"]
    product = 2 * heads * s["c"] * (s["K"] + s["V"]) / rate
    copied = heads * copied_entries(s) * ENTRY / on["memory_bandwidth"]
    padded = replace(a, value=a.key)
    return product + tiled(c, calls, on, padded, calls.movement(on) + copied)


DECODE_ROWS, DECODE_KEYS = 64, 128
DECODE_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
"""In how many parts the keys of a new token are split over SMs."""


def decode(c: Constants, calls: Calls, on: Board) -> Floats:
    """Seconds, for each call, of attention of one new row, the least over splits of the keys.
    Blocks (a group of heads, a part of the keys) take the multiprocessors (SMs) in whole waves,
    each streaming its keys and values at one SM's rate, and masking each edge of the keys in a tile
    of its own; this overlaps with all bytes at the memory's rate. A split adds a join, and all
    splits are tried at every length, so that no longer context is faster; FlashAttention 2 splits
    only where several rows share keys. On its boards, vLLM's copies of heads that share keys add as
    much (on A100, 12.6 us of one sequence, 18.6 us of two). `c`: the family's constants."""
    a = attended(calls)
    cycle, sms = 1 / on["clock"], on["sms"]
    blocks = a.groups * np.ceil(a.rows / DECODE_ROWS)
    tiles = np.ceil(a.keys / DECODE_KEYS)
    wide = a.key if a.shared else a.key + a.value  # a key's entries and its value's
    tile = DECODE_KEYS * wide * ENTRY / (c["stream"] * on["memory_bandwidth"] / sms)
    movement = calls.movement(on) / c["bandwidth"]
    beside = c["join"] * THOUSAND * cycle
    best = np.full(tiles.shape, np.inf)
    for split in DECODE_SPLITS:
        # no part without keys: 9 tiles in 16 parts are 9 parts
        waves = np.ceil(blocks * np.minimum(split, tiles) / sms)
        edges = a.edges * c["tile"] * THOUSAND * cycle
        busy = waves * (edges + np.ceil(tiles / split) * tile)
        taken = together(busy, movement, c["overlap"])
        if split > 1:
            splits = (a.rows > 1) | (not flash_attention_2(on))
            taken = np.where(splits, taken + beside, np.inf)
        best = np.minimum(best, taken)
    if flash_attention_2(on):
        best = best + a.copies * beside
    return np.asarray(c["start"] * 1e-6 + best)


TRITON_HEADS, TRITON_SPLITS = 16, 4
"""Heads of queries in a tile of vLLM's Triton kernel, and the parts of the keys."""


def few_splits(c: Constants, calls: Calls, on: Board) -> Floats:
    """Seconds, for each call, of latent attention of one new row by a kernel that splits the keys
    into `TRITON_SPLITS` parts and reads the keys again for each `TRITON_HEADS` heads: the longer of
    the waves of blocks and of all bytes. `c`: the family's constants."""
    a = attended(calls)  # of one new token, the rows are its heads of queries
    blocks = a.groups * np.ceil(a.rows / TRITON_HEADS) * TRITON_SPLITS
    streamed = c["stream"] * on["memory_bandwidth"] / on["sms"]
    part = np.ceil(a.keys / TRITON_SPLITS) * a.key * ENTRY / streamed
    again = calls.movement(on) * np.ceil(a.rows / TRITON_HEADS) / c["bandwidth"]
    return np.maximum(np.ceil(blocks / on["sms"]) * part, again)


def chunked(rows: int, kernels: int) -> Any:
    """A function (constants, calls, board) -> the seconds of each call of a delta rule in chunks of
    `rows` rows by so many kernels: a constant for each kernel, and three durations that overlap:
    of the chunks of one head one after the other, of the products of all chunks at the peak, and of
    the bytes moved."""

    def seconds(c: Constants, calls: Calls, on: Board) -> Floats:
        """The seconds of each call, l rows in chunks of `rows`; `c`: the family's constants."""
        s = calls.sizes  # below, seconds: of products of whole chunks, of states, of all bytes
        chunks = np.ceil(s["l"] / rows)
        padded = calls.arithmetic(on) * chunks * rows / s["l"] / c["peak"]
        state = FP32 * s["b"] * s["n"] * state_entries(s) / on["memory_bandwidth"]
        moved = (calls.movement(on) + state) / c["bandwidth"]
        busy = together(one_by_one(c, calls, on, chunks), padded, c["overlap"])
        return np.asarray(kernels * c["kernel"] * 1e-6 + together(busy, moved, c["overlap"]))

    return seconds


def widths(sizes: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """The widths (N,) of a key and of a value of a delta rule: both h, or K and V."""
    return (sizes["h"], sizes["h"]) if "h" in sizes else (sizes["K"], sizes["V"])


def state_entries(sizes: Mapping[str, Floats]) -> Floats:
    """The entries of a head's state of a delta rule, (N,): a key's width by a value's."""
    key, value = widths(sizes)
    return key * value


def one_by_one(c: Constants, calls: Calls, on: Board, chunks: Floats) -> Floats:
    """The seconds of the chunks of one head, one after the other. The constant is that of a state
    of 128 by 128 entries."""
    return chunks * c["chunk"] * THOUSAND / on["clock"] * state_entries(calls.sizes) / 128**2


FLASH_KDA, FLASHINFER, FLA = 16, 64, 64
"""Rows of a chunk of FlashKDA (docs/20260420-flashkda-v1-deep-dive.md of FlashKDA's repository,
section 1), of FlashInfer, and of flash-linear-attention."""


def passed_bytes(sizes: Mapping[str, Floats]) -> Floats:
    """The bytes that flash-linear-attention's six kernels read or write for each token and head of
    values, (N,), beside a state of each chunk. A row of A has an entry for each row of a chunk."""
    key, value = widths(sizes)
    kkt = key * ENTRY + FLA * FP32  # chunk_scaled_dot_kkt: k, A in fp32
    solved = FLA * (FP32 + ENTRY)  # solve_tril: A in fp32, its inverse
    w_u = (2 * key + 2 * value + FLA) * ENTRY  # recompute_w_u: k, v, A, w, u
    states = (2 * key + 2 * value) * ENTRY  # chunk_delta_h: k, w, u, v_new
    results = (2 * key + 2 * value) * ENTRY  # chunk_o: q, k, v_new, o
    return kkt + solved + w_u + states + results


def by_six(c: Constants, calls: Calls, on: Board) -> Floats:
    """Seconds, for each call, of a delta rule by the six kernels of flash-linear-attention: a
    constant of `c` for each, plus two durations that overlap: of the chunks of one head one after
    the other, and of the bytes of rows and states that the kernels pass on through the memory."""
    s = calls.sizes
    chunks = np.ceil(s["l"] / FLA)
    # the state before and after in fp32, and twice that of each chunk
    states = (2 * FP32 + 2 * ENTRY * chunks) * state_entries(s)
    moved = s["b"] * s["n"] * (s["l"] * passed_bytes(s) + states) / on["memory_bandwidth"]
    alone = one_by_one(c, calls, on, chunks)
    taken = together(alone, moved / c["bandwidth"], c["overlap"])
    return np.asarray(6 * c["kernel"] * 1e-6 + taken)


SSD_CHUNK = 256
"""Rows of a chunk of mamba_ssm's scan of Mamba-2 (modules/mamba2.py, chunk_size)."""


def by_five(c: Constants, calls: Calls, on: Board) -> Floats:
    """Seconds, for each call, of Mamba-2's scan by the five kernels of mamba_ssm
    (ops/triton/ssd_combined.py): a constant of `c` each, plus two durations that overlap: of the
    products of all chunks, and of the bytes that the kernels pass on through the memory. Sizes: l
    rows in chunks of C, n heads P wide in G groups, a state of P by N entries per head."""
    s = calls.sizes
    # dt and its cumulated sums; x to chunk_state and chunk_scan, and y
    head = ENTRY + 6 * FP32 + 3 * s["P"] * ENTRY
    # B to chunk_state and bmm_chunk, C to bmm_chunk and chunk_scan, and their products in fp32
    group = 4 * s["N"] * ENTRY + 2 * s["C"] * FP32
    # chunk_state writes, state_passing reads and writes, chunk_scan reads
    states = np.ceil(s["l"] / s["C"]) * 2 * (FP32 + ENTRY) * s["P"] * s["N"]
    passed = s["b"] * (s["l"] * (s["n"] * head + s["G"] * group) + s["n"] * states)
    moved = passed / on["memory_bandwidth"]
    taken = together(calls.arithmetic(on) / c["peak"], moved / c["bandwidth"], c["overlap"])
    return np.asarray(5 * c["kernel"] * 1e-6 + taken)


def channels(calls: Calls) -> Floats:
    """The number of channels of the short convolution of each call, (N,): of Mamba-2 (with a size
    P), of Kimi delta attention (h wide), or of a gated delta rule (keys, queries and values)."""
    s = calls.sizes
    if "P" in s:
        return s["n"] * s["P"] + 2 * s["G"] * s["N"]
    return 3 * s["n"] * s["h"] if "h" in s else 2 * s["g"] * s["K"] + s["n"] * s["V"]


def convolved(c: Constants, calls: Calls, on: Board) -> Floats:
    """Seconds, for each call, of a short convolution: blocks, one for each channel of each
    sequence, shared by the multiprocessors (SMs), overlapped with the bytes at a share of the
    bandwidth. `c`: the family's constants."""
    blocks = calls.sizes["b"] * channels(calls) / on["sms"] * c["block"] / on["clock"]
    moved = calls.movement(on) / c["bandwidth"]
    return np.asarray(c["start"] * 1e-6 + together(blocks, moved, c["overlap"]))


def streaming(c: Constants, calls: Calls, on: Board) -> Floats:
    """Seconds, for each call, of a delta rule or scan of one new row: the longer of all bytes at a
    share of the bandwidth, and of blocks, one for each head of each sequence, which take the
    multiprocessors (SMs) in whole waves, each streaming its state at one SM's rate. `c`: the
    family's constants."""
    blocks = calls.sizes["b"] * calls.sizes["n"]
    shares = np.ceil(blocks / on["sms"]) * on["sms"] / blocks
    movement = calls.movement(on)
    busy = shares * movement / c["stream"]
    return np.asarray(c["start"] * 1e-6 + np.maximum(busy, movement / c["bandwidth"]))


def copied(c: Constants, calls: Calls, on: Board) -> Floats:
    """Seconds, for each call, of a short convolution whose blocks take no time: the launch, and the
    bytes at a share of the bandwidth."""
    return np.asarray(c["start"] * 1e-6 + calls.movement(on) / c["bandwidth"])


def idle(c: Constants, calls: Calls, on: Board) -> Floats:
    """0 seconds on the device, for each call: of a family of the host's launches alone."""
    return np.zeros(next(iter(calls.sizes.values())).shape)


def by_host(device: Callable[[Constants, Calls, Board], Floats]) -> Any:
    """A function with the parameters of `device`, for kernels that the host launches one by one:
    the longer of the seconds that `device` returns, of work on the device, and of the launches (the
    constant `host`, in microseconds)."""

    def seconds(c: Constants, calls: Calls, on: Board) -> Floats:
        return np.maximum(c["host"] * 1e-6, device(c, calls, on))

    return seconds


SOFTMAX = Constant("exponentials' worth of the softmax of a pair that products do not hide", 0, 3)
JOIN = Constant("joining the parts of split keys, or copying heads, in thousands of cycles", 0, 15)
HOST = Constant("launches by the host, in microseconds", 20, 1000)
CHAIN = Constant("one chunk of a head after the one before, in thousands of cycles", 0.5, 50)
BLOCK = Constant("a block (a channel of a sequence) on an SM, in cycles", 0, 3000)
KERNEL = Constant("launch and tail of each kernel, in microseconds", 0.5, 25)

PREFILL = {
    "start": START, "tile": TILE, "peak": PEAK, "softmax": SOFTMAX, "bandwidth": BANDWIDTH,
    "overlap": OVERLAP,
}  # fmt: skip
DECODE = {
    "start": START, "tile": TILE, "stream": STREAM, "bandwidth": BANDWIDTH, "overlap": OVERLAP,
    "join": JOIN,
}  # fmt: skip

STREAMING = {"start": START, "stream": STREAM, "bandwidth": BANDWIDTH}
CHANNELS = {"start": START, "block": BLOCK, "bandwidth": BANDWIDTH, "overlap": OVERLAP}
CHUNKED = {
    "kernel": KERNEL, "chunk": CHAIN, "peak": Constant(PEAK.meaning, 0.02, 1),
    "bandwidth": Constant(BANDWIDTH.meaning, 0.05, 1), "overlap": OVERLAP,
}  # fmt: skip
SHORT_TILE = replace(TILE, least=0)
LATENT_PREFILL = ("prefill latent attention", "prefill absorbed latent attention")
BY_HOST = Family("calls that the host launches one by one", (), {"host": HOST}, by_host(idle))


def _without(constants: Mapping[str, Constant], *names: str) -> dict[str, Constant]:
    """The constants except those named."""
    return {name: one for name, one in constants.items() if name not in names}


FAMILIES = (
    Family(
        "matrix products",
        ("gemm",),
        {"start": Constant(START.meaning, 0.05, 6), "tile": TILE, "peak": PEAK, "feed": FEED,
         "bandwidth": BANDWIDTH, "exposed": EXPOSED},
        gemm,
    ),
    Family("attention of many rows", ("prefill attention",), PREFILL, prefill),
    Family("attention of one new row", ("decode attention",), DECODE, decode),
    Family(
        "latent attention of many rows by Triton",
        ("prefill latent attention",),
        {"host": HOST, **_without(PREFILL, "start"), "tile": SHORT_TILE},
        by_host(projected),
        sources="triton",
        like="attention of many rows",
        instead={"host": (BY_HOST.name, "host")},
    ),
    # of one width: their times do not tell the softmax from the products that hide the softmax
    Family("latent attention of many rows", LATENT_PREFILL,
           {**_without(PREFILL, "softmax"), "tile": SHORT_TILE}, prefill,
           like="attention of many rows"),
    Family(
        "latent attention of one new row by Triton",
        ("decode latent attention",),
        {"host": HOST, "stream": STREAM, "bandwidth": BANDWIDTH},
        by_host(few_splits),
        sources="triton",
        like="attention of one new row",
        instead={"host": (BY_HOST.name, "host")},
    ),
    Family("latent attention of one new row", ("decode latent attention",),
           {**DECODE, "join": replace(JOIN, most=100)}, decode,
           like="attention of one new row"),
    Family("delta rule of many rows by FlashKDA", ("prefill Kimi delta rule",), CHUNKED,
           chunked(FLASH_KDA, 2), sources="^$|flashkda", like="delta rule of many rows by Triton",
           instead={"kernel": ("attention of many rows", "start"),
                    "peak": ("attention of many rows", "peak")}),
    Family("delta rule of many rows by FlashInfer", ("prefill gated delta rule",), CHUNKED,
           chunked(FLASHINFER, 1), sources="flashinfer", like="delta rule of many rows by Triton",
           instead={"kernel": ("attention of many rows", "start"),
                    "peak": ("attention of many rows", "peak")}),
    Family("delta rule of many rows by Triton",
           ("prefill gated delta rule", "prefill Kimi delta rule"),
           {"kernel": KERNEL, "chunk": CHAIN, "bandwidth": BANDWIDTH, "overlap": OVERLAP}, by_six,
           like="delta rule of many rows by FlashInfer",
           instead={"kernel": ("delta rule of one new row", "start")}),
    Family("delta rule of one new row", ("decode gated delta rule", "decode Kimi delta rule"),
           STREAMING, streaming),
    Family("Mamba-2 scan of many rows", ("prefill Mamba-2 scan",),
           {"kernel": KERNEL, "peak": PEAK, "bandwidth": BANDWIDTH, "overlap": OVERLAP}, by_five,
           like="attention of many rows",
           instead={"kernel": ("delta rule of one new row", "start")}),
    Family("Mamba-2 scan of one new row", ("decode Mamba-2 scan",), STREAMING, streaming,
           like="delta rule of one new row"),
    Family("short convolution of many rows", ("prefill Mamba-2 convolution",), CHANNELS, convolved),
    Family("short convolution of many rows of q, k and v",
           ("prefill gated delta convolution", "prefill Kimi convolution"),
           {"start": START, "bandwidth": BANDWIDTH}, copied, like="short convolution of many rows"),
    Family("short convolution of one new row", ("decode Mamba-2 convolution",), CHANNELS,
           convolved),
    Family("short convolution of one new row of q, k and v",
           ("decode gated delta convolution", "decode Kimi convolution"),
           {"start": START, "bandwidth": BANDWIDTH}, copied),
    BY_HOST,
)  # fmt: skip
"""All families; the first that covers a kernel and an implementation predicts it."""
SMALL = "decode Mamba-2 convolution"
"""The kernel whose launch and share of the bandwidth stand for those of kernels without a family:
of those with one, the most like a kernel that reads entries and writes as many."""
BY_NAME: Mapping[str, Family] = {family.name: family for family in FAMILIES}


def family_of(kernel: str, source: str) -> Family | None:
    """The family that predicts an implementation of a kernel, the default one for `source` "": of
    ("decode latent attention", "triton"), the one "by Triton". None if there is none."""
    return next((one for one in FAMILIES if one.covers(kernel, source)), None)
