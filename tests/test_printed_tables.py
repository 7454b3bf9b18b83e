"""Does `costmodel check TABLE` compare every cell of a printed table with the equations?"""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

import cli
from costmodel.claims.printed_tables import Asked, claims
from costmodel.claims.table_cells import of_csv, of_latex
from costmodel.errors import PublishedError
from costmodel.mixers import names
from costmodel.mixers.load import mixer as load_mixer
from tests.stand_ins import Instead

FOREIGN = r"""
\begin{table}\caption{Complexity}
\begin{tabular}{lccc}
\hline
Layer & \makecell{Multipli-\\cations} & \textbf{Sequential operations} & Accuracy & Parameters \\
\hline
Attention & $4 N d^2 + 2 N^2 d$ & 12 & 93 & $4d^2$ \\
SHE & $\frac{1}{2} d^2 N(N+5) + dN$ & $O(1)$ & 12 & $d^2x$ \\  % a remark
ME & $\frac12 N(N-1)d$ & -- & 1 & $N k$ \\
Ours & $Nd$ & 1 & 1 & 0 \\
\hline
\end{tabular}\end{table}
"""


def checked(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What is found in a table; the exit code is 1 where a cell disagrees."""
    capsys.readouterr()
    code = cli.run(["check", str(path), *words, "--format", "json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == ("disagrees" in {claim["verdict"] for claim in found["claims"]})
    return found


def test_a_foreign_table_is_checked_cell_by_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "paper.tex"
    path.write_text(FOREIGN, encoding="utf-8")
    words = ("--symbols", "N=l", "--mixers", "Attention=self-attention")
    found = checked(path, capsys, *words)
    assert {claim["place"]: claim["verdict"] for claim in found["claims"]} == {
        "Attention, Multiplications": "agrees-under",
        "Attention, Sequential operations": "agrees",
        "Attention, Parameters": "agrees",
        "SHE, Multiplications": "agrees",
        "SHE, Sequential operations": "agrees",
        "SHE, Parameters": "not-checkable",
        "ME, Multiplications": "disagrees",
        "ME, Parameters": "not-checkable",
    }
    notes = {claim["place"]: claim["note"] for claim in found["claims"]}
    assert "x is no size of she" in notes["SHE, Parameters"]
    assert "k is no size of me" in notes["ME, Parameters"]
    assert found["left_out"] == [
        "column 'Accuracy' is no quantity of a claim: 3 left out",
        "row 'Ours' is no known mixer (--mixers 'Ours=NAME' says which): 4 left out",
    ]
    assert cli.run(["check", str(path), *words]) == 1
    said = capsys.readouterr().out
    assert "8 claims: 4 agrees, 1 agrees-under, 1 disagrees, 2 not-checkable" in said
    assert "rows and columns left out: 2" in said


VASWANI = """\
Layer Type,Complexity per Layer,Sequential Operations,Maximum Path Length
Self-Attention,O(n^2 d),O(1),O(1)
Recurrent [2],O(n d^2),O(1),O(n)
Convolutional,O(k n d^2),O(1),O(n/k)
Self-Attention (restricted),O(r n d),O(1),O(n/r)
"""
"""Table 1 of Vaswani et al. 2017, as others copy it: one cell of it is changed, and the path of a
convolution is that of contiguous kernels."""


def test_a_table_of_complexities_as_papers_head_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "paper.csv"
    path.write_text(VASWANI, encoding="utf-8")
    found = checked(path, capsys, "--symbols", "r=w")
    verdicts = {claim["place"]: claim["verdict"] for claim in found["claims"]}
    assert len(verdicts) == 12 and "left_out" not in found
    assert [place for place, verdict in verdicts.items() if not verdict.startswith("agrees")] == [
        "Recurrent [2], Sequential Operations"
    ]
    mixers = dict.fromkeys(claim["mixer"] for claim in found["claims"])
    assert [*mixers] == ["self-attention", "recurrent", "convolution", "restricted-attention"]
    quantities = dict.fromkeys(claim["quantity"] for claim in found["claims"])
    assert [*quantities] == ["total", "sequential", "path_length"]
    assert found["readings"] == [
        "n is read as the sequence length l, which no cell names (--symbols n=n keeps it)",
        "column 'Complexity per Layer' is read as the order of the total",
    ]


IN_LATEX = r"""
\begin{tabular}{lccc}
\toprule
Layer Type & Complexity per Layer & Sequential & Maximum Path Length  \\
           &             & Operations &   \\
\hline
\rule{0pt}{2.0ex}Self-Attention & $O(n^2 \cdot d)$ & $O(1)$ & $O(1)$ \\
\multirow{1}{*}{Convolutional} & $O(k \cdot n \cdot d^2)$ & $O(n)$ & $O(\log_k(n))$ \\
\bottomrule
\end{tabular}
"""
"""The same table as its authors write it, with a heading in two lines."""


def test_a_heading_in_two_lines_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "paper.tex"
    path.write_text(IN_LATEX, encoding="utf-8")
    found = checked(path, capsys)
    verdicts = {claim["place"]: claim["verdict"] for claim in found["claims"]}
    assert len(verdicts) == 6 and "left_out" not in found
    assert [place for place, verdict in verdicts.items() if verdict == "disagrees"] == [
        "Convolutional, Sequential Operations", "Convolutional, Maximum Path Length",
    ]  # fmt: skip


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_spreadsheet_s_file_is_read(
    delimiter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a mark of its encoding in front, as spreadsheets write it."""
    path = tmp_path / "own.csv"
    assert cli.run(["table", "me", "--phase", "training", "--format", "csv", "-o", str(path)]) == 0
    before = checked(path, capsys)
    text = path.read_text(encoding="utf-8").replace(",", delimiter)
    path.write_text(text, encoding="utf-8-sig")
    assert checked(path, capsys) == before and len(before["claims"]) >= 8


def test_a_row_of_a_csv_may_be_short_and_no_longer_than_the_headings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.csv"
    path.write_text("parameters,mixer,l\n2*d^2,she,²\nd,me\n7\n", encoding="utf-8")
    found = checked(path, capsys)
    assert [claim["place"] for claim in found["claims"]] == ["she, parameters", "me, parameters"]
    path.write_text("mixer,l,parameters\nshe,8,32,768\n", encoding="utf-8")
    assert cli.run(["check", str(path)]) == 2
    assert "line 2 has more cells than the line of headings" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["²", "9" * 5000])
