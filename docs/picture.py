"""Draw the picture of README.md, what one more token moves: `python -m docs.picture`."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

import costmodel as cm

PATH = Path(__file__).parent / "one-token.svg"
MIXERS = {
    "self-attention": "-",
    "gqa{g=8}": "--",
    "self-attention+grouped+window{g=8,w=4096}": ":",
    "linear-attention": "-.",
    "mamba-2{n=128,P=64,N=128,G=8}": (0, (1, 3)),
}
"""Mixer -> its line, so that the picture can be read in grey."""
SIZES: dict[str, Any] = {"d": 4096, "n": 32}
POSITIONS = [2**k for k in range(8, 21)]
FIXED: dict[Any, Any] = {"svg.hashsalt": "costmodel", "svg.fonttype": "none", "font.size": 9}
"""The settings under which the same figures give the same file."""


def svg() -> str:
    """The picture as text: the bytes that one new token moves over its position, by mixer."""
    with rc_context(FIXED):
        figure = Figure(figsize=(6.8, 3.8), layout="constrained")
        axes = figure.subplots()
        for mixer, line in MIXERS.items():
            costs = cm.table(
                mixer,
                phase="inference",
                columns="mixer,traffic",
                dtype="bf16",
                t="l",
                l=POSITIONS,
                **SIZES,
            )
            axes.plot(POSITIONS, [row["traffic"] / 1e6 for row in costs], ls=line, label=mixer)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("position t of the new token")
        axes.set_ylabel("MB read and written, bf16")
        axes.set_title(", ".join(f"{letter} = {value:,}" for letter, value in SIZES.items()))
        axes.grid(alpha=0.3)
        figure.legend(frameon=False, loc="outside lower center", ncols=2)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


if __name__ == "__main__":
    PATH.write_text(svg(), encoding="utf-8")
