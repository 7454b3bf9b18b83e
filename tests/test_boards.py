"""Are the figures of boards read, and is a board or figure that is not there named?"""

from __future__ import annotations

import itertools
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import costmodel as cm
from cli import app
from costmodel.commands.options import UsageError
from costmodel.data import data_dir
from costmodel.errors import BoardError, TableError, Unanswered
from costmodel.mixers import names
from costmodel.prediction import columns
from costmodel.prediction.boards import UNITS, board, read_board
from costmodel.questions.question import Answer, Case, Figure

SHIPPED = sorted(data_dir("devices").glob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_figure_of_a_board_has_a_source(path: Path) -> None:
    found = read_board(path)
    assert {"sms", "clock", "memory_bandwidth", "l2_bytes", "power_limit"} <= {*found.figures}
    assert found["matrix.bf16"] > found["vector.fp32"]
    for name, figure in found.figures.items():
        assert name.split(".")[0] in UNITS and len(figure.source) > 9
        unchecked = ", unchecked" if "not at hand" in figure.source else ""
        assert figure.label == f"datasheet{unchecked}"


def test_a_figure_from_a_document_that_was_not_at_hand_is_told_unchecked() -> None:
    told = "h100_sxm (NVIDIA H100 SXM5 80 GB), datasheet; datasheet, unchecked (special): tables/"
    assert board("h100").caption.startswith(told)


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
        assert board(alias) == board(name) == board(name.upper().replace("_", " "))
        assert board(alias) == board(name.replace("_", "")) == board(board(name).title)


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


def test_constants_fitted_on_a_board_predict_no_copy_of_its_file(tmp_path: Path) -> None:
    """The name inside the file tells whose figures they are, as NVIDIA's driver or we call it."""
    text = (data_dir("devices") / "h100_sxm.toml").read_text()
    (title,) = re.findall("name = (.*)", text)
    asked: dict[str, Any] = {"columns": "predicted_time", **TOKEN}
    times = {}
    for stem, name in (
        ("copy", title),
        ("driver", '"NVIDIA H100 80GB HBM3"'),
        ("h100_sxm", '"Another"'),
        ("other", '"Another"'),
    ):
        path = tmp_path / f"{stem}.toml"
        path.write_text(text.replace(f"name = {title}", f"name = {name}"))
        times[stem, name] = cm.table(GQA, board=str(path), **asked)[0]["predicted_time"]
    own, driver, renamed, another = times.values()
    assert own == driver == cm.table(GQA, board="h100", **asked)[0]["predicted_time"]
    assert renamed == another != own


@pytest.mark.parametrize(
    ("kind", "mixer", "options"),
    [
        ("gpu", "self-attention+grouped", {"phase": "training"}),
        ("gpu", "self-attention+grouped", {"phase": "inference"}),
        ("gpu", "self-attention+grouped", {"phase": "inference", "impl": "explicit"}),
        ("measured", "she", {"phase": "training"}),
        ("cpu", "she", {"phase": "training"}),
        ("cpu", "she", {"phase": "inference"}),
    ],
)
def test_a_figure_that_is_left_out_changes_nothing_or_is_named(
    tmp_path: Path, kind: str, mixer: str, options: dict[str, Any]
) -> None:
    lines = [f"{name} = 1e9" for name in ("memory_bandwidth", "allocation", "l2_bandwidth")]
    lines += [f"{name} = {{ bf16 = 1e10 }}" for name in ("narrow", "matrix", "vector")]
    lines += ["special = 1e8", "selection = 1e8", "l2_bytes = 1e4", "memory_bytes = 1e9"]
    lines += ["clock = 1e9", "kernel_time = 1e-6", "power_limit = 300"]
    head = f"kind = {kind!r}\n[[figures]]\nlabel = 'measured'\nsource = 'a test'\n"
    if kind != "cpu":
        own = data_dir("devices") / "h100_sxm.toml"
        head, _, rest = own.read_text().partition("[[figures]]")
        lines = [*("[[figures]]" + rest).splitlines()]
        if kind == "measured":
            lines += [
                "[[figures]]", "label = 'measured'", "source = 'a test'", "kernel_time = 2e-6",
                "l2_bandwidth = 5e12", "allocation = 2e12", "selection = 1e12",
                "narrow = { bf16 = 4e14 }",
            ]  # fmt: skip
    shown = ["floor", "bound", "predicted_time", "predicted_energy"]
    path = tmp_path / "mine.toml"

    def answers(kept: list[str]) -> tuple[dict[str, Any], str]:
        path.write_text(head + "\n".join(kept))
        table = cm.table(mixer, board=str(path), dtype="bf16", l=64, t=64, d=8, columns=shown,
                         **options)  # fmt: skip
        (row,) = table
        said = " ".join([*row.reasons.values(), *repr(table).split()])
        return {name: row[name] for name in shown}, said

    whole, _ = answers(lines)
    assert whole["floor"] and whole["predicted_time"]
    for k, line in enumerate(lines):
        name = line.partition(" = ")[0]
        if name in UNITS:
            found, said = answers(lines[:k] + lines[k + 1 :])
            changed = [one for one in shown if found[one] != whole[one]]
            assert not changed or name in said, (line, changed, said)
            # what stands in is named in a sentence, what does not is a dash
            assert not changed or f"figure '{name}" in said or f"{name} (" in said, (name, said)


def test_an_unknown_board_is_named_with_the_nearest() -> None:
    with pytest.raises(
        BoardError, match=r"no board 'h10': did you mean 'h100'\? expected one of a1"
    ):
        board("h10")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = 3\nfigures = []", "expected the keys name, aliases, kind, figures; got 'name'"),
        ("name = 'Mine'", r"expected groups of figures, \[\[figures\]\]"),
        (OWN.replace("source", "sauce"), "expected a source in each"),
        (OWN.replace("memory_bandwidth", "bandwidth"), "one of the figures .*; got 'bandwidth'"),
        (OWN.replace("1e11", "-1"), "memory_bandwidth must be a positive number, got -1"),
        (OWN.replace("1e11", "true"), "memory_bandwidth must be a positive number, got True"),
        (
            OWN.replace("1e11", "3.35"),
            r"memory_bandwidth = 3.35 is out of range: expected 100000 to 1e\+16 B/s",
        ),
        (OWN + "clock = 1980", r"clock = 1980 is out of range: expected 1e\+06 .* Hz"),
        (OWN + "kernel_time = 5", "kernel_time = 5 is out of range"),
        (OWN + "l2_bytes = 50", "l2_bytes = 50 is out of range"),
        (OWN + "matrix = 3", "expected figures by dtype for matrix, got 3"),
        (OWN + "matrix = { fp4 = 3e12 }", "expected a dtype of .*; got 'fp4'"),
        (
            OWN + OWN.replace('name = "Mine"', ""),
            "the figure 'memory_bandwidth' is given twice",
        ),
        ("kind = 'tpu'\nfigures = []", "expected kind = one of gpu, cpu; got 'tpu'"),
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


GQA = "self-attention+grouped{n=32,g=8}"
TOKEN = {"d": 4096, "l": 32768, "t": 32768, "b": 8, "phase": "inference", "dtype": "bf16"}


def test_the_floor_of_a_new_token_is_its_bytes_at_the_bandwidth() -> None:
    columns = ["traffic", "floor", "bound"]
    (row,) = cm.table(GQA, board="h100", columns=columns, **TOKEN)  # type: ignore[arg-type]
    seconds = row["traffic"] / board("h100")["memory_bandwidth"]
    assert (row["floor"], row["bound"]) == (math.ceil(1e9 * seconds), "memory")


def test_what_binds_changes_with_the_phase_and_the_board(tmp_path: Path) -> None:
    columns = ["floor", "bound", "mul", "add", "span"]
    sizes = {**TOKEN, "phase": "training", "l": 4096}
    (row,) = cm.table(GQA, board="h100", columns=columns, **sizes)  # type: ignore[arg-type]
    products = (row["mul"] + row["add"]) / board("h100")["matrix.bf16"]
    assert (row["floor"], row["bound"]) == (math.ceil(1e9 * products), "products")
    (row,) = cm.table(
        "me",
        board="h100",
        columns=["floor", "bound", "span"],
        phase="training",
        d=1,
        l=2,
        dtype="bf16",
    )
    assert (row["floor"], row["bound"]) == (
        math.ceil(1e9 * row["span"] / board("h100")["clock"]),
        "span",
    )
    slow, text = tmp_path / "slow.toml", (data_dir("devices") / "h100_sxm.toml").read_text()
    slow.write_text(re.sub(r"special = \S+", "special = 1e3", text))
    (row,) = cm.table(GQA, board=str(slow), columns=["bound"], **TOKEN)  # type: ignore[arg-type]
    assert row["bound"] == "exponentials"


@pytest.mark.grid(3)
@pytest.mark.parametrize("name", [GQA, "mla:absorbed", "gdn", "kda", "mamba-2"])
@pytest.mark.parametrize("phase", ["training", "inference"])
def test_a_predicted_time_is_above_the_floor_inside_its_interval(name: str, phase: str) -> None:
    columns = ["floor", "predicted_low", "predicted_time", "predicted_high", "predicted_energy"]
    columns += ["predicted_energy_low", "predicted_energy_high"]
    sizes = {**TOKEN, "phase": phase, "l": 4096, "t": 4096, "K": 128, "V": 128, "R": 64, "c": 512}
    letters = cm.mixer(name.partition(":")[0]).letters
    kept = {k: v for k, v in sizes.items() if len(k) > 1 or k in letters or k in "tbn"}
    if name != GQA:
        kept["n"] = 32
    (row,) = cm.table(name, board="h200", columns=columns, **kept)  # type: ignore[arg-type]
    low, middle, high, energy, *_ = (row[column] for column in columns[1:])
    assert row["floor"] < middle and low < middle < high
    assert 100 < energy / (middle / 1000) <= board("h200")["power_limit"] * 1.001
    least, most = (row[f"predicted_energy_{end}"] for end in ("low", "high"))
    assert least < energy < most <= high / 1000 * board("h200")["power_limit"] * 1.001


@pytest.mark.parametrize(
    ("name", "phase", "tokens", "batch"),
    [
        (GQA, "inference", 32768, 8),
        (GQA, "training", 131072, 1),
        ("self-attention+grouped+rotary+qk-norm{n=32,g=8}", "training", 131072, 8),
        ("kda{n=32}", "inference", 4096, 64),
    ],
)
def test_no_end_of_a_predicted_time_is_below_the_floor(
    name: str, phase: str, tokens: int, batch: int
) -> None:
    columns = ["floor", "predicted_low", "predicted_time", "predicted_high"]
    sizes = {**TOKEN, "phase": phase, "l": tokens, "t": tokens, "b": batch}
    for on in ("h100", "l40s"):
        (row,) = cm.table(name, board=on, columns=columns, **sizes)  # type: ignore[arg-type]
        floor, low, middle, high = (row[column] for column in columns)
        assert floor <= low <= middle <= high
    typed = [f"--{letter}={value}" for letter, value in sizes.items()]
    told = CliRunner().invoke(app, ["explain", name, "--board", "h100", *typed]).output
    least = re.search(r"at least (\S+) us, bound by", told)
    ends = re.search(r"redicted (\S+) us, nine of ten\s+between (\S+) and", told)
    assert least and ends and float(least[1]) <= float(ends[2]) <= float(ends[1])


@pytest.mark.grid(27)
@pytest.mark.parametrize("name", sorted(names()))
def test_the_floor_of_a_backward_pass_is_at_most_that_of_a_training_step(name: str) -> None:
    """Values that the forward pass may keep are read by neither: kernels compute them anew."""
    for on, b in itertools.product(("h100", "mi300x"), (1, 7)):
        columns = {"board": on, "columns": "floor", "dtype": "bf16", "b": b}
        forward, backward, step = (
            cm.table(name, phase=phase, **columns)[0]["floor"]  # type: ignore[arg-type]
            for phase in ("training", "backward", "training-step")
        )
        assert max(forward, backward) <= step, on


@pytest.mark.parametrize("name", [GQA, "mla:absorbed"])
@pytest.mark.parametrize("on", ["h100", "a100", "rtx_4090"])
def test_no_token_after_more_tokens_is_predicted_to_be_faster(name: str, on: str) -> None:
    """At b = 1, few blocks of keys leave multiprocessors idle: 9 tiles of keys and 16."""
    tokens = [1, 1025, 1153, 2048, 3000, 4096, 8000, 8192, 8193, 16000, 16384, 32768]
    sizes = {**TOKEN, "b": 1, "l": tokens[-1], "t": tokens}
    found = cm.table(name, board=on, columns="predicted_time", **sizes)  # type: ignore[arg-type]
    times = [row["predicted_time"] for row in found]
    assert times == sorted(times)


@pytest.mark.parametrize("phase", ["training", "inference"])
def test_mamba_2_is_six_products_a_convolution_and_a_scan(phase: str) -> None:
    sizes = ["--l=8192", "--t=8192", "--b=8", "--d=4096", "--n=128", "--G=8"]
    asked = ["explain", "mamba-2", "--board=h100", "--dtype=bf16", "--phase", phase, *sizes]
    told = " ".join(CliRunner().invoke(app, asked).output.split())
    (calls,) = re.findall(r"nine of ten between \S+ and \S+ us: (.*?)\. ", told)
    when = "prefill" if phase == "training" else "decode"
    names = [call.rpartition(" us")[0].rpartition(" ")[0] for call in calls.split(", ")]
    assert names == 6 * ["gemm"] + [f"{when} Mamba-2 scan", f"{when} Mamba-2 convolution"]
    rows = "many rows" if phase == "training" else "one new row"
    assert f"Constants of Mamba-2 scan of {rows}, fitted on no other board, others stand in" in told


def test_a_scan_moves_its_state_in_the_type_that_is_asked() -> None:
    sizes: dict[str, Any] = {**TOKEN, "b": 256, "n": 128, "G": 8}
    ((two,), (four,)) = (
        cm.table(
            "mamba-2", board="h100", state_dtype=dtype, columns="floor,predicted_time", **sizes
        )
        for dtype in ("bf16", "fp32")
    )
    # 128 heads of 64 by 128 states of each sequence, two more bytes an entry, read and written
    state = 1e9 * 256 * 128 * 64 * 128 * 2 * 2 / board("h100")["memory_bandwidth"]
    assert four["floor"] - two["floor"] == pytest.approx(state, rel=0.01)
    assert 1 <= (four["predicted_time"] - two["predicted_time"]) / state < 1.2


def test_times_of_a_table_per_token_are_those_of_the_whole_call() -> None:
    typed = ["table", GQA, "--board", "h100", "--per-token"]
    typed += [f"--{letter}={value}" for letter, value in TOKEN.items()]
    columns = ["floor", "bound", "predicted_time"]
    (whole,) = cm.table(GQA, board="h100", columns=columns, **TOKEN)  # type: ignore[arg-type]
    words = ["--columns", "mixer,total,floor,bound,predicted_time"]
    text = CliRunner().invoke(app, [*typed, *words]).output
    assert f"{whole['floor']:,}" in text and f"{whole['predicted_time']:,}" in text
    said = "total is divided by the b new tokens; floor, predicted_time are not"
    assert said in " ".join(text.split())


def without(folder: Path, figure: str) -> str:
    """The file of H100 without a figure."""
    path, text = folder / "lacking.toml", (data_dir("devices") / "h100_sxm.toml").read_text()
    path.write_text(re.sub(rf"(?m)^{figure} = .*$", "", text))
    return str(path)


def test_a_time_that_is_not_predicted_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare.toml"
    bare.write_text(OWN)
    for options, said in (
        (
            {"board": "h100", "dtype": "fp8"},
            "times of kernels are known in bf16 and fp16 alone, not in fp8",
        ),
        ({"board": "h100", "dtype": "bf16", "cache_dtype": "fp8"}, "with a cache in bf16 and fp16"),
        (
            {"board": "h100", "dtype": "bf16", "weight_dtype": "int8"},
            "with weights in bf16 and fp16",
        ),
        ({"board": "h100", "dtype": "bf16", "form": "fft"}, "transforms the whole token axis"),
        ({"board": str(bare), "dtype": "bf16"}, "board bare has no figure"),
        ({"board": "h100", "dtype": "bf16", "symbolic": True}, "a number for every size"),
    ):
        name = "she" if "form" in options else "mha"
        (row,) = cm.table(name, columns=["predicted_time", "floor"], phase="inference", **options)
        assert row["predicted_time"] is None and any(said in why for why in row.reasons.values())
        assert "unknown dtype" not in str(row.reasons)
    # products in bf16 are not those of a vector unit where matrix units take fp16
    half = tmp_path / "half.toml"
    half.write_text(f"{OWN}matrix.fp16 = 1e14\nvector.bf16 = 1e13\nspecial = 1e12\nclock = 1e9\n")
    on_half = partial(cm.table, "mha", board=str(half), columns="floor", phase="inference")
    assert on_half(dtype="bf16")[0].reasons["floor"].startswith("board half has no figure")
    assert on_half(dtype="fp16")[0]["floor"] > 0
    # a board without a rate of exponentials: only formulas with exponentials need the rate
    fused = ["gqa", "mla:absorbed", "mamba-2", "gdn", "kda"]
    lacking = without(tmp_path, "special")
    tokens, prompts = (
        cm.table(fused, board=lacking, dtype="bf16", phase=phase, columns="predicted_time,floor")
        for phase in ("inference", "training")
    )
    assert all(row["predicted_time"] > 0 and row["floor"] is None for row in tokens)
    refused = [row["mixer"] for row in prompts if row["predicted_time"] is None]
    assert refused == ["self-attention+grouped", "mla"]
    assert "lacking has no figure 'special'" in prompts[0].reasons["predicted_time"]
    monkeypatch.setattr(columns, "OF_MODULES", [])  # as before `import profiler`
    (row,) = cm.table("she", board="h100", columns="predicted_time", phase="training", dtype="bf16")
    why = row.reasons["predicted_time"]
    assert why.startswith("no time is predicted of she: expected self-attention, mla")
    assert why.endswith("; after `import profiler` the times of modules are predicted too")
    with pytest.raises(TableError, match="need board, such as board h100"):
        cm.table("she", columns="floor")


@pytest.mark.parametrize("phase", ["training", "inference"])
def test_a_linear_map_with_a_bias_takes_the_time_of_a_matrix_product(phase: str) -> None:
    sizes = {**TOKEN, "phase": phase, "l": 1024, "t": 1024}
    plain, bias = (
        cm.table(name, board="h100", columns=["predicted_time"], **sizes)[0]["predicted_time"]  # type: ignore[arg-type]
        for name in (GQA, GQA.replace("+grouped", "+grouped+bias"))
    )
    assert bias == plain


def test_a_type_without_matrix_units_takes_the_vector_units_in_time_and_energy() -> None:
    shown = ["floor", "predicted_time", "predicted_energy"]
    (row,) = cm.table("we", board="h100", columns=shown, phase="training", d=67, l=71)
    watts = 1e3 * row["predicted_energy"] / row["predicted_time"]
    assert 100 < watts < board("h100")["power_limit"]


def test_what_stands_in_is_told_where_it_was_taken(tmp_path: Path) -> None:
    """Without any figure of matrix units, the vector units stand in for none."""
    asked = ["table", "she", "--phase", "training", "--d", "67", "--l", "71"]
    asked += ["--columns", "mixer,floor,predicted_time"]
    for on, dtype, told in (
        ("h100", "fp32", "matrix (the vector units), narrow (matrix)"),
        ("h100", "bf16", ""),
        (without(tmp_path, "matrix"), "bf16", ""),
    ):
        typed = [*asked, "--board", on, "--dtype", dtype]
        text = " ".join(CliRunner().invoke(app, typed).output.split())
        assert (told in text) if told else "matrix (" not in text, text
        assert ("has no figure 'matrix.bf16'" in text) == (on not in ("h100",))


def test_the_notes_tell_on_which_boards_constants_were_fitted() -> None:
    typed = ["table", GQA, "--board", "h200", "--columns", "mixer,predicted_time"]
    typed += ["--dtype", "bf16", "--phase", "training", "--l", "61", "--d", "128"]
    text = " ".join(CliRunner().invoke(app, typed).output.split())
    assert "constants of h200_sxm were fitted on a100_sxm, h100_sxm, and never on" in text


def test_the_notes_tell_the_form_of_the_floor_and_that_of_the_module() -> None:
    typed = ["table", "aft-full", "--board", "h100", "--columns", "mixer,floor,predicted_time"]
    text = " ".join(CliRunner().invoke(app, [*typed, "--phase", "training"]).output.split())
    form = cm.mixer("aft-full").default_form
    assert f"aft-full separate in its form separate (the row's form, of the floor: {form})" in text


def test_a_floor_without_the_span_is_the_longest_of_the_other_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {"board": "h100", "columns": "floor,bound", "phase": "training",
                             "d": 61, "l": 67}  # fmt: skip
    (whole,) = cm.table("she", **asked)

    def too_large(case: Case) -> Answer:
        raise Unanswered("a search is too large")

    monkeypatch.setitem(
        columns.WORK,
        "span",
        Figure("span", "levels", too_large),
    )
    (row,) = found = cm.table("she", **asked)
    assert (row["floor"], row["bound"]) == (whole["floor"], f"{whole['bound']}, span unknown")
    typed = ["--board", "h100", "--phase", "training", "--d", "61", "--l", "67"]
    text = CliRunner().invoke(app, ["table", "she", *typed, "--columns", "mixer,floor"]).output
    said = "phase training: at least the longest of the other limits, as its span is not known: a"
    assert said in " ".join(text.split()) and len(found) == 1
    text = CliRunner().invoke(app, ["explain", "she", *typed]).output
    assert "The span is not known: a search is too large" in text


def test_explain_tells_each_limit_of_a_board() -> None:
    def explained(*typed: str) -> str:
        result = CliRunner().invoke(app, ["explain", GQA, "--format", "markdown", *typed])
        if result.exception:
            raise result.exception
        return result.output

    columns = ["floor", "bound"]
    (row,) = cm.table(GQA, board="h100", columns=columns, **TOKEN)  # type: ignore[arg-type]
    sizes = [f"--{x}={value}" for x, value in TOKEN.items()]
    text = explained("--board", "h100", *sizes)
    least = re.search(r"bf16 on .* h100_sxm .*datasheet.*: at least (\S+) us, bound by (\w+)", text)
    assert least and least[2] == row["bound"]
    assert float(least[1]) == pytest.approx(row["floor"] / 1e3, rel=1e-3)
    assert "exponentials" in text and "span" in text
    both = explained("--board", "h100", "--phase", "backward", "--l", "2", "--d", "32")
    assert "\nFloor of a backward pass: its bytes leave" in both and "Floor of" not in text
    with pytest.raises(UsageError, match="leave out --against"):
        explained("--board", "h100", "--against", "she")
    for role in ("--dtype", "--weight-dtype", "--cache-dtype", "--state-dtype"):
        with pytest.raises(UsageError, match="add --board"):
            explained(role, "bf16")
    own = explained("--board", "h100", "--weight-dtype", "fp8", "--cache-dtype", "int8", *sizes)
    assert "cache int8, weights fp8 on the board" in own


def test_explain_tells_the_constants_of_a_predicted_time() -> None:
    asked = "explain gdn --board h100 --phase inference --d 4096 --n 32 --t 64 --l 64 --dtype bf16"
    told = CliRunner().invoke(app, asked.split()).output
    assert re.search(r"Predicted \S+ us, nine of ten between \S+ and \S+ us: gemm ", told)
    assert "Constants of matrix products, fitted on a100_sxm, h200_sxm: start " in told
    assert "start: launch and tail of a call, in microseconds; " in told
    assert re.search(r"Predicted \S+ J, at the board's power .* nine of ten between \S+ and", told)
    module = CliRunner().invoke(app, [*asked.split(), "--impl", "recurrent"]).output
    assert "of the module recurrent, nine of ten" in " ".join(module.split())
    told = CliRunner().invoke(app, ["explain", "aft-full", "--board", "h100"]).output
    assert "of the module separate in its form separate, nine of ten" in " ".join(told.split())
