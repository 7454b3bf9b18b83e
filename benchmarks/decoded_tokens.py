"""Predicted microseconds and millijoules of one decoded token of a layer, and what binds.

    python -m benchmarks.decoded_tokens

Layers of d = 4096 in bf16 on H100 and H200, over context and batch. A token's time is that of a
step for the whole batch divided by the batch. Constants were fitted on other boards
(`benchmarks.published_kernels`); the floor is what the datasheet allows.
"""

from __future__ import annotations

from typing import Any

import costmodel as cm

LAYERS = {
    "GQA, 32 heads, 8 of keys": ("self-attention+grouped{n=32,g=8,h=128}", {}),
    "MLA, 32 heads, absorbed": ("mla:absorbed", {"n": 32, "K": 128, "V": 128, "R": 64, "c": 512}),
    "Mamba-2, 128 heads of 64": ("mamba-2", {"n": 128, "P": 64, "N": 128, "G": 8}),
    "Gated DeltaNet, 32 heads, 16 of keys": ("gdn", {"n": 32, "g": 16, "K": 128, "V": 128}),
    "KDA, 32 heads": ("kda", {"n": 32}),
}
"""Layer -> its name in the catalogue, and its sizes."""
NUMBERS = ["floor", "predicted_time", "predicted_low", "predicted_high", "predicted_energy",
           "predicted_energy_low", "predicted_energy_high"]  # fmt: skip
CONTEXTS = (4096, 32768, 131072)
BATCHES = (1, 16, 128)


def cell(number: int | None, batch: int, digits: int) -> str:
    """Thousandths of a number, for one token of a batch."""
    return "-" if number is None else f"{number / 1e3 / batch:.{digits}f}"


def main() -> None:
    """Print a table for each board."""
    for board in ("h100", "h200"):
        print(f"\n{board}: microseconds and millijoules a decoded token of one layer\n")
        print(f"{'layer':<38}{'context':>8}{'batch':>6}{'floor':>9}{'predicted':>11}"
              f"{'interval':>18}{'mJ':>9}{'interval':>18}  bound")  # fmt: skip
        for layer, (name, sizes) in LAYERS.items():
            for context in CONTEXTS:
                for batch in BATCHES:
                    at: dict[str, Any] = {
                        **sizes,
                        "d": 4096,
                        "l": context,
                        "t": context,
                        "b": batch,
                    }
                    (row,) = cm.table(
                        name,
                        phase="inference",
                        dtype="bf16",
                        board=board,
                        columns=["bound", *NUMBERS],
                        **at,
                    )
                    floor, time, low, high, energy, least, most = (
                        cell(row[column], batch, 2) for column in NUMBERS
                    )
                    print(f"{layer:<38}{context:>8}{batch:>6}{floor:>9}"
                          f"{time:>11}{f'{low} to {high}':>18}"
                          f"{energy:>9}{f'{least} to {most}':>18}  {row['bound']}")  # fmt: skip


if __name__ == "__main__":
    main()