def test_a_text_that_no_size_can_be_is_read_as_none(size: str) -> None:
    latex = r"\caption{$l = @$} \begin{tabular}{lrr} Layer & $d$ & mul \\ SHE & @ & 3 \end{tabular}"
    (in_latex,) = of_latex(latex.replace("@", size), {})
    (in_csv,) = of_csv(f"mixer,d,mul\nshe,{size},3\n")
    assert in_latex.sizes == in_csv.sizes == {} and in_latex.text == in_csv.text == "3"


@pytest.mark.parametrize(
    ("cell", "note"),
    [
        (r"$d^2$ if $l \leq d$; $d^2$ if $l > d$", ""),
        (r"$d^2$ if $l > d \text{ and } d > 3$", ""),
        (r"$d^2$ if $l$; $l$ if $l > d$", "'l': expected a condition such as l > d"),
        (r"$l$ if $l < d < n$", "'l < d < n': expected a condition such as l > d"),
        ("$d^2 = d^2 = 1$", "expected a formula and at most one simplification, got 3 formulas"),
    ],
)
def test_a_cell_has_cases_and_one_simplification(cell: str, note: str, tmp_path: Path) -> None:
    path = tmp_path / "paper.tex"
    path.write_text(
        rf"\begin{{tabular}}{{ll}} Layer & Parameters \\ WE & {cell} \end{{tabular}}",
        encoding="utf-8",
    )
    ((claim,), _, _) = vars(claims(path, Asked(phase="training"))).values()
    assert claim.unchecked == note


def test_columns_may_share_a_heading_and_rows_may_lack_a_phase_or_fit_no_mixer(
    tmp_path: Path,
) -> None:
    path = tmp_path / "paper.csv"
    rows = "she,zzz,1,2\nshe{d=0},,3,4\nshe,--,5,--\n"
    path.write_text(f"mixer,phase,mul,mul\n{rows}", encoding="utf-8")
    one, two, three = claims(path, Asked()).claims
    assert (one.claimed, two.claimed, three.claimed) == ("1", "2", "5")
    assert one.unchecked.startswith("unknown phase 'zzz': expected one of training")
    assert not three.unchecked


