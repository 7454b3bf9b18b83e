"""Sizes in braces behind a mixer's name, letters that a mixer brings, and a free head width."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest

import cli
import costmodel as cm
from costmodel.errors import EquationError, ModelError, SizeError, UnknownMixer
from costmodel.language.equations import Mixer
from costmodel.language.options import braces, listed
from costmodel.mixers.load import mixer as load_mixer
from costmodel.networks import changed, network, preset
from costmodel.proofs.tried_sizes import equation_sizes
from profiler.networks import twin

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command; the result is what it prints, also on stderr."""

    def printed(*words: str) -> str:
        cli.run(list(words))
        shown = capsys.readouterr()
        return shown.out + shown.err

    return printed


OWN = """
import costmodel as cm

own = cm.Mixer("own", title="Own")
l, d = own.sizes("l d")
P = own.size("P", "width of the middle", 64)
x = own.input("x", l, d)
W, U = own.parameter("W", d, P), own.parameter("U", P, d)
y = own.output("y", l, d)
with own.form("direct") as f:
    i, a, p, o = f.index("i", 1, l), f.index("a", 1, d), f.index("p", 1, P), f.index("o", 1, d)
    u = f.array("u", l, P)
    u[i, p] = cm.sum_(x[i, a] * W[a, p], over=a)
    y[i, o] = cm.sum_(u[i, p] * U[p, o], over=p)
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    """The name of a mixer in a user's file that brings the size P."""
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path / 'own.py'}:own"


def test_sizes_in_braces_are_the_mixers() -> None:
    plain = cm.mixer("self-attention+grouped")
    bound = load_mixer("self-attention+grouped{n=32, g=8}")
    assert bound.name == "self-attention+grouped{n=32,g=8}"
    at = {"l": 5, "d": 64}
    assert cm.count(bound).at(**at) == cm.count(plain).at(n=32, g=8, **at)
    assert cm.count(bound).at(n=32, g=8, **at) == cm.count(bound).at(**at)
    with pytest.raises(SizeError, match=r"g = 1 is not read, as .*\{n=32,g=8\} has g = 8"):
        cm.count(bound).at(n=32, g=1, **at)
    assert load_mixer(bound.name) is bound


def test_a_head_width_in_braces_is_a_size_by_itself() -> None:
    """Qwen3-0.6B has d = 1024 and 16 heads of 128: 2 d n h + 2 d g h parameters."""
    wide = load_mixer("self-attention+grouped{n=16,g=8,h=128}")
    assert cm.parameters(wide).at(d=1024) == 2 * 1024 * 16 * 128 + 2 * 1024 * 8 * 128
    grouped = cm.mixer("self-attention+grouped")
    same = load_mixer("self-attention+grouped{n=16,g=8,h=64}")
    for phase in ("training", "inference", "training-step"):
        sizes = {"l": 7, "t": 7, "d": 1024}
        plain = cm.count(grouped, phase).at(n=16, g=8, **sizes)
        assert cm.count(same, phase).at(**sizes) == plain
        span = cm.span(grouped, phase).at(n=16, g=8, **sizes)
        assert cm.span(same, phase).at(**sizes) == span


def test_heads_of_their_own_width_need_no_groups() -> None:
    heads, groups = "self-attention+rotary{n=6,h=4}", "self-attention+grouped+rotary{n=6,g=6,h=4}"
    for phase in ("training", "inference", "training-step"):
        one, two = (cm.count(load_mixer(name), phase).at(l=7, t=7, d=10).total
                    for name in (heads, groups))  # fmt: skip
        assert one == two


