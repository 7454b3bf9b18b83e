"""Does the report on published kernel times judge predictions, roofline and line as it says?"""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import fit_kernels, published_kernels as report
from costmodel.data import data_dir, read_data
from costmodel.errors import BoardError
from costmodel.prediction.boards import board
from costmodel.prediction.calls import Calls
from costmodel.prediction.families import BY_NAME, FAMILIES, Constant, family_of
from costmodel.prediction.predict import Fit, constants_in_words, fit_for, fits, power, predict
from tests.stand_ins import Instead

PUBLISHED = data_dir("published") / "kernels"


def write(path: Path, header: str, rows: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.write("\n".join([header, *rows]) + "\n")


def asked(folder: Path, *options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the command."""
    monkeypatch.setattr(sys, "argv", ["published_kernels", str(folder), *options])
    report.main()


def products(folder: Path, boards: tuple[str, ...], extra: float) -> None:
    """Tables of matrix products on boards that take the roofline and `extra` seconds."""
    sizes = [(64, 256, 512), (128, 4096, 4096), (2048, 2048, 8192), (1, 7168, 2048)]
    m, n, k = (np.array(column, dtype=float) for column in zip(*sizes, strict=True))
    for name in boards:
        seconds = Calls("gemm", {"l": m, "f": n, "d": k}).roofline(board(name)) + extra
        rows = [
            f"{a},{b},{c},{1e3 * taken!r}"
            for (a, b, c), taken in zip(sizes, seconds.tolist(), strict=True)
        ]
        write(folder / name / "gemm.csv.gz", "m,n,k,latency_ms", rows)


def test_the_line_is_fitted_on_the_other_boards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    products(tmp_path, ("h100_sxm", "a100_sxm", "l40s"), 7e-6)
    asked(tmp_path, "--format", "json", monkeypatch=monkeypatch)
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    assert [(row["board"], row["file"], row["n"]) for row in found["rows"]] == [
        (name, "gemm.csv.gz", 4) for name in ("a100_sxm", "h100_sxm", "l40s")
    ]
    for row in found["rows"]:
        assert row["line_median"] == pytest.approx(0, abs=1e-9) and row["roofline_median"] > 0.05
        assert (
            0 <= row["coverage"] <= 1 and row["p90"] >= row["median"] >= 0 and row["winners"] > 0.9
        )


def test_attention_is_predicted_by_the_figures_of_the_board_s_own_products(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    instead: Instead,
) -> None:
    """On a board whose memory reaches half of the share of its bandwidth that others reach."""
    instead(gemm_tiles=((128, 128),), gemm_splits=(1,))
    written: dict[str, tuple[str, list[tuple[int, ...]]]] = {
        "gemm": ("m,n,k,latency_ms", [(64, 256, 512), (128, 4096, 4096), (2048, 2048, 8192),
                                      (1, 7168, 2048)]),
        "generation_attention": (
            "batch_size,step,num_heads,num_key_value_heads,head_dim,latency_ms",
            [(5, 8191, 32, 8, 128), (7, 8191, 32, 8, 128)],
        ),
    }  # fmt: skip
    for table, (header, sizes) in written.items():
        for name in ("l40s",) if table == "gemm" else ("l40s", "b200_sxm"):
            path = tmp_path / name / f"{table}.csv.gz"
            write(path, header, [",".join(map(str, (*one, 1))) for one in sizes])
            (part,) = report.read_table(path, board(name)).parts
            family = family_of(part.calls.kernel, "")
            assert family is not None
            others = fit_for(family, name).constants
            slow = {**others, "bandwidth": others["bandwidth"] / 2}
            seconds = family.seconds(slow, part.calls, board(name))
            rows = zip(sizes, seconds.tolist(), strict=True)
            write(path, header, [",".join(map(str, (*one, 1e3 * took))) for one, took in rows])
    asked(tmp_path, "--format", "json", monkeypatch=monkeypatch)
    rows = json.loads(capsys.readouterr().out)["rows"]
    (row,) = (one for one in rows if "calibrated" in one)
    found = row["calibrated"]
    assert (row["board"], row["file"]) == ("l40s", "generation_attention.csv.gz")
    assert found["ratios"] == pytest.approx({"peak": 1, "bandwidth": 0.5}, rel=1e-2)
    alone = found["alone"]["bandwidth"]
    assert row["median"] > 0.3 and found["median"] < 1e-2 and alone["p90"] < 1e-2
    lines = [line for line in report.calibrated_lines(rows) if line.startswith("l40s")]
    assert "peak 1.00, bandwidth 0.50" in lines[0] and "bandwidth alone 0." in lines[1]


def test_boards_tables_and_rows_that_are_unknown_are_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    products(tmp_path, ("h100_sxm",), 7e-6)
    write(tmp_path / "v100" / "gemm.csv.gz", "m,n,k,latency_ms", ["1,2,3,4"])
    write(tmp_path / "mine" / "gemm.csv.gz", "m,n,k,latency_ms", ["64,64,64,0.01"])
    write(tmp_path / "h100_sxm" / "moe.csv.gz", "m,latency_ms", ["1,2"])
    write(
        tmp_path / "a100_sxm" / "context_attention.csv.gz",
        "kernel_source,batch_size,isl,num_heads,num_key_value_heads,head_dim,latency_ms",
        ["something new,1,128,8,8,64,0.02", "something new,,128,8,8,64,0.02", "x,1,9,8,8,64,-1"],
    )
    (tmp_path / "h100_sxm" / "gdn.csv.gz").write_text("no gzip")
    (tmp_path / "h100_sxm" / "gemm.csv").write_text("m,n,k,latency_ms\n1,2,3,4\n")
    write(tmp_path / "h100_sxm" / "kda.csv.gz", "latency_ms", [])
    write(
        tmp_path / "l40s" / "gemm.csv.gz", "m,n,k,latency_ms",
        ["64,0,64,0.01", "64,64,64,", "64,64,64,inf"],
    )  # fmt: skip
    devices = tmp_path / "boards"
    devices.mkdir()
    (devices / "mine.toml").write_text(
        "[[figures]]\nlabel = 'measured'\nsource = 'a copy'\nmemory_bandwidth = 1e11\n"
    )
    asked(tmp_path, "--devices", str(devices), monkeypatch=monkeypatch)
    printed = capsys.readouterr()
    rows = printed.out.partition("\n\n")[0].splitlines()[1:]
    assert [line.split()[:3] for line in rows] == [
        ["a100_sxm", "context_attention", "1"], ["h100_sxm", "gemm", "4"]
    ]  # fmt: skip
    for sentence in (
        "no board 'v100'", "board mine has no figure 'matrix.bf16'", "no kernel 'moe' is predicted",
        "1 left out: an empty cell in batch_size", "1 left out: no latency_ms above 0",
        "Not a gzipped file", "h100_sxm/gemm.csv: no table: expected a name that ends in .csv.gz",
        "h100_sxm/kda.csv.gz: no rows", "l40s/gemm.csv.gz: 1 left out: no n above 0",
        "1 left out: an empty cell in latency_ms", "1 left out: no latency_ms above 0",
        "a100_sxm/context_attention.csv.gz: no column window_size: taken as none",
    ):  # fmt: skip
        assert sentence in printed.err


def test_a_folder_without_tables_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="no table of"):
        asked(tmp_path, monkeypatch=monkeypatch)


def test_published_calls_are_drawn_below_the_limits_of_their_boards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    products(tmp_path, ("h100_sxm", "l40s"), extra=0.0)
    (panel,) = report.rooflines(list(report.read_folder(tmp_path, None))).panels
    points, limits = ([e for e in panel.lines if e.limit == kind] for kind in (False, True))
    assert [e.name for e in limits] == [f"limit of {e.name}" for e in points]
    for name, line in zip(("h100_sxm", "l40s"), points, strict=True):
        on = board(name)
        peak, moved = on["matrix.bf16"], on["memory_bandwidth"]
        assert line.y == pytest.approx([min(peak, moved * x) for x in line.x], rel=1e-9)
    figure = tmp_path / "roofline.svg"
    asked(tmp_path, "--plot", str(figure), monkeypatch=monkeypatch)
    assert "limit of NVIDIA H100" in figure.read_text()
    with pytest.raises(SystemExit):
        asked(tmp_path, "--plot", "roofline.gif", monkeypatch=monkeypatch)


def test_calls_that_are_timed_with_their_launch_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = ("kernel_source,phase,batch_size,seq_len,d_conv,num_k_heads,head_k_dim,num_v_heads,"
              "head_v_dim,latency_ms")  # fmt: skip
    small = "causal_conv1d_fn,context,1,{},4,2,128,4,128,0.25"
    write(tmp_path / "h200_sxm" / "gdn.csv.gz", header, [small.format(k) for k in (1, 2, 4)])
    assert list(report.read_folder(tmp_path, None)) == []
    assert (
        "3 left out: causal_conv1d_fn: timed with the launch by the host" in capsys.readouterr().err
    )


def test_no_board_is_predicted_by_constants_that_were_fitted_on_it() -> None:
    for family in FAMILIES:
        assert len(family.constants) <= 6
        for fit in fits()[family.name]:
            assert {*fit.constants} == {*family.constants}
            for name, one in family.constants.items():
                assert one.least <= fit.constants[name] <= one.most
    calls = Calls("gemm", {x: np.array([512.0]) for x in "lfd"})
    for name in ("a100_sxm", "h100_sxm", "h200_sxm"):
        assert name not in fit_for(FAMILIES[0], name).boards
        found = predict(calls, board(name))
        assert found.low[0] < found.seconds[0] < found.high[0]
    assert fit_for(FAMILIES[0], "l40s").boards == ("a100_sxm", "h100_sxm", "h200_sxm")


def test_a_family_fitted_on_one_board_alone_asks_for_another(
    instead: Instead,
) -> None:
    alone = replace(FAMILIES[0], like="", instead={})
    known = {alone.name: [Fit(("l40s",), {}, (1.0, 1.0))]}
    instead(fits=lambda: known)
    with pytest.raises(BoardError, match=r"on l40s, the only .*: choose another --board"):
        fit_for(alone, "l40s")


@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [
        ("gemm", {"l": 8192, "d": 8192, "f": 8192}),
        ("gemm", {"l": 8, "d": 16384, "f": 16384}),
        ("decode attention", {"b": 64, "t": 32768, "w": 32768, "n": 32, "g": 8, "h": 128}),
        ("decode gated delta rule", {"b": 512, "t": 64, "n": 32, "g": 16, "K": 128, "V": 128}),
    ],
)
def test_no_end_of_an_interval_is_below_the_roofline(kernel: str, sizes: dict[str, int]) -> None:
    calls = Calls(kernel, {x: np.array([float(size)]) for x, size in sizes.items()})
    for name in ("a100_sxm", "h100_sxm", "l40s"):
        on = board(name)
        one, repeated = predict(calls, on), predict(calls, on, repeated=True)
        assert calls.roofline(on)[0] <= one.low[0] <= one.seconds[0] <= one.high[0]
        # the caches hold entries of a repeated call: only its arithmetic is a floor
        assert calls.arithmetic(on)[0] <= repeated.low[0] <= one.low[0]


def test_constants_that_stand_in_were_fitted_without_the_board() -> None:
    """A family that was published on one board alone is predicted there by other families."""
    alone = 0
    for family in FAMILIES:
        boards = {name for fit in fits()[family.name] for name in fit.boards}
        if len(boards) != 1 or not family.kernels:
            continue
        (name,), alone = boards, alone + 1
        fit = fit_for(family, name)
        elsewhere = {
            value
            for several in fits().values()
            for one in several
            if name not in one.boards
            for value in one.constants.values()
        }
        assert fit.boards == () and {*fit.constants} == {*family.constants}
        assert {*fit.constants.values()} <= elsewhere
        assert "others stand in" in constants_in_words(family, name)
    assert alone


def test_what_stands_in_for_a_constant_is_a_constant_of_a_family() -> None:
    for family in FAMILIES:
        assert {*family.instead} <= {*family.constants}
        for name in family.constants:
            other, theirs = family.stand_in(name)
            assert not (family.like or other) or theirs in BY_NAME[other].constants


def test_a_constant_at_an_end_of_its_range_is_marked() -> None:
    one = Constant("a share", 0, 1)
    ends = {0.9999: "1 (the most allowed)", 1e-7: "0 (the least allowed)", 0.98765: "0.9877"}
    assert {value: one.in_words(one.rounded(value)) for value in ends} == ends
    for family in FAMILIES:
        for name, constant in family.constants.items():
            for fit in fits()[family.name]:
                assert fit.constants[name] == constant.rounded(fit.constants[name])


def test_an_interval_of_a_fit_on_one_board_reaches_as_far_below_as_above() -> None:
    alone = [fit for several in fits().values() for fit in several if len(fit.boards) == 1]
    assert alone
    for fit in alone:
        low, high = fit.interval
        assert low * high == pytest.approx(1, rel=1e-2)


def test_a_missed_goal_is_told_with_what_the_data_shows() -> None:
    row = {"board": "h100", "file": "gemm.csv.gz", "median": 0.1, "p90": 0.3, "line_median": 0.2}
    assert list(report.missed([row, {**row, "file": "other.csv.gz", "median": 9}])) == []
    line, why = report.missed([{**row, "p90": 0.31}])
    (half, _) = report.missed([{**row, "line_median": 0.19}])
    assert half == "h100 gemm misses half of the line's median: 10.0 of 19.0"
    assert line == "h100 gemm misses 10 / 30: 10.0 / 31.0" and why == report.of_products()
    (alone,) = report.missed([{**row, "line_median": None}])
    assert alone.startswith("h100 gemm: half of the line's median is not judged, as the line is")


def test_a_missed_goal_of_a_calibrated_board_is_told_with_why() -> None:
    errors = {"median": 0.07, "p90": 0.25}
    found = {**errors, "ratios": {"peak": 1.0}, "alone": {"peak": errors}}
    row = {"board": "h100", "file": "generation_attention.csv.gz", "median": 0.3, "p90": 0.4}
    assert "misses" not in " ".join(report.calibrated_lines([{**row, "calibrated": found}]))
    *_, line, lower, why = report.calibrated_lines([{**row, "calibrated": {**found, "p90": 0.26}}])
    assert line.startswith("h100 generation_attention misses 7 / 25: 7.0 / 26.0; peak alone")
    assert "lower the median of 1 of 1 tables" in lower and why == report.of_attention()


def test_the_constants_are_printed_with_their_meanings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    products(tmp_path, ("h100_sxm", "l40s"), 7e-6)
    asked(tmp_path, monkeypatch=monkeypatch)
    told = capsys.readouterr().out.partition("constants by which")[2]
    family = FAMILIES[0]
    assert all(f"{name}: {one.meaning}" in told for name, one in family.constants.items())
    assert "h100_sxm, fitted on a100_sxm, h200_sxm: start " in told
    assert "l40s, fitted on a100_sxm, h100_sxm, h200_sxm: start " in told
    assert "power; fitted on" in told


def test_times_below_what_the_bytes_need_are_no_times_of_the_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = "m,n,k,latency_ms"
    calls = Calls(
        "gemm", {"l": np.array([1.0]), "f": np.array([2.0**15]), "d": np.array([2.0**15])}
    )
    least = 1e3 * float(calls.movement(board("h100"))[0])
    for share, kept in ((0.5, 0), (1.5, 2)):
        rows = [f"1,{2**15},{2**15},{share * least}", "8,64,64,0.001"]
        write(tmp_path / "h100_sxm" / "gemm.csv.gz", header, rows)
        tables = list(report.read_folder(tmp_path, None))
        assert sum(len(table.seconds) for table in tables) == kept
    assert "1 of 1 calls larger than twice the L2 cache take less" in capsys.readouterr().err


def microseconds(kernel: str, on: str, source: str = "", **sizes: int) -> float:
    """The predicted time of one call."""
    calls = Calls(kernel, {x: np.array([float(size)]) for x, size in sizes.items()})
    return 1e6 * float(predict(calls, board(on), source).seconds[0])


def test_flash_attention_2_splits_the_keys_of_a_token_only_where_heads_share_them() -> None:
    def growth(on: str, heads: int) -> float:
        """How much longer eight times the keys take."""
        one, eight = (
            microseconds("decode attention", on, b=1, t=t, w=t, h=128, n=heads, g=1)
            for t in (2**14, 2**17)
        )
        return eight / one

    assert growth("a100", 1) > 7 and growth("l40s", 1) > 7
    assert growth("a100", 8) < 6 and growth("h100", 1) < 6


def test_few_blocks_of_a_prompt_split_their_keys_but_not_by_flash_attention_2() -> None:
    """One head of a prompt has 16 blocks of rows, eight heads have 128: each block on an SM alone
    takes as long, and the keys of 16 blocks may be split over the other SMs."""
    latent = {"b": 1, "l": 2048, "K": 128, "V": 128, "c": 512, "R": 64}
    one, eight = (
        microseconds("prefill absorbed latent attention", "h200", "", **latent, n=heads)
        for heads in (1, 8)
    )
    assert one < 0.6 * eight
    prompt = {"b": 1, "l": 4096, "w": 4096, "h": 128}
    for on, split in (("h100", True), ("a100", False)):  # 32 and 96 blocks
        one, three = (microseconds("prefill attention", on, "", **prompt, n=n, g=n) for n in (1, 3))
        assert (one < 0.8 * three) == split


@pytest.mark.parametrize("waves", [1, 3])
def test_arithmetic_hides_the_movement_of_a_product_after_the_first_wave(
    waves: int, instead: Instead
) -> None:
    instead(gemm_tiles=((64, 64),), gemm_splits=(1,))
    on, one = board("h100"), {"start": 0, "tile": 0, "peak": 1, "feed": 1e9, "bandwidth": 1}
    sizes = {"l": 64.0, "d": 1024.0, "f": 64.0 * waves * on["sms"]}
    calls = Calls("gemm", {x: np.array([size]) for x, size in sizes.items()})
    busy = 2 * 64 * 64 * 1024 * waves / (on["matrix.bf16"] / on["sms"])
    moved = float(calls.movement(on)[0])
    (taken,) = FAMILIES[0].seconds({**one, "exposed": 0.5}, calls, on)
    assert taken == pytest.approx(max(busy, moved) + 0.5 * min(busy, moved) / waves)


@pytest.mark.parametrize(
    ("on", "sizes", "more", "longer"),
    [
        # version 2 copies heads that share keys to the place of tokens, of several sequences
        ("a100", {"b": 3, "g": 2, "n": 6}, {"b": 2, "g": 3, "n": 6}, False),
        ("a100", {"b": 1, "g": 6, "n": 12}, {"b": 2, "g": 3, "n": 6}, True),
        ("a100", {"b": 6, "g": 1, "n": 2}, {"b": 2, "g": 3, "n": 6}, True),
        ("a100", {"b": 2, "g": 3, "n": 3}, {"b": 2, "g": 3, "n": 6}, True),
        ("h100", {"b": 1, "g": 6, "n": 12}, {"b": 2, "g": 3, "n": 6}, False),
        # a window that hides early keys has two edges to mask
        ("h100", {"t": 61}, {"t": 67}, True),
        ("h100", {"t": 59, "w": 59}, {"t": 61, "w": 61}, False),
    ],
)
def test_copies_of_heads_and_the_edges_of_a_window_take_time(
    on: str, sizes: dict[str, int], more: dict[str, int], longer: bool
) -> None:
    base = {"b": 1, "t": 61, "w": 61, "n": 2, "g": 1, "h": 64}
    one, other = (microseconds("decode attention", on, "", **base | x) for x in (sizes, more))
    assert (other > one + 0.5) == longer
    assert longer or other == pytest.approx(one, abs=0.1)


def test_a_prompt_of_one_token_is_a_new_token() -> None:
    row = {"batch_size": "3", "num_heads": "6", "num_key_value_heads": "2", "head_dim": "64"}
    prompts = [report.TABLES["context_attention"]({**row, "isl": isl}) for isl in ("1", "2")]
    assert prompts[0] == report.TABLES["generation_attention"]({**row, "step": "0"})
    assert prompts[1][0] == "prefill attention"


def test_a_short_chunk_of_flash_linear_attention_moves_its_own_rows_alone() -> None:
    few, many = (
        microseconds(
            "prefill gated delta rule", "h200", "chunk_gated_delta_rule",
            b=64, l=rows, n=64, g=16, K=128, V=128, k=4,
        )
        for rows in (1, 64)
    )  # fmt: skip
    assert few < 0.7 * many


def test_a_scan_of_mamba_2_takes_the_products_and_the_bytes_of_its_chunks() -> None:
    """Long calls grow with tokens, by more than their compulsory bytes need; a short one is the
    launches of five kernels."""
    on, sizes = "h100_sxm", {"n": 128, "P": 64, "N": 128, "G": 8, "C": 256}
    short, one, two = (
        microseconds("prefill Mamba-2 scan", on, "", **{**sizes, "b": 1, "l": tokens, "n": heads})
        for tokens, heads in ((16, 8), (2**15, 128), (2**16, 128))
    )
    start = fit_for(BY_NAME["Mamba-2 scan of many rows"], on).constants["kernel"]
    assert 5 * start < short < 6 * start and 1.9 < two / one < 2.1
    calls = Calls("prefill Mamba-2 scan", {x: np.array([float(v)]) for x, v in
                                           {"b": 1, "l": 2**16, **sizes}.items()})  # fmt: skip
    assert two > 1.5e6 * float(calls.movement(board(on))[0])


def test_the_page_is_that_of_the_published_times() -> None:
    """Of one kind of table, whose lines stand on the page."""
    page = (Path(__file__).parents[1] / "benchmarks/results/published_kernels.txt").read_text()
    tables = [t for t in report.read_folder(PUBLISHED, None) if t.file == "generation_mla.csv.gz"]
    lines = [report.shown(row) for row in report.report(tables)]
    assert len(lines) == 3 and all(line in page for line in lines)


def test_power_is_judged_by_the_long_calls_that_fitted_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes of a call choose its half: columns of 8209 are judged, columns of 8192 fitted."""
    calls = (8209, 1.5, 700), (8192, 1.5, 1), (8209, 0.05, 9)
    rows = [f"8192,{columns},8192,{ms},{watts}" for columns, ms, watts in calls]
    write(tmp_path / "h200_sxm" / "gemm.csv.gz", "m,n,k,latency_ms,power_W", rows)
    asked(tmp_path, monkeypatch=monkeypatch)
    line = capsys.readouterr().out.partition("\n\n")[0].splitlines()[-1]
    assert line.startswith("power of h200_sxm gemm, 1 calls of 100 us or more that were not fitted")
    assert float(line.partition("median ")[2].partition(",")[0]) < 15


def test_the_energy_of_nine_in_ten_published_calls_lies_in_its_interval() -> None:
    on = board("h200_sxm")
    calls = inside = 0.0
    for name in ("generation_attention", "context_attention"):
        table = report.read_table(PUBLISHED / on.name / f"{name}.csv.gz", on)
        (line,) = report.power_lines([table])
        judged = float(line.partition(", ")[2].split()[0])
        share = float(line.partition("energy inside ")[2].partition(",")[0])
        assert share >= 80
        calls, inside = calls + judged, inside + judged * share
        for part in table.parts:
            found = predict(part.calls, on, part.source)
            assert found.joules is not None and found.joules_low is not None
            assert (found.joules_low < found.joules).all()
    assert inside / calls >= 90


def test_power_rises_with_work_up_to_the_limit() -> None:
    on = board("h200")
    calls = Calls("gemm", {x: np.array([8192.0]) for x in "lfd"})
    least = calls.roofline(on)
    watts = [float(power(calls, on, least * times)[0]) for times in (1, 1.5, 4, 100)]
    assert watts[0] == on["power_limit"] and watts == sorted(watts, reverse=True)
    assert 100 < watts[-1] < watts[1]


def test_the_share_of_a_launch_among_kernels_is_that_of_the_measured_boards() -> None:
    kept = read_data(data_dir("predictions") / "kernels.json")
    assert kept["among_kernels"] == fit_kernels.among_kernels(kept["families"])
    assert 0 < kept["among_kernels"]["share"] < 1