def test_a_row_without_a_phase_has_that_of_the_caption() -> None:
    table = r"\begin{tabular}{lrr} Layer & phase & mul \\ SHE & & 3 \end{tabular}"
    (cell,) = of_latex(rf"\caption{{One new token}} {table}", {})
    assert cell.labels == {"phase": "inference"}


def test_each_row_of_latex_that_is_not_read_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "paper.tex"
    rows = (
        r"Layer & Parameters & Sequential", r"SHE & $2 d^2$", r"& $d$ & 7",
        r"ME & \multicolumn{2}{c}{$d$}", r"\multicolumn{3}{c}{others}", r"HE & 5 & 2 & -- & 3",
    )  # fmt: skip
    table = "\\begin{tabular}{lcc}" + r" \\ ".join(rows) + "\\end{tabular}"
    path.write_text(table, encoding="utf-8")
    found = checked(path, capsys)
    assert [claim["place"] for claim in found["claims"]] == ["SHE, Parameters"]
    assert found["left_out"] == [
        "a row without a name: its first cell names the mixer: 2 left out",
        "row 'ME' has 2 cells below 3 headings: 1 left out",
        "row 'HE' has 5 cells below 3 headings: 3 left out",
    ]


def test_a_rounded_number_without_sizes_is_not_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "paper.csv"
    path.write_text("model,# Params (M)\nTransformer,0.066\n", encoding="utf-8")
    (claim,) = checked(path, capsys)["claims"]
    assert claim["verdict"] == "not-checkable" and "gives no sizes" in claim["note"]


def test_a_table_ends_with_what_disagrees_and_what_was_not_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "paper.csv"
    path.write_text(VASWANI, encoding="utf-8")
    assert cli.run(["check", str(path), "--format", "markdown"]) == 1
    end = capsys.readouterr().out.partition("## What disagrees\n\n")[2].splitlines()
    assert end[0] == "- Recurrent [2], Sequential Operations: O(1); derived O(l)"
    assert end[2] == "## What was not checked"
    assert [line.partition(":")[0] for line in end[4:6]] == [
        "- Self-Attention (restricted), Complexity per Layer",
        "- Self-Attention (restricted), Maximum Path Length",
    ]
    assert all("; or name the size meant, by --symbols r=SIZE" in line for line in end[4:6])
    assert end[-1] == "12 claims: 8 agrees, 1 agrees-in-limit, 1 disagrees, 2 not-checkable"


def test_strictly_all_of_a_table_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "paper.csv"
    for text, plain, strict in (
        ("mixer,mul\nme,d*l*(l+1)/2\n", 0, 0),
        ("mixer,mul\nme,l\n", 1, 1),
        ("mixer,mul\nme,k\n", 0, 1),
        ("mixer,mul,accuracy\nme,d*l*(l+1)/2,93\n", 0, 1),
    ):
        path.write_text(text, encoding="utf-8")
        assert cli.run(["check", str(path)]) == plain, text
        assert cli.run(["check", str(path), "--strict"]) == strict, text