def test_equations_that_need_h_to_be_d_over_n_are_refused() -> None:
    with pytest.raises(EquationError, match=r"linformer\{h=16\} has h = d/n in its equations: "):
        cm.count(load_mixer("linformer{h=16}"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("she{r=3}", "she has no size r of its own: its braces take d"),
        ("she{l=3}", "she has no size l of its own"),
        ("she{d=0}", r"size d must lie in 1..2\*\*40, got 0"),
        ("she{d=4", "sizes stand in braces at the end, such as she{n=32,h=128}"),
        (
            "she{d}",
            "a size in braces is one whole number, with a comma before the next size, such "
            r"as she\{n=32,h=128\}; got 'd'",
        ),
        ("she{d=x}", "got 'x'"),
        ("she{d=1.5}", "got '1.5'"),
        ("she{d=8,16}", "got '16'"),
        ("she{d=-1}", r"size d must lie in 1..2\*\*40, got -1"),
        ("she{d=4}+bias", "sizes stand in braces at the end"),
        ("she{d=4,d=5}", "gives size d twice"),
        ("she{}", "got nothing"),
        ("she{d=1000000000000000000000000}", r"size d must lie in 1..2\*\*40"),
        ("self-attention+wide{P=2}", "no size P of its own: its braces take d, n, K, V"),
    ],
)
def test_wrong_braces_get_one_sentence(name: str, said: str) -> None:
    with pytest.raises((UnknownMixer, SizeError), match=said):
        load_mixer(name)


def test_commas_inside_braces_split_nothing() -> None:
    assert listed("a+b{n=1,g=2},c , d{h=3}") == ["a+b{n=1,g=2}", "c", "d{h=3}"]
    assert braces("a+b{n=1,g=2}") == {"n": 1, "g": 2}


def test_a_row_of_a_table_has_the_sizes_of_its_mixer(run: Run) -> None:
    """A flag is everybody's, but for a mixer with the size in braces."""
    grouped = "self-attention+grouped"
    words = ("--d", "32", "--g", "8", "--phase", "training", "--format", "csv", "--columns", "mul")
    rows = csv.DictReader(io.StringIO(run("table", f"{grouped}{{n=4,g=2}}", grouped, *words)))
    found = {row["mixer"]: int(row["mul"]) for row in rows}
    count = cm.count(cm.mixer(grouped))
    assert found == {
        f"{grouped}{{n=4,g=2}}": count.at(l=128, d=32, n=4, g=2).mul,
        grouped: count.at(l=128, d=32, n=8, g=8).mul,
    }


def test_a_mixer_brings_a_letter(run: Run, own: str) -> None:
    shown = run("table", own, "--d", "8", "--phase", "training")
    assert "width of the middle P = 64" in shown
    flagged = run("table", own, "--d", "8", "--P", "4", "--format", "csv")
    braced = run("table", f"{own}{{P=4}}", "--d", "8", "--format", "csv")
    assert braced.replace("own{P=4}", "own") == flagged
    assert cm.parameters(load_mixer(f"{own}{{P=4}}")).at(d=8) == 64
    assert cm.parameters(load_mixer(own)).at(d=8, P=4) == 64
    assert "P width of the middle" in run("explain", own)


def test_claims_name_the_letters_of_their_mixer(run: Run, own: str) -> None:
    """In formulas, as a paper's symbol and among the sizes at which the claim is checked."""
    claim = ("check", own, "--format", "json", "--claim")
    for said, verdict in {
        "mul = 2*P*d*l": "agrees",
        "mul = 3*P*d*l": "disagrees",
        "parameters = O(P*d)": "agrees",
        "parameters = O(P)": "agrees-in-limit",
    }.items():
        assert f'"verdict": "{verdict}"' in run(*claim, said), said
    assert '"verdict": "agrees"' in run(*claim, "mul = 2Hdl", "--symbols", "H=P")
    assert "claim 1: Q is no size of" in run(*claim, "mul = 2*Q*d*l")


