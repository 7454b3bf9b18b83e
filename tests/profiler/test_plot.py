"""Does a figure show every series with theory and interval, reproducibly, and name what is
missing?"""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import run
from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError
from profiler.records.store import append
from profiler.scaling import plot
from tests.growing import along_l, record, topped

LENGTHS = (4, 8, 16)
STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def records() -> list[Measurement]:
    return [
        *along_l("me", "toeplitz", LENGTHS, lambda l: 1e-6 * l, launches=lambda l: 1e-9),
        *along_l("me", "fft", LENGTHS, lambda l: 2e-6 * l, launches=lambda l: 1e-9, noise=0.1),
        *along_l("self-attention", "explicit", LENGTHS, lambda l: 1e-7 * l * l),
    ]


def drawn_svg(path: Path, found: list[Measurement], asked: plot.PlotSelection | None = None) -> str:
    plot.draw(found, asked or plot.PlotSelection(("l",)), path)
    return path.read_text()


@pytest.mark.parametrize("format_", plot.FORMATS)
def test_each_format_is_written_and_repeats_to_the_byte(tmp_path: Path, format_: str) -> None:
    found = records()
    files = [tmp_path / f"{k}.{format_}" for k in range(2)]
    for file in files:
        plot.draw(found, plot.PlotSelection(("l",)), file)
    first, second = (file.read_bytes() for file in files)
    assert first.startswith(STARTS[format_]) and len(first) > 5000
    assert first == second


def test_the_figure_names_series_theory_and_its_constant(tmp_path: Path) -> None:
    text = drawn_svg(tmp_path / "a.svg", records())
    for label in ("me toeplitz", "me fft", "self-attention explicit (n = 8)"):
        assert label in text
    assert "me toeplitz: no theory (the records hold no ceiling of arithmetic of the device" in text
    text = drawn_svg(tmp_path / "b.svg", topped(records(), product_fp32=1e12))
    assert "me toeplitz: operations at 1 Top/s, from measured ceilings (product fp32)" in text
    assert "live set at 1 B/B, not scaled" in text
    assert "forward pass, fp32, cpu, b = 1, d = 64" in text


def test_what_is_missing_stands_in_its_panel_and_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a.svg"
    told = plot.draw(records(), plot.PlotSelection(("l", "d")), file)
    assert "not drawn: energy needs an NVIDIA GPU" in file.read_text()
    assert told[0] == "no two records differ in d alone: no panel against d"
    assert any("energy, gross" in t and t.endswith("energy needs an NVIDIA GPU") for t in told)


def lengths_at(widths: range) -> list[Measurement]:
    """A column of panels for each width, without energy."""
    return [
        each for d in widths for each in along_l("me", "toeplitz", LENGTHS, lambda l: 1e-6 * l, d=d)
    ]


def test_a_reason_is_said_once_with_how_many_records_it_is_of(tmp_path: Path) -> None:
    from msgspec.structs import replace

    found = lengths_at(range(1, 11))
    found[0] = replace(found[0], reasons={"energy": "NVML: no permission"})
    told = plot.draw(found, plot.PlotSelection(("l",)), tmp_path / "a.svg")
    assert told == [
        f"energy, gross of {len(found) - 1} records is not drawn: energy needs an NVIDIA GPU",
        "energy, gross of 1 record is not drawn: NVML: no permission",
    ]


@pytest.mark.parametrize("columns", [1, 2, 3, 5, 10, plot.MOST])
def test_many_columns_go_on_below_and_the_figure_is_no_strip(columns: int) -> None:
    found, _ = plot.panels(lengths_at(range(1, columns + 1)), ("l",))
    assert len(found) == columns
    figure = plot.drawn_figure(found, plot.Colours(panel for column in found for panel in column))
    width, height = figure.get_size_inches()
    strip = plot.inches(plot.rows_of_panels(found, columns))
    assert max(width, height) <= max(strip) and max(width, height) <= 32
    assert max(width, height) <= 3 * min(width, height)
    titles = [axes.get_title().replace("\n", " ") for axes in figure.axes]
    assert [t for t in titles if t] == [column[0].setting for column in found]
    assert len(figure.axes) == columns * len(plot.DRAWN)


def test_energy_is_drawn_where_it_was_measured(tmp_path: Path) -> None:
    found = along_l("me", "toeplitz", LENGTHS, lambda l: 1e-6 * l, energy=lambda l: 1e-3 * l)
    text = drawn_svg(tmp_path / "a.svg", found)
    assert "not drawn" not in text and "no theory (the least energy of an operation" in text