@pytest.mark.grid(2)
@pytest.mark.parametrize(("heading", "cell", "quantity"), [
    ("# Params", "4d^2", "parameters"),
    ("Number of parameters", "4d^2", "parameters"),
    ("Params (K)", "65.5", "parameters"),
    ("Parameters", "65.5K", "parameters"),
    ("Time", "O(l^2 d + l d^2)", "total"),
    ("Time complexity", "l^2 d + l d^2", "total"),
    ("Time complexity", r"\Theta(l^2 d + l d^2)", "total"),
    ("FLOPs", "8 l d^2 + 4 l^2 d", "total"),
    ("Memory", "O(l^2 n + l d)", "activations"),
    ("Max. path length", "O(1)", "path_length"),
    ("Sequential ops", "O(1)", "sequential"),
])  # fmt: skip
@pytest.mark.parametrize("row", ["Transformer", "Attention (Vaswani et al., 2017)"])
def test_other_words_for_rows_and_columns(
    row: str, heading: str, cell: str, quantity: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "paper.csv"
    path.write_text(f'model,l,d,n,{heading}\n"{row}",,128,8,"{cell}"\n', encoding="utf-8")
    (claim,) = checked(path, capsys)["claims"]
    assert (claim["mixer"], claim["quantity"]) == ("self-attention", quantity)
    assert claim["verdict"].startswith("agrees"), claim


def test_a_measured_time_is_no_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "paper.csv"
    path.write_text("model,Time\nSelf-attention,12.3 ms\nLSTM,n/a\n", encoding="utf-8")
    (claim,) = checked(path, capsys)["claims"]
    assert claim["verdict"] == "not-checkable" and "measured number" in claim["note"]


@pytest.mark.parametrize("sizes", [["--l", "5"], ["--symbolic"]])
@pytest.mark.parametrize("format_", ["csv", "latex"])
def test_operations_without_a_class_of_their_own_are_claims(
    sizes: list[str], format_: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At sizes LaTeX names each quantity in one cell: `30,720 compare, 1,024 sqrt`."""
    path = tmp_path / ("own.csv" if format_ == "csv" else "own.tex")
    words = ["table", "lstm", "reformer", "--phase", "training", "--columns", "mixer,other"]
    assert cli.run([*words, *sizes, "--format", format_, "-o", str(path)]) == 0
    found = checked(path, capsys)
    assert {claim["verdict"] for claim in found["claims"]} == {"agrees"}
    assert "left_out" not in found
    named = {"tanh", "compare", "sqrt"}
    whole = {"other"} if format_ == "csv" or "--symbolic" in sizes else set[str]()
    quantities = {claim["quantity"] for claim in found["claims"]}
    assert quantities == whole | (named if format_ == "csv" or not whole else set[str]())
    text = path.read_text(encoding="utf-8")
    if "1,280 tanh" in text:
        path.write_text(text.replace("1,280 tanh", "1,281 tanh"), encoding="utf-8")
        assert cli.run(["check", str(path)]) == 1


OTHERS: dict[tuple[str, str], dict[str, str]] = {
    ("other", "cos = 2*l*m*n"): {"cos": "agrees"},
    ("other", "cos: 2*l*m*n; sin: 3*l*m*n"): {"cos": "agrees", "sin": "disagrees"},
    ("other", "2lmn cosines + 2lmn sin + 2ln sqrt"): dict.fromkeys(
        ("cos", "sin", "sqrt"), "agrees"
    ),
    ("other", "Max(l, 0)*m*n + l*m*n cos"): {"cos": "agrees"},
    ("other", "other = 4*l*m*n + 2*l*n"): {"other": "agrees"},
    ("other", "4*l*m*n + 2*l*n"): {"other": "agrees"},
    ("other", "cos = O(l*m*n)"): {"cos": "agrees"},
    ("other", "foo = 2*l*m*n"): {"other": "not-checkable"},
    ("other", "l*sqrt"): {"other": "not-checkable"},
    ("other", "2*l*m*n cos, 3*l*m foo"): {"other": "not-checkable"},
    ("other (cos)", "2*l*m*n"): {"cos": "agrees"},
    ("other: cos", "2*l*m*n"): {"cos": "agrees"},
}
"""Heading and cell of RFA, as papers write them -> quantity -> verdict."""


@pytest.mark.parametrize(("heading", "cell"), OTHERS)
def test_the_heading_or_the_cell_names_an_operation(
    heading: str, cell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "paper.csv"
    path.write_text(f'model,{heading}\nrfa,"{cell}"\n', encoding="utf-8")
    made = checked(path, capsys)["claims"]
    assert {claim["quantity"]: claim["verdict"] for claim in made} == OTHERS[heading, cell]
    assert ("foo is no class of operations: expected" in made[0]["note"]) == ("foo" in cell)
    assert ("as in '2*l sqrt'" in made[0]["note"]) == (cell == "l*sqrt")


@pytest.mark.grid(2)
@pytest.mark.parametrize("format_", ["csv", "latex"])
@pytest.mark.parametrize(
    ("phase", "sizes", "back"),
    [
        ("training", ["--symbolic"], []),
        ("inference", ["--symbolic"], []),
        ("training-step", ["--symbolic"], []),
        ("training", ["--d", "12", "--l", "5", "--n", "3"], []),
        ("inference", ["--d", "12", "--l", "5", "--n", "3"], []),
        ("training", ["--symbolic", "--symbols", "l=N,d=d_model"], ["--symbols", "N=l,d_model=d"]),
    ],
)
def test_own_tables_agree(
    phase: str, sizes: list[str], back: list[str], format_: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if back and format_ == "csv":
        sizes, back = ["--symbolic", "--b", "3"], []
    path = tmp_path / ("own.csv" if format_ == "csv" else "own.tex")
    mixers = ["self-attention", "she", "me", "linear-attention"]
    words = ["table", *mixers, "--phase", phase, *sizes, "--format", format_, "-o", str(path)]
    assert cli.run(words) == 0
    found = checked(path, capsys, *back)
    assert {claim["verdict"] for claim in found["claims"]} == {"agrees"}
    assert len(found["claims"]) >= 4 * 6
    assert {claim["mixer"] for claim in found["claims"]} == {*mixers}


SIZED = ["gqa{n=4,g=2}", "gqa{n=4,g=1}", "mamba-2{n=4,P=4,N=3,G=1}", "self-attention{n=3,h=5}"]


@pytest.mark.parametrize(
    ("words", "back"),
    [
        (["--d", "24", "--l", "5"], ""),
        (["--d", "24", "--l", "5", "--symbols", "l=N,d=D,N=S"], "N=l,D=d,S=N"),
        (["--symbolic", "--symbols", "l=N,d=D,N=S"], "N=l,D=d,S=N"),
    ],
)
def test_rows_with_sizes_in_braces_are_read_back(
    words: list[str], back: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row has its own sizes, and the last row those of the caption."""
    path = tmp_path / "own.tex"
    columns = ["--columns", "mixer,total,parameters", "--phase", "inference"]
    table = ["table", *SIZED, "self-attention", *columns, *words, "--format", "latex"]
    assert cli.run([*table, "-o", str(path)]) == 0
    found = checked(path, capsys, *(["--symbols", back] if back else []))
    assert {claim["verdict"] for claim in found["claims"]} == {"agrees"}, found
    assert {load_mixer(claim["mixer"]) for claim in found["claims"]} == {
        *map(load_mixer, (*SIZED, "self-attention"))
    }
    assert "left_out" not in found


def test_a_row_with_sizes_may_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its title alone, which takes the row's sizes, or together with its sizes."""
    row = r"\begin{tabular}{ll}Mixer & Parameters\\Ours, $n = 4$, $K = 1$ & $2d^2 + d^2/2$\\"
    path = tmp_path / "paper.tex"
    path.write_text(row.replace(", $K = 1$", "") + r"\end{tabular}", encoding="utf-8")
    (claim,) = checked(path, capsys, "--mixers", "Ours=mqa")["claims"]
    assert (load_mixer(claim["mixer"]), claim["verdict"]) == (load_mixer("mqa{n=4}"), "agrees")
    path.write_text(row + r"\end{tabular}", encoding="utf-8")
    (left,) = checked(path, capsys, "--mixers", "Ours=mqa")["left_out"]
    assert "--mixers 'Ours{n=4,K=1}=NAME'" in left
    (claim,) = checked(path, capsys, "--mixers", "Ours{n=4,K=1}=mqa{n=4}")["claims"]
    assert (load_mixer(claim["mixer"]), claim["verdict"]) == (load_mixer("mqa{n=4}"), "agrees")


READ_BACK = (
    "mixer,form,mul,add,sqrt,other,total,parameters,path,span,sequential,path_length,state,peak"
)


@pytest.mark.grid(15)
@pytest.mark.parametrize(("mixer", "format_"), [*zip(names(), cycle(["csv", "latex"]))])
def test_what_is_printed_of_a_mixer_is_read_back(
    mixer: str, format_: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    instead: Instead,
) -> None:  # fmt: skip
    """Maxima and cases too; `agrees-under` is what `once` has apart."""
    instead(identities_searched=200)
    path = tmp_path / ("own.csv" if format_ == "csv" else "own.tex")
    words = ["table", mixer, "--symbolic", "--columns", READ_BACK, "--format", format_]
    assert cli.run([*words, "-o", str(path)]) == 0
    found = checked(path, capsys)
    verdicts = {claim["place"]: claim["verdict"] for claim in found["claims"]}
    assert {*verdicts.values()} <= {"agrees", "agrees-under"}, verdicts
    assert len(found["claims"]) >= 7


def test_a_selection_of_columns_is_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.csv"
    words = ["table", "she", "longformer", "--columns", "mul,add", "--format", "csv"]
    assert cli.run([*words, "-o", str(path)]) == 0
    found = checked(path, capsys)
    assert [claim["verdict"] for claim in found["claims"]] == ["agrees"] * 6


@pytest.mark.parametrize("format_", ["csv", "latex"])
def test_a_critical_path_is_read_back_at_its_sizes(
    format_: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At l <= B all rows are one block, and another path is as long as the one for long texts."""
    path = tmp_path / ("own.csv" if format_ == "csv" else "own.tex")
    words = ["table", "strided-attention", "fixed-attention", "--l", "8,40", "--columns"]
    assert cli.run([*words, "mixer,l,path", "--format", format_, "-o", str(path)]) == 0
    found = checked(path, capsys)
    assert [claim["verdict"] for claim in found["claims"]] == ["agrees"] * len(found["claims"])
    assert len(found["claims"]) >= 4


def test_what_a_search_finds_is_read_back_at_its_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.csv"
    words = ["table", "strided-attention", "fixed-attention", "--l", "8,40", "--columns"]
    shown = ["mixer,path_length", "--phase", "training", "--format", "csv", "-o", str(path)]
    assert cli.run([*words, *shown]) == 0
    verdicts = [claim["verdict"] for claim in checked(path, capsys)["claims"]]
    assert verdicts == ["agrees"] * 4
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("attention,2,", "attention,3,"), encoding="utf-8")
    verdicts = [claim["verdict"] for claim in checked(path, capsys)["claims"]]
    assert sorted(verdicts) == ["agrees", "agrees", "disagrees", "disagrees"]


def test_a_wrong_path_at_sizes_is_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not all sizes are given; at l = 8 the chain of long texts is longer than any there is."""
    long = "mul sum mul sum div exp sum add add mul sum mul sum"
    path = tmp_path / "own.csv"
    rows = ["me,inference,8,mul mul", "linear-attention,training,8,mul"]
    rows.append(f"strided-attention,training,8,{long}")
    path.write_text("\n".join(["mixer,phase,l,critical_path", *rows]))
    assert [c["verdict"] for c in checked(path, capsys)["claims"]] == ["disagrees"] * 3


def test_a_table_per_token_is_one_of_all_sequences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.csv"
    words = ["table", "self-attention", "rfa+causal", "--per-token", "--b", "4", "--l", "16"]
    shown = ["--phase", "training", "--columns", "mixer,mul,add,total", "--format", "csv"]
    assert cli.run([*words, *shown, "-o", str(path)]) == 0
    found = checked(path, capsys)["claims"]
    assert [claim["verdict"] for claim in found] == ["agrees-under"] * 6
    assert all("per token" in claim["conventions"] for claim in found)


def test_sizes_that_do_not_fit_a_row_s_own_are_not_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.csv"
    path.write_text("mixer,n,span\nself-attention,2,19\n")
    assert cli.run(["check", str(path)]) == 1
    assert "first differs at: n = 2, d = 2, l = 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["--symbolic"], ["--l", "8,16"], ["--l", "8", "--symbols", "l=N"]]
)
def test_columns_say_the_form_and_the_sizes_of_a_row(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In LaTeX, where sizes of all rows stand in the caption alone."""
    path = tmp_path / "own.tex"
    asked = ["linear-attention", "--form", "all", "--columns", "mixer,form,mul,span"]
    assert cli.run(["table", *asked, *words, "--format", "latex", "-o", str(path)]) == 0
    found = checked(path, capsys, *(["--symbols", "N=l"] if "--symbols" in words else []))
    assert {claim["verdict"] for claim in found["claims"]} == {"agrees"}
    assert len(found["claims"]) == 12 * (2 if "8,16" in words else 1) and "left_out" not in found


def test_a_caption_gives_each_mixer_its_own_value_of_a_letter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`groups of heads (mamba-2) $G = 1$` beside `rank of the gate (rwkv-7) $G = 64$`."""
    path = tmp_path / "own.tex"
    words = ["table", "mamba-2", "rwkv-7", "--phase", "inference", "--l", "5"]
    assert (
        cli.run([*words, "--columns", "mixer,sqrt,mul", "--format", "latex", "-o", str(path)]) == 0
    )
    found = checked(path, capsys)
    assert {claim["mixer"] for claim in found["claims"]} == {"mamba-2", "rwkv-7"}
    assert {claim["verdict"] for claim in found["claims"]} == {"agrees"}


def test_rows_are_known_by_their_titles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a comma of their own, with options, with a form."""
    path = tmp_path / "own.tex"
    mixers = ["fixed-attention", "mega+chunk", "dss+softmax", "she"]
    words = ["table", *mixers, "--symbolic", "--form", "all", "--phase", "inference"]
    assert cli.run([*words, "--columns", "mixer,exp", "--format", "latex", "-o", str(path)]) == 0
    found = checked(path, capsys)
    assert {claim["mixer"] for claim in found["claims"]} == {*mixers}
    assert {claim["verdict"] for claim in found["claims"]} == {"agrees"}
    assert "left_out" not in found


def test_what_is_changed_in_an_own_table_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.csv"
    assert cli.run(["table", "me", "--phase", "training", "--format", "csv", "-o", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("1056768", "1056769"), encoding="utf-8")
    found = checked(path, capsys)
    wrong = [claim["place"] for claim in found["claims"] if claim["verdict"] != "agrees"]
    assert wrong == ["me, mul"]


def test_rows_are_named_one_by_one_or_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The option may be repeated; a comma in parentheses or braces is a part of the label."""
    path = tmp_path / "paper.csv"
    text = 'model,parameters\n"Fast (grouped, wide)",1\nOurs,l\nTheirs,l\n'
    path.write_text(text, encoding="utf-8")
    fast, ours, theirs = "Fast (grouped, wide)=mqa{n=4}", "Ours=me", "Theirs=she"
    for words in (
        ("--mixers", fast, "--mixers", f"{ours},{theirs}"),
        ("--mixers", f"{theirs}, {fast},{ours}"),
    ):
        found = checked(path, capsys, *words)
        assert "left_out" not in found
        named = [load_mixer(claim["mixer"]) for claim in found["claims"]]
        assert named == [load_mixer(x) for x in ("mqa{n=4}", "me", "she")]


@pytest.mark.parametrize(("text", "words", "said"), [
    ("", [], "found no cell of a table"),
    ("mixer,mul\nme,\"1\n", [], "own.csv is not a readable table: unexpected end of data"),
    ("mixer,mul\nme,1\n", ["--claim", "mul = 4"], "is a table of claims: leave out --claim"),
    ("mixer,mul\nme,1\n", ["--mixers", "me"], "--mixers 'me': expected NAME=MIXER"),
    ("mixer,mul\nme,1\n", ["--mixers", "me=nosuch"], "unknown mixer 'nosuch'"),
    ("mixer,mul\nme,1\n", ["--mixers", "me=me", "--mixers", "me=she"],
     "--mixers gives the row me two mixers"),
    ("mixer,mul\nme,1\n", ["--symbols", "N"], "expected a paper's SYMBOL=LETTER"),
])  # fmt: skip
def test_a_bad_table_is_one_sentence(
    text: str, words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.csv"
    path.write_text(text, encoding="utf-8")
    assert cli.run(["check", str(path), *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize(("name", "reason"), [
    ("none.csv", "No such file or directory"),
    ("none.tex", "No such file or directory"),
    ("", "Is a directory"),
])  # fmt: skip
def test_a_file_that_cannot_be_read_is_told(name: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with pytest.raises(PublishedError) as told:
        claims(path, Asked())
    assert str(told.value) == f"{path} is not a readable table: {reason}"


def test_a_row_imports_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "theirs.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    path = tmp_path / "own.csv"
    path.write_text(f"mixer,mul\n{tmp_path}/theirs.py:x,1\nme,1\n", encoding="utf-8")
    (left_out,) = checked(path, capsys)["left_out"]
    assert "theirs.py:x' is no known mixer" in left_out


@pytest.mark.parametrize(
    ("row", "mixer"),
    [("Linear Transformer", "linear-attention"), ("AFT-local (AFT-conv)", "aft-local")],
)
def test_rows_of_other_papers_are_known(
    row: str, mixer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Zhai et al. 2021, Table 1."""
    path = tmp_path / "paper.csv"
    path.write_text(f'model,Time\n"{row}",O(l d^2)\n', encoding="utf-8")
    (claim,) = checked(path, capsys)["claims"]
    assert claim["mixer"] == mixer