def test_claims_give_sizes_of_their_mixer(run: Run, own: str, tmp_path: Path) -> None:
    record = (
        'schema = 1\nsource = "a"\ncitation = "a"\nread_from = "a"\nconvention = ["strict"]\n'
        '[[claims]]\nid = "one"\nplace = "a"\nkind = "number"\nclaimed = "a"\n'
        f'mixer = "{own}"\nquantity = "parameters"\nvalue = "30"\nsizes = {{ d = 3, P = 5 }}\n'
    )
    (tmp_path / "claims.toml").write_text(record)
    words = ("check", str(tmp_path / "claims.toml"), "--own", own.partition(":")[0])
    assert "1 claim: 1 agrees" in run(*words)
    (tmp_path / "claims.toml").write_text(record.replace("P =", "Q ="))
    assert "Q is no size of" in run(*words)


def test_a_letter_of_no_mixer_is_refused(run: Run, own: str) -> None:
    for command in (["table", own, "--Q", "3"], ["explain", own, "--Q", "3"]):
        said = "costmodel: size Q is a size of none of these mixers: expected one of P, b, d, l, t"
        assert run(*command) == f"{said}\n"
    with pytest.raises(SizeError, match="unknown size 'Q'"):
        cm.count(load_mixer(own)).at(l=1, d=2, P=3, Q=4)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("table gqa{n=2,g=1} --n 4 --d 8", "n is read by none of these mixers: the braces of "
         "self-attention+grouped{n=2,g=1} say n"),
        ("explain gqa{n=2} --n 4", "the braces of self-attention+grouped{n=2} say n"),
        ("explain gqa{n=2} --against mqa{n=2} --n 4", "n is read by none"),
        ("budget gqa{n=2} --state 1GB --n 4", "n is read by none"),
        ("match gqa{n=2} --to mqa{n=2} --by total --vary d --n 4", "n is read by none"),
        ("match gqa{n=2} --to mqa{n=2} --by total --vary n", "{n=2,g=1} say n: to vary n, leave it "
         "out of the braces"),
        ("crossover gqa{n=2} mqa{n=2} --over l --n 4", "n is read by none"),
        ("crossover gqa{n=2} mqa{n=2} --over n", "n is read by none"),
        ("profile gqa{n=2} --n 4", "n is read by none"),
        ("model decoder --mixer gqa{n=2} --n 4 --d 8", "-attention+grouped{n=2} say n"),
        ("table gpt-2{l=3} --l 5", "the braces of gpt-2{l=3} say l"),
        ("table gpt-2 --n 4", "n is read by none of these mixers: gpt-2 has n = 12"),
        ("table gpt-2 gqa{n=2} --n 4", "+grouped{n=2} say n and gpt-2 has n = 12"),
    ],
)  # fmt: skip
def test_a_flag_that_braces_leave_without_a_reader_is_refused(
    command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(command.split()) == 2
    shown = capsys.readouterr()
    assert not shown.out and shown.err.startswith("costmodel: size") and said in shown.err


def test_a_flag_that_another_mixer_reads_stays(run: Run) -> None:
    assert "heads n = 4" in run("table", "gqa{n=2,g=1}", "self-attention", "--n", "4", "--d", "8")
    assert "heads n = 4" in run("table", "gpt-2", "self-attention", "--n", "4", "--d", "8")


def test_a_size_in_braces_is_read_as_that_of_a_flag() -> None:
    assert load_mixer("she{d=1k}") is load_mixer("she{d=1024}")


def test_a_head_width_stands_in_braces(run: Run) -> None:
    said = "the width of a head stands in braces, such as self-attention{h=3}"
    assert run("table", "she", "--h", "3") == f"costmodel: table has no option --h: {said}\n"


def test_a_shared_letter_may_get_another_default_and_meaning(run: Run, tmp_path: Path) -> None:
    text = OWN.replace('size("P", "width of the middle", 64)', 'size("N", "states", 128)')
    (tmp_path / "states.py").write_text(text)
    out = run("table", f"{tmp_path / 'states.py'}:own", "s4d", "--d", "8")
    assert "states (own) N = 128" in out
    assert "SSM state per channel N = 16" in out


@pytest.mark.parametrize("letter", ["b", "l", "d", "h", "L", "PQ", "", "1", "é"])
def test_a_letter_with_a_fixed_meaning_is_refused(letter: str) -> None:
    with pytest.raises(EquationError, match=r"declares size|gives size"):
        Mixer("mine").size(letter, "something else", 3)


def test_one_declaration_of_a_size_may_stand_twice() -> None:
    m = Mixer("mine")
    assert m.size("P", "a width", 4) == m.size("P", "a width", 4)
    assert m.letter("P").default == 4


def test_layers_of_a_network_have_sizes_of_their_own() -> None:
    """Two attentions of 2 d n h + 2 d g h parameters with different heads."""
    one, two = "self-attention+grouped{n=4,g=2,h=16}", "self-attention+grouped{n=2,g=1,h=64}"
    net = network(changed(preset("decoder"), {"mixers": f"{one},{two}"}), L=2)
    both = {part.use.label: part for part in net.costs("training")}
    d = 64
    for name, (n, g, h) in {one: (4, 2, 16), two: (2, 1, 64)}.items():
        assert both[name].parameters.at({"d": d}) == 2 * d * n * h + 2 * d * g * h


@pytest.mark.parametrize(
    "mixers", ["self-attention+grouped{n=4,g=2,h=16},she", "mamba-2{n=4,P=16,G=2},mamba-2"]
)
def test_a_twin_has_the_sizes_of_each_mixer(mixers: str) -> None:
    """In braces; else the defaults of the letters that the mixer brings, as the network counts."""
    sizes = {"d": 16, "l": 4, "u": 7, "n": 4}
    net = network(changed(preset("decoder"), {"mixers": mixers}), L=2, **sizes)
    numbers = sum(p.numel() for p in twin(net, sizes).parameters())
    assert numbers == net.parameters().at(**sizes, k=4)


def test_a_layer_has_one_input() -> None:
    with pytest.raises(ModelError, match=r"rwkv-7\+later reads several inputs"):
        network(changed(preset("decoder"), {"mixers": "rwkv-7+later"}))


def test_braces_are_proven_at_all_sizes(run: Run, own: str) -> None:
    """`check` tries other sizes than those in the braces, and head widths apart from d/n."""
    out = run("check", f"{own}{{P=4}}")
    assert "FAILS" not in out
    assert "P = 5" in out
    free = load_mixer("self-attention{h=16}").at_any_sizes
    assert any(sizes["h"] * sizes["n"] != sizes["d"] for sizes in equation_sizes(free))


def test_claims_have_the_sizes_in_braces(run: Run) -> None:
    """A number, a formula in the sizes that braces leave open, and a letter that they do not."""
    grouped, layer = "gqa{n=32,g=8,h=128}", "mamba-2{n=128,P=64,N=128,G=8,k=4}"
    assert "1 agrees" in run("check", grouped, "--claim", "parameters = 10240*d")
    assert "1 agrees" in run("check", layer, "--claim", "parameters = 26752*d + 59776")
    # h is the 128 of the braces, not d/n
    for name in (grouped, "gqa{n=32,g=8,h=16}", "gqa{h=16}"):
        told = run("check", name, "--claim", "parameters = 2*d*n*h + 2*d*g*h", "--claim",
                   "parameters = O(d*n*h)", "--claim", "parameters = n")  # fmt: skip
        assert "2 agrees, 1 disagrees" in told, name
    assert "s is no size of gqa{n=32}" in run("check", "gqa{n=32}", "--claim", "parameters = n*s")
    number = run("check", "mamba-2", "--claim", "parameters = 5")
    assert "at the default sizes d = 128, n = 8, k = 4, N = 128, G = 1, P = 64" in number


def test_a_claim_about_a_variant_tries_the_options_that_fit(run: Run) -> None:
    """s is a size of neither; `bias` is chosen, and `output-bias` excluded by it."""
    told = run("check", "self-attention+bias", "--claim", "parameters = s*d^2")
    assert "s is no size of self-attention+bias" in told