def test_mixers_with_other_sizes_of_their_own_share_a_panel() -> None:
    columns, problems = plot.panels(records(), ("l",))
    assert problems == [] and len(columns) == 1
    latency = columns[0][0]
    assert {series.mixer for series, _ in latency.drawn} == {"me", "self-attention"}


def test_phases_and_types_have_columns_of_their_own() -> None:
    found = [
        record("me", "toeplitz", {"b": 1, "l": l, "d": 2}, 1.0, phase=phase, dtype=dtype)
        for l in (2, 4) for phase in ("training", "training-step") for dtype in ("fp32", "bf16")
    ]  # fmt: skip
    columns, _ = plot.panels(found, ("l",))
    assert len(columns) == 4
    asked = plot.PlotSelection(("l",), phases=("forward",), dtypes=("float32",))
    columns, _ = plot.panels(asked.kept(found), ("l",))
    assert len(columns) == 1


def test_colours_signs_and_lines_do_not_repeat_for_many_series() -> None:
    columns, _ = plot.panels(records(), ("l",))
    look = plot.Colours(panel for column in columns for panel in column)
    look.place = {str(k): k for k in range(28)}
    seen = {tuple(look.of(str(k)).values()) for k in range(28)}
    assert len(seen) == 28
    assert len({look.of(str(k))["color"] for k in range(8)}) == 8


def test_a_launch_bound_point_is_hollow(tmp_path: Path) -> None:
    found = along_l("me", "toeplitz", LENGTHS, lambda l: 1e-6 * l, launches=lambda l: 4e-6)
    assert "hollow: bound by launches" in drawn_svg(tmp_path / "a.svg", found)
    assert "hollow" not in drawn_svg(tmp_path / "b.svg", records()[:6])


def test_a_mixer_without_theory_says_why(tmp_path: Path) -> None:
    from msgspec.structs import replace

    found = [replace(r, mixer="gone-mixer") for r in records()[:6]]
    assert "no theory" in drawn_svg(tmp_path / "a.svg", found)


def test_nothing_left_and_too_much_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="no record is left to draw: there are me:fft"):
        plot.draw(records(), plot.PlotSelection(("l",), names=("she",)), tmp_path / "a.svg")
    with pytest.raises(MeasureError, match="nothing can be drawn"):
        plot.draw(records(), plot.PlotSelection(("d",)), tmp_path / "a.svg")
    many = [
        record("me", "toeplitz", {"b": 1, "l": l, "d": d}, 1.0)
        for l in (2, 4) for d in range(1, plot.MOST + 2)
    ]  # fmt: skip
    with pytest.raises(MeasureError, match="choose by --along"):
        plot.draw(many, plot.PlotSelection(("l",)), tmp_path / "a.svg")
    assert not (tmp_path / "a.svg").exists()


def written(path: Path) -> Path:
    for each in records():
        append(path, each)
    return path


def test_the_command_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, file = written(tmp_path / "runs.jsonl"), tmp_path / "a.png"
    assert run(["plot", str(runs), "-o", str(file), "--along", "l", "--only", "me:fft"]) == 0
    assert file.read_bytes().startswith(STARTS["png"])
    assert "energy needs an NVIDIA GPU" in capsys.readouterr().err
    assert run(["plot", str(runs), "-o", str(file)]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ([], "name one, such as -o"),
        (["-o", "a.jpg"], "png"),
        (["-o", "a.png", "--dtype", "fp1"], "fp1"),
        (["-o", "a.png", "--only", ""], "--only is empty: give it a value, or leave it out"),
        (["-o", "a.png", "--phase", "training,"], "--phase ''"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    typed: list[str],
    said: str,
) -> None:
    runs = written(tmp_path / "runs.jsonl")
    monkeypatch.chdir(tmp_path)
    assert run(["plot", str(runs), *typed]) == 2
    shown = capsys.readouterr()
    assert said in shown.err and shown.err.count("\n") == 1


def test_matplotlib_is_loaded_only_where_something_is_drawn() -> None:
    import subprocess
    import sys

    asked = "import sys, cli, profiler.scaling.plot; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0


def test_a_last_token_that_moves_and_one_that_stays_are_drawn_apart() -> None:
    sizes = ((8, 8), (16, 8), (16, 16))
    found = [
        record("self-attention", "explicit", {"b": 1, "l": l, "t": t, "d": 64, "n": 8}, 1e-6,
               phase="inference")
        for l, t in sizes
    ]  # fmt: skip
    columns, _ = plot.panels(found, ("l",))
    settings = {column[0].setting: len(column[0].drawn) for column in columns}
    alike = "one new token, fp32, cpu, b = 1"
    assert settings == {f"{alike}, d = 64, n = 8": 1, f"{alike}, t = 8, d = 64, n = 8": 1}
