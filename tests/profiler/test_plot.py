"""Does a figure show what was asked, with its values right, its panels alike and its text apart?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import costmodel as cm
from cli import run
from costmodel.backwards.crossover import crossover
from costmodel.prediction.boards import Board, board
from costmodel.prediction.columns import WORK
from costmodel.program.chosen_sizes import sizes_in_python
from costmodel.questions.question import Figure
from profiler.commands.plotting import listed
from profiler.plots import drawing, measured
from profiler.plots.kinds import KINDS, OfMixers, OfRecords
from profiler.plots.measured import PlotSelection
from profiler.plots.on_boards import roofline
from profiler.plots.picture import Axis, Line, Panel, Picture
from profiler.reconcile.ladder import ladders
from profiler.reconcile.levels import Ladder
from profiler.records.measurement import Measurement
from profiler.records.reading import MeasureError
from profiler.records.store import append
from profiler.sweep.recorded import recorded
from tests.growing import along_l, record, with_rates
from tests.recorded import RUNS

LENGTHS = (4, 8, 16)
STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def records() -> list[Measurement]:
    return [
        *along_l("me", "toeplitz", LENGTHS, lambda l: 1e-6 * l, launches=lambda l: 1e-9),
        *along_l("me", "fft", LENGTHS, lambda l: 2e-6 * l, launches=lambda l: 1e-9, noise=0.1),
        *along_l("self-attention", "explicit", LENGTHS, lambda l: 1e-7 * l * l),
    ]


def of_records(
    found: list[Measurement], *along: str, on: Board | None = None, **asked: Any
) -> Picture:
    return measured.picture(found, PlotSelection(along or ("l",), **asked), on)


MINE = with_rates(matrix_fp32=1e12)


def of_mixers(*mixers: str, over: str = "l", kind: str = "curves", **asked: Any) -> Picture:
    sizes = sizes_in_python({x: asked.pop(x) for x in [*asked] if len(x) == 1})
    return KINDS[kind].values(OfMixers(mixers, over=tuple(over), sizes=sizes, **asked))


H100 = board("h100")


def of_runs(kind: str, on: Board | None = H100) -> Picture:
    found, _ = recorded([RUNS])
    return KINDS[kind].values(OfRecords(found, PlotSelection(), on))


def a_picture(kind: str) -> Picture:
    if kind == "measured":
        return of_records(records(), on=MINE)
    if kind in ("waterfall", "roofline", "floors"):
        return of_runs(kind)
    over = "ld" if kind == "winners" else "l"
    return of_mixers("self-attention", "linear-attention", "he", over=over, kind=kind)


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("format_", "kind"),
    [("png", "curves"), ("pdf", "measured"), *(("svg", kind) for kind in KINDS)],
)
def test_each_format_is_written_and_repeats_to_the_byte(
    tmp_path: Path, format_: str, kind: str
) -> None:
    files = [tmp_path / f"{k}.{format_}" for k in range(2)]
    for file in files:
        drawing.write(a_picture(kind), KINDS[kind].draw, file, 3.3)
    first, second = (file.read_bytes() for file in files)
    assert first.startswith(STARTS[format_]) and len(first) > 5000
    assert first == second


def many(number: int) -> Picture:
    """Panels with long names of series and long titles."""
    lines = tuple(
        Line(f"self-attention+grouped implementation {k}", (128, 4096), (1e-6 * (k + 1), 1e-2))
        for k in range(6)
    )
    x, y = Axis("sequence length, l", "sizes", (128, 4096)), Axis("latency, hot", "s")
    title = "one new token, bf16, cuda, b = 16, d = 4096, n = 32, g = 8, k = 4"
    return Picture(
        tuple(
            Panel(f"{title}, m = {k}", x, y, lines=lines, marks=(256, 260)) for k in range(number)
        ),
        ("derived: operations at 1 Top/s, matrix.fp32 of mine, measured",),
        together=2,
    )


@pytest.mark.grid(6)
@pytest.mark.parametrize("width", [None, 3.3, 6.9])
@pytest.mark.parametrize("kind", [*KINDS, 1, 6])
def test_panels_are_of_one_size_and_nothing_overlaps(kind: str | int, width: float | None) -> None:
    picture = many(kind) if isinstance(kind, int) else a_picture(kind)
    draw = drawing.draw_lines if isinstance(kind, int) else KINDS[kind].draw
    with_style(lambda: held_apart(drawing.drawn(picture, draw, width), picture, width))


def with_style(check: Any) -> None:
    import matplotlib as mpl

    style: Any = dict(drawing.STYLE)
    with mpl.rc_context(style):
        check()


def held_apart(figure: Any, picture: Picture, width: float | None) -> None:
    """All that is written lies inside the figure, the panels are as large as each other, and no
    panel with its ticks and names touches another, or the legend."""
    figure.draw_without_rendering()
    panels = figure.axes
    assert len(panels) == len(picture.panels)
    across = len({round(axes.get_position().x0, 3) for axes in panels})
    wide, high = figure.get_size_inches()
    assert width is None or wide == pytest.approx(width)
    assert max(wide, high) <= 3.5 * min(wide, high) or width is not None
    assert len({(round(a.get_position().width, 2), round(a.get_position().height, 2))
                for a in panels}) == 1  # fmt: skip
    assert all(axes.get_position().width * across >= 0.5 for axes in panels)
    boxes = [axes.get_tightbbox() for axes in panels] + [
        e.get_window_extent() for e in figure.legends
    ]
    for box in boxes:
        assert box.x0 >= -1 and box.y0 >= -1
        assert box.x1 <= wide * figure.dpi + 1 and box.y1 <= high * figure.dpi + 1
    for one, other in combinations(boxes, 2):
        apart = one.x1 <= other.x0 + 1 or other.x1 <= one.x0 + 1
        assert apart or one.y1 <= other.y0 + 1 or other.y1 <= one.y0 + 1


def test_a_curve_has_the_values_of_the_question_and_the_break_evens_of_crossover() -> None:
    mixers = ("self-attention", "linear-attention")
    (panel,) = of_mixers(*mixers, d=64, n=8).panels
    found = crossover(*mixers, over="l", d=64, n=8)
    for line in panel.lines:
        assert line.x[0] < line.x[-1] == 65536
        for x, y in zip(line.x, line.y, strict=True):
            assert y == found.values(int(x))[line.name]
    starts = {one.first for one in found.ranges} - {1}
    assert starts and {*panel.marks} == starts
    assert (panel.x.name, panel.y.name) == ("sequence length, l", "total (operations)")
    (note,) = of_mixers(*mixers, "mamba-2", d=1024, n=16).notes
    assert note == "mamba-2 has the least throughout; other crossings are not marked"
    (note,) = of_mixers(*mixers, "self-attention+bias", by="parameters", over="d").notes
    assert note.startswith("self-attention = linear-attention have the least throughout")


def test_curves_without_break_evens_say_why_and_what_lists_them() -> None:
    """The remainder by 16 decides; the exponentials of one mixer are none, and are not drawn."""
    chunks = of_mixers(
        "linear-attention:chunked", "linear-attention", over="t", phase="inference", C=16
    )
    assert chunks.notes == () and chunks.panels[0].marks == ()
    assert chunks.missing == (
        "break-evens are not marked: the remainder of t decides: `costmodel crossover` lists the "
        "ranges",
    )
    three = of_mixers("self-attention", "gqa", "she", by="exp", d=64, n=8, g=2)
    assert three.notes == ("no break-even at these l; `costmodel crossover` tries every l",)
    assert three.missing == ("she is not drawn: it is zero there",)


def test_one_mixer_and_given_sizes_are_drawn() -> None:
    (panel,) = of_mixers("she", by="traffic", l=(100, 200, 300)).panels
    (line,) = panel.lines
    assert [*line.x] == [100, 200, 300] and not panel.marks
    assert panel.y == Axis("compulsory traffic", "B")
    assert line.y[1] == cm.table("she", l=200, columns="traffic")[0]["traffic"]


def test_break_evens_are_marked_beside_a_mixer_without_the_phase() -> None:
    mixers = ("self-attention", "linear-attention")
    asked: dict[str, Any] = {"over": "t", "phase": "inference", "by": "state"}
    picture = of_mixers(*mixers, "performer", **asked)
    assert picture.panels[0].marks == of_mixers(*mixers, **asked).panels[0].marks != ()
    assert [said.partition(" is not")[0] for said in picture.missing] == ["performer"]


def test_a_size_that_does_not_fit_is_left_out_and_told() -> None:
    picture = of_mixers("self-attention", "he", over="d", d=(12, 16, 24), n=8)
    lines = {line.name: line for line in picture.panels[0].lines}
    assert [*lines["self-attention"].x] == [16, 24] and [*lines["he"].x] == [12, 16, 24]
    assert "self-attention is not drawn at d = 12: this size does not fit" in picture.missing


def test_a_map_names_the_candidates_that_have_the_least_nowhere() -> None:
    mixers = ("self-attention", "mamba-2", "gated-deltanet")
    picture = of_mixers(*mixers, kind="winners", over="ld", d=(64, 256))
    assert {*picture.names} == {"self-attention", "gated-deltanet"}
    assert picture.notes == ("nowhere the least: mamba-2",)
    assert of_mixers(*mixers[::2], kind="winners", over="ld", d=(64, 256)).notes == ()


def test_a_region_of_the_map_is_where_its_candidate_has_the_least() -> None:
    mixers = ("self-attention", "linear-attention", "mamba-2")
    (panel,) = of_mixers(*mixers, over="ld", kind="winners", d=(64, 512)).panels
    assert {region.name for region in panel.regions} <= {*mixers}  # no entry for a single size
    assert len({region.name for region in panel.regions}) > 1
    for region in panel.regions:
        low, high = region.y
        (d,) = [d for d in (64, 512) if low < d < high]
        found = crossover(*mixers, over="l", d=d)
        for l in (region.x[0], (region.x[0] + region.x[1]) // 2, region.x[1] - 1):
            assert found.least(int(l)) == (region.name,)


def test_a_waterfall_leads_from_the_equations_to_the_call() -> None:
    for panel in of_runs("waterfall").panels:
        first, *_, last = panel.bars
        assert (first.name, last.name) == ("equations", "dispatched")
        for one, two in pairwise(panel.bars):
            assert two.total or two.start == one.end
            assert not two.total or two.end == one.end
    conv, fft, _ = of_runs("waterfall").panels
    (dense,) = [bar for bar in conv.bars if not bar.total]
    assert dense.name == "dense" and dense.end > dense.start
    (form,) = [bar for bar in fft.bars if not bar.total]
    assert form.name == "form=fft" and form.end < form.start


def test_a_roofline_holds_rates_against_the_limits_of_a_board() -> None:
    forward, _ = of_runs("roofline").panels
    (limit,) = [line for line in forward.lines if line.limit]
    assert forward.title.endswith(f"measured on cpu; limits of {H100.title}")
    peak, bandwidth = H100["vector.fp32"], H100["memory_bandwidth"]
    assert limit.name == "peak of vector units, fp32"
    assert limit.y == pytest.approx([min(peak, bandwidth * x) for x in limit.x])
    found, _ = recorded([RUNS])
    conv = next(line for line in forward.lines if line.name == "she conv")
    dispatched = of_runs("waterfall").panels[0].bars[-1].end
    assert conv.y == pytest.approx((dispatched / found[0].readings["latency"].value,))
    bytes_ = cm.table("she", l=128, d=128, columns="traffic")[0]["traffic"]
    assert conv.x == pytest.approx((dispatched / bytes_,))
    with pytest.raises(MeasureError, match="no board is given: name one"):
        of_runs("roofline", None)


def test_a_call_whose_bytes_are_unknown_is_left_out_of_a_roofline_with_that_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_bytes(records: Sequence[Measurement]) -> tuple[list[Ladder], list[str]]:
        first, *others = ladders(records)[0]
        cost, reasons = first.rungs["5"] | {"compulsory_bytes": None}, {"compulsory_bytes": "why"}
        unmoved = replace(first, rungs=dict(first.rungs) | {"5": cost}, reasons=reasons)
        return [unmoved, *others], []

    monkeypatch.setattr("profiler.plots.on_boards.ladders", without_bytes)
    assert "she conv is not drawn: why" in of_runs("roofline").missing


def test_a_board_without_a_rate_in_the_type_of_the_records_is_named() -> None:
    found, _ = recorded([RUNS])
    doubles = [replace(m, dtype="fp64") for m in found]
    with pytest.raises(MeasureError, match="fp64"):
        roofline(doubles, board("rtx_4090"))


@pytest.mark.parametrize(("name", "heads"), [("h100", 32), ("h200", 256)])
def test_floors_lead_to_the_predicted_time_and_the_longest_binds(name: str, heads: int) -> None:
    """With 256 heads on H200, the calls alone sum to less than the exponentials of all take."""
    sizes: dict[str, Any] = {"d": 4096, "n": heads, "l": 65536}
    asked = {**sizes, "l": (65536,), "dtypes": ("bf16", None, None, None), "board": board(name)}
    (panel,) = of_mixers("self-attention", kind="floors", **asked).panels
    *floors, rest, time = panel.bars
    (row,) = cm.table("self-attention", board=name, dtype="bf16", phase="training",
                      columns="floor,bound,predicted_time", **sizes)  # fmt: skip
    assert [bar.end for bar in floors] == sorted(bar.end for bar in floors)
    assert floors[-1].name == f"{row['bound']}: binds"
    assert floors[-1].end * 1e9 == pytest.approx(row["floor"], abs=1)
    assert (rest.start, rest.end) == (floors[-1].end, time.end)
    assert time.name == "predicted"
    assert time.end * 1e9 == pytest.approx(row["predicted_time"], abs=1)


def test_a_span_that_is_not_known_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    without = Figure("span", "levels", lambda case: "not derived")
    monkeypatch.setitem(WORK, "span", without)
    picture = of_mixers("she", kind="floors", l=(67,), d=61, board=board("h100"))
    assert "span" not in str([bar.name for bar in picture.panels[0].bars])
    assert any("no bar of the span" in said for said in picture.missing)
    records_ = of_runs("floors")
    assert any("no bar of the span" in said for said in records_.missing)


def test_rounds_of_a_sweep_share_a_waterfall_and_a_reason() -> None:
    found, _ = recorded([RUNS])
    once, twice = (
        KINDS["waterfall"].values(OfRecords(several, PlotSelection(), H100))
        for several in (found, [*found, *found])
    )
    assert twice == once
    with pytest.raises(MeasureError) as refused:
        KINDS["floors"].values(OfRecords([*found, *found], PlotSelection(), None))
    assert str(refused.value).count("no board is given") == 1
    assert f"and {len(found) - 1} more" in str(refused.value)


def test_floors_of_a_record_lead_to_the_measured_time() -> None:
    found, _ = recorded([RUNS])
    for record_, panel in zip(found, of_runs("floors").panels, strict=True):
        *floors, rest, time = panel.bars
        assert "products" in {bar.name.partition(":")[0] for bar in floors}
        assert (time.name, time.end) == ("measured", record_.readings["latency"].value)
        assert rest.start == max(bar.end for bar in floors)
        assert panel.title.endswith(f"{record_.dtype} on {record_.device}")
    assert f"limits of {H100.title}" in of_runs("floors").notes[0]


def test_a_figure_names_the_constant_of_theory_and_tells_where_there_is_none() -> None:
    picture = of_records(records())
    assert "me toeplitz" in picture.names and "self-attention explicit (n = 8)" in picture.names
    assert any(said.startswith("no theory beside latency, hot of me toeplitz") and
               "no board is given" in said for said in picture.missing)  # fmt: skip
    picture = of_records(records(), on=MINE)
    assert picture.notes == (
        "derived: operations at 1 Top/s, matrix.fp32 of mine, measured; the equations' live set in "
        "bytes, not scaled",
    )
    assert picture.panels[0].title == "forward pass, fp32, cpu, b = 1, d = 64"


def test_a_quantity_that_was_not_measured_has_no_panel_and_is_told() -> None:
    picture = of_records(records(), "l", "d")
    assert [panel.y.name for panel in picture.panels] == ["latency, hot", "peak memory"]
    assert picture.missing[0] == "no two records differ in d alone: no panel against d"
    assert any("energy, gross" in t and t.endswith("needs an NVIDIA GPU") for t in picture.missing)


def lengths_at(widths: range) -> list[Measurement]:
    return [
        each for d in widths for each in along_l("me", "toeplitz", LENGTHS, lambda l: 1e-6 * l, d=d)
    ]


def test_a_reason_is_said_once_with_how_many_records_it_is_of() -> None:
    from msgspec.structs import replace

    found = lengths_at(range(1, 11))
    found[0] = replace(found[0], reasons={"energy": "NVML: no permission"})
    assert of_records(found, on=MINE).missing == (
        f"energy, gross of {len(found) - 1} records is not drawn: energy needs an NVIDIA GPU",
        "energy, gross of 1 record is not drawn: NVML: no permission",
    )


def test_energy_is_drawn_where_it_was_measured() -> None:
    found = along_l("me", "toeplitz", LENGTHS, lambda l: 1e-6 * l, energy=lambda l: 1e-3 * l)
    picture = of_records(found)
    energy = [panel for panel in picture.panels if panel.y.unit == "J"]
    assert [line.y for line in energy[0].lines] == [pytest.approx((4e-3, 8e-3, 16e-3))]
    assert any("the least energy of an operation" in said for said in picture.missing)


def test_measured_values_have_their_intervals_and_theory_beside() -> None:
    latency, memory = of_records(records(), on=MINE).panels
    found = {line.name: line for line in latency.lines if not line.beside}
    low, high = found["me fft"].intervals[1]
    assert low < found["me fft"].y[1] < high
    assert [line.name for line in memory.lines if line.beside] == [*found]
    assert {line.name for line in latency.lines if line.beside} == {*found}


def test_mixers_with_other_sizes_of_their_own_share_a_panel() -> None:
    picture = of_records(records())
    assert len(picture.panels) == 2 and len(picture.names) == 3


def test_phases_and_types_have_panels_of_their_own() -> None:
    found = [
        record("me", "toeplitz", {"b": 1, "l": l, "d": 2}, 1.0, phase=phase, dtype=dtype)
        for l in (2, 4) for phase in ("training", "training-step") for dtype in ("fp32", "bf16")
    ]  # fmt: skip
    assert len(of_records(found).panels) == 4
    assert len(of_records(found, phases=("forward",), dtypes=("float32",)).panels) == 1


def test_colours_signs_and_lines_do_not_repeat_for_many_series() -> None:
    look = drawing.Look([str(k) for k in range(40)])
    shown = [look.line(str(k)) for k in range(40)]
    assert len({(e["marker"], e["linestyle"]) for e in shown}) == 40  # apart in grey
    assert len({(e["color"], e["linestyle"]) for e in shown}) == 40  # apart without a marker
    assert (
        len({e["color"] for e in shown[:8]}) == 8 and len({e["marker"] for e in shown[:11]}) == 11
    )
    regions = [look.region(str(k)) for k in range(40)]
    assert len({(e["facecolor"], e["hatch"]) for e in regions}) == 40
    assert len({e["hatch"] for e in regions[:11]}) == 11


def test_a_curve_of_many_values_keeps_some_markers_and_apart_ticks() -> None:
    sizes = tuple(range(1, 400, 3))
    mixers = ("self-attention", "gqa", "lstm")
    picture = of_mixers(*mixers, by="state", over="t", t=sizes, phase="inference")
    figure = drawing.drawn(picture, drawing.draw_lines, 3.4)
    figure.canvas.draw()
    (axes,) = (each for each in figure.axes if each.get_lines())
    curves = axes.get_lines()[: len(picture.names)]
    assert all(len(each.x) == len(sizes) for each in picture.panels[0].lines)
    assert all(line.get_markersize() > 3 and line.get_markevery() for line in curves)
    labels = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert len(labels) > 3 and all(a.x1 < b.x0 for a, b in pairwise(labels))


def test_a_curve_without_any_value_is_told_in_one_clause() -> None:
    sizes = tuple(range(1, 400, 3))
    picture = of_mixers(
        "she", "fnet", "lstm", by="total", over="t", t=sizes, l=128, phase="inference"
    )
    she, fnet = sorted(picture.missing, key=len, reverse=True)
    assert she.startswith("she is not drawn at 90 sizes t from 130 to 397: position t = 130 would")
    assert fnet == "fnet is not drawn: not causal: an output depends on later tokens"


def test_zeros_of_a_curve_are_told_apart_from_sizes_without_a_value() -> None:
    picture = of_mixers("she", "lstm", by="exp", over="t", t=(1, 2, 130), l=128, phase="inference")
    zero, refused = picture.missing
    assert zero == "she is not drawn at t = 1, 2: it is zero there"
    assert refused.startswith("she is not drawn at t = 130: position t = 130 would read past")


def test_a_title_names_the_sizes_that_the_figure_depends_on() -> None:
    def title(by: str, over: str) -> str:
        return of_mixers("self-attention", "linear-attention", by=by, over=over).panels[0].title

    assert title("parameters", "d") == "forward pass"
    assert title("total", "l") == "forward pass, b = 1, d = 128, n = 8"
    assert title("sequential", "l") == "forward pass"


def test_a_legend_has_the_names_typed_and_the_sizes_that_differ() -> None:
    picture = of_mixers("gqa", "gqa{g=1}", "self-attention", "gpt-2", l=(7, 11))
    whole = "gpt-2 (d = 768, n = 12)"
    one = "self-attention (d = 128, n = 8)"
    both = ("gqa (d = 128, n = 8, g = 2)", "gqa{g=1} (d = 128, n = 8)")
    assert (*picture.names,) == (*both, one, whole)
    rivals = ("mqa", "linear-attention")
    regions = of_mixers(*rivals, kind="winners", over="ld", d=(64, 128)).names
    assert {*regions} == {*rivals}


def test_a_launch_bound_point_is_hollow() -> None:
    found = along_l("me", "toeplitz", LENGTHS, lambda l: 1e-6 * l, launches=lambda l: 4e-6)
    picture = of_records(found)
    assert picture.panels[0].lines[0].hollow == (True, True, False)
    assert "hollow markers, no evidence on the work: bound by launches" in picture.notes
    assert not any(True in line.hollow for line in of_records(records()[:6]).panels[0].lines)


def test_a_mixer_without_theory_says_why() -> None:
    from msgspec.structs import replace

    found = [replace(r, mixer="gone-mixer") for r in records()[:6]]
    assert any(said.startswith("no theory beside") for said in of_records(found).missing)


def test_of_too_many_panels_the_first_are_drawn() -> None:
    few, more = many(drawing.MOST), many(drawing.MOST + 5)
    assert drawing.shortened(few) == few
    found = drawing.shortened(more)
    assert found.panels == more.panels[: drawing.MOST]
    assert found.missing[-1].startswith("drawn are the first 24 of 29 panels: for others, name ")


def test_nothing_left_is_refused() -> None:
    with pytest.raises(
        MeasureError, match="no record has the chosen mixer, phase and dtype: there are me:fft"
    ):
        of_records(records(), names=("she",))
    with pytest.raises(MeasureError, match="nothing can be drawn"):
        of_records(records(), "d")


def written(path: Path) -> Path:
    for each in records():
        append(path, each)
    return path


def test_the_command_draws_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, file = written(tmp_path / "runs.jsonl"), tmp_path / "a.png"
    assert run(["plot", str(runs), "-o", str(file), "--along", "l", "--only", "me:fft"]) == 0
    assert file.read_bytes().startswith(STARTS["png"])
    assert "energy needs an NVIDIA GPU" in capsys.readouterr().err
    assert run(["plot", str(runs), "-o", str(file)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert run(["plot", str(RUNS), "--kind", "waterfall", "-o", str(tmp_path / "b.pdf")]) == 0


@pytest.mark.parametrize(
    "typed",
    [
        ["self-attention", "linear-attention", "gqa", "--by", "total", "--over", "l"],
        ["linear-attention", "self-attention", "--over", "l,d", "--d", "64,128", "--width", "acl"],
        ["self-attention", "--by", "state_bytes", "--phase", "inference", "--dtype", "bf16"],
        ["bert-base", "bert-large", "--l", "64,128"],
    ],
)
def test_the_command_draws_theory(tmp_path: Path, typed: list[str]) -> None:
    file = tmp_path / "a.svg"
    assert run(["plot", *typed, "-o", str(file)]) == 0
    assert typed[0] in file.read_text()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["RUNS"], "name one, such as -o"),
        (["RUNS", "-o", "a.jpg"], "png"),
        (["RUNS", "-o", "a.png", "--dtype", "fp1"], "fp1"),
        (
            ["RUNS", "-o", "a.png", "--only", ""],
            "--only is empty: give it a value, or leave it out",
        ),
        (["RUNS", "-o", "a.png", "--phase", "training,"], "--phase ''"),
        (["RUNS", "-o", "a.png", "--by", "mul"], "records hold their values: leave out --by"),
        (["RUNS", "-o", "a.png", "--kind", "curve"], "expected one of measured, waterfall"),
        (["RUNS", "-o", "a.png", "--kind", "curves"], "curves shows mixers by name: for records, "),
        (["RUNS", "she", "-o", "a.png"], "expected mixers or files of records, not both"),
        (["she", "-o", "a.png", "--only", "she"], "drawn from equations: leave out --only"),
        (["she", "-o", "a.png", "--kind", "roofline"], "shows files of records, FILE.jsonl, as "),
        (["she", "-o", "a.png", "--kind", "floors"], "no board is given: name one by --board"),
        (["she", "-o", "a.png", "--by", "floor"], "no board is given: name one by --board"),
        (["she", "-o", "a.png", "--board", "h10"], "--board: no board 'h10'"),
        (["RUNS", "-o", "a.png", "--kind", "floors"], "no board is given: name one by --board"),
        (["she", "he", "-o", "a.png", "--over", "l,d,n"], "expected one size for curves"),
        (["she", "he", "-o", "a.png", "--kind", "winners"], "two for winners"),
        (["she", "-o", "a.png", "--over", "l,d"], "a map of winners needs two candidates"),
        (["she", "-o", "a.png", "--by", "speed"], "measured, not derived"),
        (["she", "-o", "a.png", "--over", "w"], "is a size of none of these mixers"),
        (
            ["she", "-o", "a.png", "--over", "t", "--t", "l"],
            "is set equal to size l: leave out t=l",
        ),
        (["she", "-o", "a.png", "--width", "3"], "--width '3': expected a length"),
        (["she", "-o", "a.png", "--d", "64,128"], "size d: expected one value, got 2"),
        (
            [
                "gqa",
                "-o",
                "a.png",
                "--kind",
                "floors",
                "--board",
                "h100",
                "--n",
                "3",
                "--over",
                "n",
            ],
            "n = 3 is not allowed in self-attention+grouped: the first allowed are 2, 4, 8",
        ),
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
    assert run(["plot", *(str(runs) if word == "RUNS" else word for word in typed)]) == 2
    shown = capsys.readouterr()
    assert said in shown.err and shown.err.count("\n") == 1
    assert not (tmp_path / "a.png").exists()


def test_names_with_sizes_in_braces_stand_in_a_list() -> None:
    assert listed("gqa{g=4,w=16}:explicit, she") == ("gqa{g=4,w=16}:explicit", "she")


def test_matplotlib_is_loaded_only_where_something_is_drawn() -> None:
    import subprocess
    import sys

    asked = "import sys, cli, profiler.plots.kinds; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0


def test_a_last_token_that_moves_and_one_that_stays_are_drawn_apart() -> None:
    sizes = ((8, 8), (16, 8), (16, 16))
    found = [
        record("self-attention", "explicit", {"b": 1, "l": l, "t": t, "d": 64, "n": 8}, 1e-6,
               phase="inference")
        for l, t in sizes
    ]  # fmt: skip
    titles = [panel.title for panel in of_records(found).panels]
    alike = "one new token, fp32, cpu, b = 1"
    assert titles == [f"{alike}, d = 64, n = 8", f"{alike}, t = 8, d = 64, n = 8"]
