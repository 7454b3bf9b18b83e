"""What does llama.cpp 0.5.0 reserve: a slot for each sequence, as long as the context?

Keys and values have a cell for each token of the context, rounded up to 256 (`llama_context`); a
window has cells for itself and for a step, rounded up to 256 (`llama_kv_cache_iswa`), in the
architectures whose loader sets it, else as many as the context. Heads that share a latent row have
no values (`is_mla`). Rows of a convolution and recurrent states are f32 (`llama_memory_recurrent`).
"""

from __future__ import annotations

from collections.abc import Iterator

from costmodel.errors import Unanswered
from costmodel.networks.engines.reserved import Reserved, Tensor
from costmodel.networks.held import Held, HeldArray, Holding
from costmodel.program.element_types import QUANTISED, Dtypes

PADDED = 256
"""Cells are a multiple of this number."""

STEP = 512
"""Tokens of a step, `n_ubatch`."""

CACHED = ("fp16", "bf16", "fp32", "q8_0", "q4_0")
"""The element types of keys and values that `--cache-type-k` takes, of those known here."""

WINDOWED = frozenset(
    ("afmoe", "cohere2", "exaone4", "gemma2", "gemma3_text", "gpt_oss", "llama4_text", "olmo3")
)  # fmt: skip
"""Types of models whose windows llama.cpp reads (of Llama 4 as chunks of 8192 tokens, the width in
all its files); other types hold the keys and values of all tokens of the context."""


def reserved(held: Holding, typed: Dtypes, context: int, batch: int) -> Reserved:
    """The tensors that llama.cpp reserves for `batch` slots (a sequence each) of `context` tokens,
    the bytes that one more token of a sequence takes, and sentences for a reader. Keys and values
    are f16 unless the user names a type (`typed.cache`); Unanswered for a type not in `CACHED`."""
    rows = typed.cache or "fp16"  # the element type of keys and values
    if rows not in CACHED:
        raise Unanswered(
            f"llama.cpp holds no keys and values in {rows}: --cache-dtype takes {', '.join(CACHED)}"
        )
    tensors = [t for part in held.parts for t in _tensors(held, part, rows, context, batch)]
    # cells grow by `PADDED` at a time: a further token takes its share of that step
    grown = [t for part in held.parts for t in _tensors(held, part, rows, context + PADDED, batch)]
    token = sum(t.bytes for t in grown) - sum(t.bytes for t in tensors)
    says = []
    if any(t.name in ("cache_k", "cache_v") for t in tensors):
        says.append(f"keys and values are {rows}, in cells for a multiple of {PADDED} tokens")
    windows = {w for part in held.parts for a in part.arrays if (w := _window(part, a))}
    if windows:
        read = held.network.described.model_type in WINDOWED
        sizes = " and ".join(str(window) for window in sorted(windows))
        way = f"has cells for {STEP} tokens more" if read else "is not read for this type"
        says.append(f"a window of {sizes} {way}")
    if any(t.name in ("cache_r", "cache_s") for t in tensors):
        says.append("rows of convolutions and recurrent states are fp32")
    return Reserved(tuple(tensors), token // (PADDED * batch), tuple(says))


def _tensors(held: Holding, part: Held, dtype: str, context: int, batch: int) -> Iterator[Tensor]:
    """Yield the tensors of a part in one role (`part.role`: cache or state) for `batch` sequences:
    recurrent states (`cache_s`), rows of convolutions (`cache_r`), or keys and values (`cache_k`,
    `cache_v`) of type `dtype`, in cells for `context` tokens. An array's `width` is the entries of
    a token, its `row` those of one head. Unanswered for a row, of a head or latent, that does not
    fill whole blocks of a quantised type."""
    name, layers = part.use.name, part.layers
    if part.role == "state":
        yield Tensor(name, "cache_s", layers, (sum(a.width for a in part.arrays), batch), "fp32")
        return
    joined = sum(a.width * (a.most or 0) for a in part.arrays if a.convolved)  # entries of k-1 rows
    if joined:
        yield Tensor(name, "cache_r", layers, (joined, batch), "fp32")
    rows = [array for array in part.arrays if not array.convolved]
    # without an axis of heads: a latent row and the shared keys, which stand in one tensor
    latent = all(len(array.axes) == 1 for array in rows)
    widths = [sum(a.width for a in rows)] if latent else [a.width for a in rows]
    entries, _ = QUANTISED.get(dtype, (1, 1))  # entries of a block
    for row in widths if latent else [a.row for a in rows]:
        if row % entries:
            raise Unanswered(
                f"{name}: {dtype} needs rows of a multiple of {entries} entries, and a row of the "
                f"cache has {row} entries: choose --cache-dtype bf16"
            )
    cells = _padded(context)
    window = _window(part, rows[0]) if rows else None
    if window and held.network.described.model_type in WINDOWED:
        cells = _padded(min(cells, window + STEP))
    for called, width in zip(("cache_k", "cache_v"), widths, strict=False):
        if width:
            yield Tensor(name, called, layers, (width, cells, batch), dtype)


def _padded(cells: int) -> int:
    """The least multiple of `PADDED` that is not below `cells`: 256 for 1 and for 256."""
    return -(-cells // PADDED) * PADDED


def _window(part: Held, array: HeldArray) -> int | None:
    """The most tokens that a window or chunk has, the new one included; None for an array without
    a window, a state, or the rows of a convolution."""
    if part.role == "state" or array.convolved or array.most is None:
        return None
    return array.most + 1
