"""Are the figures of boards read, and is a board or figure that is not there named?"""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.data import data_dir
from costmodel.errors import BoardError
from costmodel.prediction.boards import UNITS, board, read_board

SHIPPED = sorted(data_dir("devices").glob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_figure_of_a_board_has_a_source(path: Path) -> None:
    found = read_board(path)
    assert {"sms", "clock", "memory_bandwidth", "l2_bytes", "power_limit"} <= {*found.figures}
    assert found["matrix.bf16"] > found["vector.fp32"]
    for name, figure in found.figures.items():
        assert (
            name.split(".")[0] in UNITS and figure.label == "datasheet" and len(figure.source) > 9
        )


def test_peaks_follow_from_multiprocessors_and_clock() -> None:
    """A multiprocessor of a generation executes a power of two of operations a cycle."""
    for path in SHIPPED:
        one = read_board(path)
        each = one["matrix.bf16"] / one["sms"] / one["clock"]
        nearest = min((2**k for k in range(8, 14)), key=lambda power: abs(each / power - 1))
        assert each == pytest.approx(nearest, rel=0.08), one.name


def test_a_board_has_other_names() -> None:
    for alias, name in (("a100", "a100_sxm"), ("h100", "h100_sxm"), ("h200", "h200_sxm"),
                        ("b200", "b200_sxm"), ("rtx_pro_6000", "rtx_pro_6000_server")):  # fmt: skip
        assert board(alias) == board(name)


OWN = """
name = "Mine"
[[figures]]
label = "measured"
source = "a copy of 1 GiB"
memory_bandwidth = 1e11
"""


def test_a_board_of_ones_own_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    mine = board(str(path))
    assert mine["memory_bandwidth"] == 1e11 and mine.figures["memory_bandwidth"].label == "measured"
    assert board("mine", tmp_path) == mine
    with pytest.raises(
        BoardError, match=r"board mine has no figure 'matrix.bf16': add it to .*mine"
    ):
        mine["matrix.bf16"]


def test_an_unknown_board_is_named_with_the_nearest() -> None:
    with pytest.raises(
        BoardError, match=r"no board 'h10': did you mean 'h100'\? expected one of a1"
    ):
        board("h10")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = 3\nfigures = []", "expected the keys name, aliases and figures, got 'name'"),
        ("name = 'Mine'", r"expected name, aliases and \[\[figures\]\]"),
        (OWN.replace("source", "sauce"), "expected a source in each"),
        (OWN.replace("memory_bandwidth", "bandwidth"), "expected a figure of .*; got 'bandwidth'"),
        (OWN.replace("1e11", "-1"), "memory_bandwidth must be a positive number, got -1"),
        (OWN.replace("1e11", "true"), "memory_bandwidth must be a positive number, got True"),
        (OWN + "matrix = 3", "expected figures by dtype for matrix, got 3"),
        (OWN + "matrix = { bf17 = 3 }", "expected a dtype of .*; got 'bf17'"),
        (
            OWN + OWN.replace('name = "Mine"', ""),
            "the figure 'memory_bandwidth' stands there twice",
        ),
        ("name = ", "Invalid value"),
    ],
)
def test_a_file_that_is_no_board_is_refused_in_a_sentence(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(BoardError, match=said):
        board(str(path))
    with pytest.raises(BoardError, match="No such file"):
        board("nowhere.toml")
