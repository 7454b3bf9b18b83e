"""Is linear attention what Katharopoulos et al. 2020 (arXiv 2006.16236) write down?

Values and operations are written here from sections 3.2 to 3.4, head by head and token by token,
and share nothing with the package. The chunks are those of Hua et al. 2022 (arXiv 2202.10447). The
authors' library, fast_transformers, is not installed: the module rests on this reading, which a
second one in torch, by matrices, confirms.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it
from torch import Tensor

import costmodel as cm
from costmodel import order
from costmodel.errors import SizeError
from costmodel.language.functions import TABLE
from costmodel.oracle.scalars import FUNCTIONS
from costmodel.program.chosen_sizes import fit, letters_of
from costmodel.proofs.against_oracle import differences
from costmodel.questions.numeric import VALUES
from costmodel.report.document import Document, Page
from costmodel.report.explanation import Explanation
from costmodel.report.formats import write
from costmodel.report.mixer_document import sizes_line
from costmodel.report.mixer_table import Request, Row, table
from costmodel.report.writer import PLAIN_TEXT
from costmodel.symbolic.sizes import ceil_log2
from profiler.counting.dispatch import count_dispatch
from profiler.counting.operations import FUNCTIONS as COUNTED
from profiler.mixers.linear_attention import elu_plus_1
from profiler.modules import build, registry
from tests.mixers.held import (
    Array,
    Arrays,
    Sizes,
    drawn,
    equal_whole_and_stepped,
    everything_is_explained,
    module_of,
    operations,
    reconciled,
    tensors,
)
from tests.small import by_sizes

NAME = "linear-attention"
FORMS = ("recurrent", "parallel", "chunked")
MODULES = {
    "recurrent": "recurrent",
    "cumsum": "recurrent",
    "parallel": "parallel",
    "chunked": "chunked",
}
SIZES: list[Sizes] = [
    {"l": 5, "d": 6, "n": 2, "C": 2},
    {"l": 6, "d": 4, "n": 2, "C": 3},
    {"l": 7, "d": 6, "n": 3, "C": 7},
    {"l": 7, "d": 2, "n": 1, "C": 3},
    {"l": 2, "d": 3, "n": 3, "C": 1},
    {"l": 3, "d": 5, "n": 1, "C": 5},
    {"l": 1, "d": 2, "n": 1, "C": 1},
    {"l": 1, "d": 1, "n": 1, "C": 2},
]
"""Chunks that divide the length and that do not, of one token, of all, and longer than that."""
ROUNDING = 1e-11
"""Products of sums of at most 7 features, each at most some units, in float64."""

each_form = pytest.mark.parametrize("form", FORMS)
each_module = pytest.mark.parametrize("implementation", MODULES)
each_size = by_sizes(SIZES)


# --------------------------------------------------------------------------------------------------
# The values
# --------------------------------------------------------------------------------------------------


def phi(row: Array) -> Array:
    """elu(x) + 1, elu being x above 0 and exp(x) - 1 below."""
    return np.array([(v if v > 0 else math.exp(v) - 1) + 1 for v in row])


def as_an_rnn(W: Arrays, n: int) -> Array:
    """Section 3.4: s_0 = 0 and z_0 = 0; s += phi(k) v^T; z += phi(k); phi(q)^T s / phi(q)^T z."""
    x = W["x"]
    h = x.shape[1] // n
    heads = []
    for j in range(n):
        own = slice(j * h, (j + 1) * h)
        s, z, rows = np.zeros((h, h)), np.zeros(h), []
        for token in x:
            q, k, v = phi(token @ W["W_Q"][:, own]), phi(token @ W["W_K"][:, own]), token @ W["W_V"]
            s, z = s + np.outer(k, v[own]), z + k
            rows.append(q @ s / (q @ z))
        heads.append(np.array(rows))
    return np.concatenate(heads, axis=1) @ W["W_out"]


def as_attention(held: dict[str, Tensor], n: int) -> Tensor:
    """Section 3.3: similarities in place of exponentials of scores, later ones left out."""
    x = held["x"]
    q, k, v = ((x @ held[f"W_{name}"]).view(len(x), n, -1).transpose(0, 1) for name in "QKV")
    similar = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()
    rows: Tensor = (similar / similar.sum(-1, keepdim=True)) @ v
    return rows.transpose(0, 1).flatten(1) @ held["W_out"]


@each_form
@each_size
def test_equations_of_linear_attention_give_the_values_of_the_paper(
    form: str, sizes: Sizes
) -> None:
    arrays = drawn(NAME, sizes)
    expected = as_an_rnn(arrays, sizes["n"])
    np.testing.assert_allclose(
        as_attention(tensors(arrays), sizes["n"]).numpy(), expected, rtol=0, atol=ROUNDING
    )
    found = cm.evaluate(cm.mixer(NAME), arrays, dict(sizes), form)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)


@each_module
@each_size
def test_modules_of_linear_attention_give_the_values_of_the_paper(
    implementation: str, sizes: Sizes
) -> None:
    """Whole sequences, a batch of which does not mix, and token by token."""
    arrays = drawn(NAME, sizes)
    module = module_of(NAME, implementation, sizes, arrays)
    equal_whole_and_stepped(
        module, arrays["x"], lambda x: as_an_rnn(arrays | {"x": x}, sizes["n"]), ROUNDING
    )


# --------------------------------------------------------------------------------------------------
# The feature map: one exponential, one addition, one comparison, everywhere the same values
# --------------------------------------------------------------------------------------------------

POINTS = [-1000.0, -3.5, -1e-9, 0.0, 1e-9, 0.25, 7.0, 1000.0]


def test_the_feature_map_is_one_function() -> None:
    assert TABLE["elu_plus_1"].steps == ("exp", "add", "compare")
    given = torch.tensor(POINTS, dtype=torch.float64)
    expected = (F.elu(given) + 1).tolist()
    ours = elu_plus_1(given)
    assert ours.tolist() == pytest.approx(expected, abs=1e-15)
    assert [FUNCTIONS["elu_plus_1"](v) for v in POINTS] == pytest.approx(expected, abs=1e-15)
    assert list(VALUES["elu_plus_1"](np.array(POINTS))) == pytest.approx(expected, abs=1e-15)


def test_its_slope_is_finite_everywhere() -> None:
    """1 above 0 and exp(x) elsewhere: the branch not taken neither overflows nor spoils it."""
    given = torch.tensor(POINTS, dtype=torch.float64, requires_grad=True)
    elu_plus_1(given).sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    slopes = [1.0 if v > 0 else math.exp(v) for v in POINTS]
    assert given.grad is not None
    assert given.grad.tolist() == pytest.approx(slopes, abs=1e-15)


def test_torch_dispatches_what_the_table_counts() -> None:
    x = torch.zeros(2, 3)
    found = count_dispatch(elu_plus_1, x).operations
    assert found == COUNTED["elu_plus_1"] * 6
    assert (found.exp, found.add, dict(found.other)) == (6, 6, {"compare": 6})
    theirs = count_dispatch(lambda: F.elu(x) + 1).operations
    assert theirs.add == 12, "torch's elu subtracts 1, which is then added again"


# --------------------------------------------------------------------------------------------------
# Operations, one token after another. A sum of R terms is R - 1 additions.
# --------------------------------------------------------------------------------------------------


def pairs(done: Counter[str], seen: int, h: int) -> None:
    """A query of one head over the keys that it sees."""
    for _ in range(seen):
        done.update(mul=h, add=h - 1)  # a score
    done.update(add=seen - 1)  # their sum
    for _ in range(h):
        done.update(mul=seen, add=seen - 1)  # weighted values


def chunk(done: Counter[str], t: int, h: int, C: int) -> None:
    """A query of one head in chunks of C; its token may complete one."""
    pairs(done, (t - 1) % C + 1, h)
    later = t > C
    if later:
        for _ in range(h + 1):  # q s, and q z, each added to what the chunk gives
            done.update(mul=h, add=h - 1 + 1)
    if t % C == 0:
        done.update(mul=h * h * C, add=h * h * (C - 1 + later))  # s
        done.update(add=h * (C - 1 + later))  # z


def token(form: str, t: int, d: int, n: int, C: int) -> Counter[str]:
    """What token t takes, with what is kept of the earlier ones."""
    h, done = d // n, Counter[str]()
    for _ in range(4 * d):  # q, k, v, and the output
        done.update(mul=d, add=d - 1)
    done.update(exp=2 * d, add=2 * d, compare=2 * d)  # phi of q and k
    for _ in range(n):
        if form == "recurrent":
            done.update(mul=h * h, add=(h * h + h) * (t > 1))  # k v^T; s and z grow
            for _ in range(h + 1):  # q s, and q z
                done.update(mul=h, add=h - 1)
        elif form == "parallel":
            pairs(done, t, h)
        else:
            chunk(done, t, h, C)
        done.update(div=h)
    return +done


@each_form
@each_size
def test_operations_are_those_of_the_tokens(form: str, sizes: Sizes) -> None:
    l, d, n, C = (sizes[letter] for letter in ("l", "d", "n", "C"))
    whole: Counter[str] = sum((token(form, t, d, n, C) for t in range(1, l + 1)), Counter())
    assert operations(NAME, sizes, form=form) == whole
    for t in (1, 2, 3, 4, 30, 31):
        at = {**sizes, "t": t}
        assert operations(NAME, at, form=form, phase="inference") == token(form, t, d, n, C)


# l = 3, d = 4, n = 2 (h = 2), C = 2.
# Projections and output: 4 * 3 * 16 = 192 mul, 4 * 3 * 12 = 144 add;
# phi: 24 exp, 24 add, 24 compare; 12 div. Of both heads,
#   recurrent: k v^T 3 * 8 = 24, q s 3 * 8 = 24, q z 12 mul; s and z 2 * 12 = 24, q s 12, q z 6 add.
#   parallel, 6 pairs: scores 24, weighted 24 mul; scores 12, sums 2 * 3, weighted 4 * 3 add.
#   chunked, 4 pairs in chunks of 2 and 1 rows: scores 16, weighted 16 mul; scores 8, sums 2,
#   weighted 4 add. s of the first chunk: 2 * 4 * 2 = 16 mul, 8 add; z 4 add. Row 3: q s 8 mul,
#   4 + 4 add; q z 4 mul, 2 + 2 add. In all 16 + 16 + 16 + 12 = 60 mul, 14 + 12 + 12 = 38 add.
BY_HAND = {
    "recurrent": {"mul": 192 + 60, "add": 168 + 42, "div": 12, "exp": 24, "compare": 24},
    "parallel": {"mul": 192 + 48, "add": 168 + 30, "div": 12, "exp": 24, "compare": 24},
    "chunked": {"mul": 192 + 60, "add": 168 + 38, "div": 12, "exp": 24, "compare": 24},
}


@each_form
def test_operations_of_a_small_case(form: str) -> None:
    assert operations(NAME, {"l": 3, "d": 4, "n": 2, "C": 2}, form=form) == BY_HAND[form]


@pytest.mark.parametrize(("l", "h", "n"), [(1, 1, 1), (9, 4, 3), (64, 16, 2)])
def test_operations_of_linear_attention_equal_closed_forms(l: int, h: int, n: int) -> None:
    """Per head and token 2 h^2 + h products, or h + h a pair, beside four maps of width d."""
    d = n * h
    recurrent, parallel = (cm.count(cm.mixer(NAME), form=f).at(l=l, d=d, n=n) for f in FORMS[:2])
    assert recurrent.mul == 4 * l * d**2 + l * n * (2 * h * h + h)
    assert parallel.mul == 4 * l * d**2 + n * l * (l + 1) // 2 * 2 * h
    assert recurrent.div == parallel.div == l * d
    first, later = n * (h - 1) * (h + 1), n * (h * h + h + (h - 1) * (h + 1))
    maps = 4 * l * d * (d - 1) + 2 * l * d
    assert recurrent.add == maps + first + (l - 1) * later


@pytest.mark.parametrize(("chunks", "h", "n", "C"), [(2, 1, 1, 1), (4, 4, 3, 3), (5, 16, 2, 16)])
def test_closed_forms_of_whole_chunks(chunks: int, h: int, n: int, C: int) -> None:
    """Scalar decay 1, state passing from chunk to chunk, Ct = C(C+1)/2 pairs a chunk.

    mul  NC Ct 2h  pairs,  (NC-1) C h^2  q s,  NC C h^2  s of every chunk,  (NC-1) C h  q z
    add  NC (Ct (h-1) + (Ct-C) h)  pairs,  NC (Ct-C)  their sums,  (NC-1) C (h-1) (h+1)  q s and
         q z,  (NC-1) C (h+1)  added to those,  NC (C-1) (h^2+h) + (NC-1) (h^2+h)  s and z
    """
    mixer, l, d, inside = cm.mixer(NAME), chunks * C, n * h, C * (C + 1) // 2
    found = cm.count(mixer, form="chunked").at(l=l, d=d, n=n, C=C)
    mul = chunks * inside * 2 * h + (chunks - 1) * C * h * (h + 1) + chunks * C * h * h
    add = chunks * (inside * (h - 1) + (inside - C) * (h + 1))
    add += (chunks - 1) * C * (h - 1 + 1) * (h + 1)
    add += (chunks * (C - 1) + chunks - 1) * (h * h + h)
    assert found.mul == 4 * l * d**2 + n * mul
    assert found.add == 4 * l * d * (d - 1) + 2 * l * d + n * add
    assert (found.div, found.exp, found.other) == (l * d, 2 * l * d, {"compare": 2 * l * d})


@pytest.mark.parametrize(("l", "h", "n", "C"), [(5, 3, 2, 6), (16, 4, 1, 2**20)])
def test_one_chunk_longer_than_the_sequence_is_the_parallel_form(
    l: int, h: int, n: int, C: int
) -> None:
    mixer, d = cm.mixer(NAME), n * h
    parallel, chunked = (
        cm.count(mixer, form=form).at(l=l, d=d, n=n, C=C) for form in ("parallel", "chunked")
    )
    assert chunked.by_class() == parallel.by_class()
    whole = cm.count(mixer, form="chunked").at(l=l, d=d, n=n, C=l)
    assert whole.mul - parallel.mul == n * l * h * h, "s of the chunk, which the next token reads"
    assert whole.add - parallel.add == n * (l - 1) * (h * h + h), "s and z"


@pytest.mark.parametrize(("h", "C"), [(16, 4), (8, 8), (3, 5), (64, 16)])
def test_chunks_take_fewer_products_in_short_sequences_alone(h: int, C: int) -> None:
    """Of l = NC C tokens, l (C+1) h + (l-C) (h^2+h) + l h^2 against the recurrence's 2 l h^2 + l h.

    Fewer where l (C+1) < C (h+1): the first chunk reads no state, but tokens score pairs.
    """
    mixer = cm.mixer(NAME)
    recurrent, chunked = (cm.count(mixer, form=form) for form in ("recurrent", "chunked"))
    for chunks in range(1, 20):
        l = chunks * C
        at = {"l": l, "d": 2 * h, "n": 2, "C": C}
        fewer = chunked.at(**at).mul - recurrent.at(**at).mul
        assert fewer == 2 * h * (l * (C + 1) - C * (h + 1))


def test_which_form_takes_fewer_operations_is_told_at_sizes() -> None:
    """By the loops above, for all classes, whose counts are piecewise."""
    for sizes in SIZES:
        l, d, n, C = (sizes[letter] for letter in ("l", "d", "n", "C"))
        own, other = (
            sum(sum(token(form, t, d, n, C).values()) for t in range(1, l + 1))
            for form in ("chunked", "recurrent")
        )
        found = cm.crossover(f"{NAME}:chunked", f"{NAME}:recurrent", d=d, n=n, C=C)
        assert tuple(found.values(l).values()) == (own, other)
        (least,) = (one.least for one in found.ranges if one.first <= l <= one.last)
        assert least == tuple(
            name
            for name, it in zip(found.names, (own, other), strict=True)
            if it == min(own, other)
        )


def test_the_claim_is_linear_in_the_length() -> None:
    """Table 1 of SimpleTRON and section 3.2: O(N) as an RNN, O(N^2) by pairs."""
    mixer = cm.mixer(NAME)
    monomials = {
        form: {str(m) for m in order(cm.count(mixer, form=form).exact_total).monomials}
        for form in FORMS[:2]
    }
    assert monomials == {"recurrent": {"d**2*l"}, "parallel": {"d**2*l", "d*l**2"}}


# --------------------------------------------------------------------------------------------------
# Parameters, state, critical path and span
# --------------------------------------------------------------------------------------------------


def test_parameters_of_linear_attention_equal_a_count_by_hand() -> None:
    """Four maps without bias."""
    assert cm.parameters(cm.mixer(NAME)).at(d=6, n=2) == 4 * 36


def test_state_of_linear_attention_equals_a_count_by_hand() -> None:
    """S and z of every head, whatever the position; by pairs the features and values of all."""
    mixer = cm.mixer(NAME)
    for t in (1, 2, 90):
        assert cm.state(mixer, "recurrent").at(d=12, n=3, t=t) == 3 * (4 * 4 + 4)
        assert cm.state(mixer, "parallel").at(d=12, n=3, t=t) == 2 * 12 * t


def held_of_chunks(t: int, d: int, n: int, C: int) -> int:
    """S and z of every head once a chunk is complete; features and values of the running one."""
    h = d // n
    return n * (h * h + h) * (t >= C) + 2 * d * (t % C)


@pytest.mark.parametrize("C", [1, 2, 3, 5])
def test_the_state_of_chunks_is_a_sawtooth(C: int) -> None:
    mixer, made_ = cm.mixer(NAME), made("chunked", C=C)
    derived, state = cm.state(mixer, "chunked"), made_.initial_state(2)
    for t in range(1, 3 * C + 1):
        made_.step(torch.ones(2, 6, dtype=torch.float64), state)
        expected = held_of_chunks(t, 6, 2, C)
        assert derived.at(d=6, n=2, C=C, t=t) == state.elements == expected, t
        assert derived.at(d=12, n=3, C=C, t=t) == held_of_chunks(t, 12, 3, C)
    assert set(derived.arrays) == set(state.arrays) == {"K", "V", "S", "Z"}


def test_the_state_of_chunks_is_printed_in_two_cases() -> None:
    cases = cm.state(cm.mixer(NAME), "chunked").exact.chambers()
    assert {(frozenset(map(str, guards)), str(value)) for guards, value in cases} == {
        (frozenset({"C - t - 1"}), "2*d*t"),
        (frozenset({"-C + t"}), "-2*C*d*floor(t/C) + 2*d*t + d**2/n + d"),
    }


PHI = ["mul", "sum", "exp", "add", "compare"]
READ = ["mul", "sum", "div", "mul", "sum"]


def test_critical_path_and_span() -> None:
    """k v^T waits to be added to the sum of all earlier ones, or a score to be summed at once."""
    mixer = cm.mixer(NAME)
    path = cm.critical_path(mixer).steps
    assert path == (*PHI, "mul", {"times": "l - 1", "steps": ["add"]}, *READ)
    assert cm.critical_path(mixer, form="parallel").steps == (*PHI, "mul", "sum", *READ)
    token_path = cm.critical_path(mixer, "inference").steps
    assert token_path == (*PHI, "mul", "add", *READ), "MIXERS: one addition behind k v^T"
    for l, d, n in ((1, 1, 1), (5, 6, 2), (16, 24, 3)):
        maps, heads = ceil_log2(d), ceil_log2(d // n)
        recurrent, parallel = (cm.span(mixer, form=form).at(l=l, d=d, n=n) for form in FORMS[:2])
        # phi(k): 1 + lg d + 3; k v^T: 1; l - 1 sums; q s: 1 + lg h; division 1; output 1 + lg d
        assert recurrent == maps + 4 + 1 + (l - 1) + 1 + heads + 1 + 1 + maps
        # scores: 1 + lg h; weighted values: 1 + lg l
        assert parallel == maps + 4 + 1 + heads + 1 + ceil_log2(l) + 1 + 1 + maps


def test_critical_path_of_chunks() -> None:
    """The first chunk's k v^T are one sum, to which each later chunk adds its own.

    The last row reads the sum up to the chunk before its own: of 4 chunks the third.
    """
    mixer, sizes = cm.mixer(NAME), {"l": 16, "d": 24, "n": 3, "C": 4}
    read = ["mul", "sum", "add", "div", "mul", "sum"]
    path = cm.critical_path(mixer, form="chunked", sizes=sizes)
    assert path.steps == (*PHI, "mul", "sum", "add", "add", *read)
    longer = cm.critical_path(mixer, form="chunked", sizes={**sizes, "l": 1024})
    repeated = {"times": "floor((l - 1)/C) - 1", "steps": ["add"]}
    assert longer.steps == (*PHI, "mul", "sum", repeated, *read)
    assert longer.length.at({**sizes, "l": 1024}) == 5 + 2 + 254 + 6  # 255 chunks before the last
    one = cm.critical_path(mixer, "inference", form="chunked").steps
    assert one == (*PHI, "mul", "sum", *("mul", "sum", "add", "div", "mul", "sum"))


@pytest.mark.parametrize("sizes", [(16, 24, 3, 4), (17, 24, 3, 4), (9, 2, 2, 1), (64, 64, 2, 16)])
def test_span_of_chunks_equals_levels_counted_by_hand(sizes: tuple[int, int, int, int]) -> None:
    """More than one chunk: either the sums of the chunks are late, or the pairs of a whole one."""
    l, d, n, C = sizes
    maps, heads, rows = ceil_log2(d), ceil_log2(d // n), ceil_log2(C)
    phi = 1 + maps + 3
    sums = phi + 1 + rows + (l - 1) // C - 1 + 1 + heads  # k v^T, its sum, one each chunk; q s
    short = ceil_log2(min(C, l - C))
    within = phi + 1 + heads + 1 + short  # scores, and what they weigh, in a later chunk
    first = phi + 1 + heads + 1 + rows  # in the first one, to which nothing is added
    expected = max(max(sums, within) + 1, first) + 1 + 1 + maps
    assert cm.span(cm.mixer(NAME), form="chunked").at(l=l, d=d, n=n, C=C) == expected


@pytest.mark.parametrize(("l", "C"), [(8, 4), (9, 4), (11, 4), (4, 4), (12, 1), (10, 11)])
def test_longer_sequences_of_chunks(l: int, C: int) -> None:
    assert differences(cm.mixer(NAME), {"l": l, "d": 4, "n": 2, "C": C}, form="chunked") == []


# --------------------------------------------------------------------------------------------------
# Tables
# --------------------------------------------------------------------------------------------------


def rows(form: str, **given: tuple[int, ...]) -> list[Row]:
    """The rows of linear attention in a table of the forward pass."""
    asked = Request((cm.mixer(NAME),), given=given, phases=("training",), form=form)
    return [row for block in table(asked).blocks for row in block.rows]


def test_the_rows_of_a_form_depend_on_its_own_sizes() -> None:
    mixer = cm.mixer(NAME)
    assert letters_of(mixer, "training") == ("b", "l", "d", "n", "C")
    for form in ("recurrent", "parallel"):
        assert letters_of(mixer, "training", form) == ("b", "l", "d", "n")
        assert letters_of(mixer, "inference", form) == ("b", "l", "t", "d", "n")
    assert letters_of(mixer, "training", "chunked") == ("b", "l", "d", "n", "C")
    found = [(row.form, row.sizes.get("C")) for row in rows("all", C=(4, 8))]
    assert found == [("recurrent", None), ("parallel", None), ("chunked", 4), ("chunked", 8)]


USUAL = "sizes: by default batch b = 1, sequence length l = 128, model width d = 128, heads n = 8"


def test_a_table_names_the_sizes_that_its_rows_depend_on() -> None:
    def shown(form: str | None, **given: tuple[int, ...]) -> str:
        asked = Request((cm.mixer(NAME),), given=given, form=form)
        return PLAIN_TEXT.text(sizes_line(asked, ["training"]))

    assert shown(None) == USUAL
    assert shown("chunked") == f"{USUAL}, chunk C = 16"
    assert shown(None, C=(4,), w=(3,)) == (
        f"{USUAL} (w is a size of none of these mixers) (C is a size of none of these forms)"
    )


@each_form
def test_an_explanation_shows_chunks_where_there_are_any(form: str) -> None:
    """Equations by chunk, and the sawtooth of the state in two cases."""
    parts = Explanation(
        cm.mixer(NAME),
        form,
        ("training", "inference"),
        {"b": 1, "l": 12, "t": 12, "d": 6, "n": 2, "C": 4},
    ).parts()
    text = write(Document(lambda: parts), "rich", Page())
    sawtooth = "2dt if t < C; 2dt - 2Cd⌊t/C⌋ + d²/n + d if t ≥ C elements"
    assert (sawtooth in text) == (form == "chunked")
    assert ("q = 1..floor(l/C) + 1, e = 1..min(C, " in text) == (form == "chunked")
    assert "- chunked: has one-token inference." in text.replace(" (the default)", "")


def test_sizes_of_a_form_are_refused_by_its_own_extents() -> None:
    mixer = cm.mixer(NAME)
    fit(mixer, {"b": 1, "l": 5, "d": 6, "n": 2})
    with pytest.raises(SizeError, match="linear-attention needs d/n to be whole, got 3/2"):
        fit(mixer, {"b": 1, "l": 5, "d": 6, "n": 4})


# --------------------------------------------------------------------------------------------------
# Modules
# --------------------------------------------------------------------------------------------------


STEPS = [(phase, t) for phase, t in (("training", 5), *(("inference", t) for t in (1, 2, 3, 4)))]


@pytest.mark.parametrize(("phase", "t"), STEPS)
def test_reconcile_explains_all_work_of_linear_attention(phase: str, t: int) -> None:
    """Token 2 completes the first chunk of 2, token 3 reads it, token 4 adds the second to it."""
    at = {"b": 3, "l": 5, "d": 8, "n": 2, "C": 2} | ({"t": t} if phase == "inference" else {})
    found = {each.implementation: each for each in reconciled(NAME, at, phase)}
    assert set(found) == set(MODULES)
    for name, each in found.items():
        assert each.explained, (name, each.unexplained, each.peers)
    causes = [cause.name for cause in found["parallel"].causes]
    assert causes == ["form=parallel", *(["dense"] if phase == "training" else [])]
    chunked = [cause.name for cause in found["chunked"].causes]
    assert chunked == ["form=chunked", *(["dense"] if phase == "training" else [])]
    assert found["cumsum"].rungs["3"] == found["recurrent"].rungs["3"] == found["cumsum"].rungs["1"]


def made(implementation: str, C: int = 2, dtype: torch.dtype = torch.float64) -> Any:
    described = registry.implementations(NAME)[implementation]
    sizes = {"d": 6, "n": 2, "l": 4, "C": C}
    return build(described, sizes, device="cpu", dtype=dtype, seed=1)


@pytest.mark.parametrize("implementation", ["recurrent", "cumsum"])
def test_the_state_is_of_one_size(implementation: str) -> None:
    """n (h^2 + h) numbers from the first token on, however many follow."""
    module = made(implementation)
    state = module.initial_state(2)
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    for t in range(9):
        module.step(x[:, t], state)
        assert state.elements == 2 * (3 * 3 + 3)
    features = elu_plus_1(x @ module.W_K).view(2, 9, 2, 3)
    held = state.held("Z").squeeze(-2)
    torch.testing.assert_close(held, features.sum(1), rtol=0, atol=ROUNDING)


def test_the_state_of_pairs_grows_and_fills() -> None:
    module = made("parallel")
    state = module.initial_state(1, 2)
    x = torch.zeros(1, 6, dtype=torch.float64)
    for t in (1, 2):
        module.step(x, state)
        assert state.elements == 2 * 6 * t
    with pytest.raises(ValueError, match="the state is full, with 2 tokens of at most 2"):
        module.step(x, state)


@pytest.mark.parametrize("l", [4, 5])
def test_no_gradient_of_the_last_chunks_sums_is_left_unexplained(l: int) -> None:
    """No later chunk reads the sums of a last chunk that is complete."""
    everything_is_explained("linear-attention", {"b": 1, "l": l, "d": 4, "n": 2, "C": 2}, "chunked")


def test_a_complete_chunk_is_summed_and_no_longer_held() -> None:
    """Of 7 tokens in chunks of 3, z is the sum of the first 6 features, and the rows of the 7th
    alone are held."""
    module, x = made("chunked", C=3), torch.randn(2, 7, 6, dtype=torch.float64)
    state = module.initial_state(2)
    for t in range(7):
        module.step(x[:, t], state)
    features = elu_plus_1(x @ module.W_K).view(2, 7, 2, 3)
    values = (x @ module.W_V).view(2, 7, 2, 3)
    sums = state.held("Z").squeeze(-2), state.held("S").squeeze(-2).view(2, 2, 3, 3)
    products = torch.einsum("btnp,btnc->bnpc", features[:, :6], values[:, :6])
    for found, expected in zip(sums, (features[:, :6].sum(1), products), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=ROUNDING)
    torch.testing.assert_close(state.held("K"), features[:, 6:].transpose(1, 2))
    torch.testing.assert_close(state.held("V"), values[:, 6:].transpose(1, 2))


def test_a_refused_token_changes_nothing() -> None:
    module = made("chunked")
    state = module.initial_state(1)
    with pytest.raises(ValueError, match=r"x_t must be \(1, 6\)"):
        module.step(torch.zeros(1, 5, dtype=torch.float64), state)
    assert (state.position, state.elements) == (0, 0)


@each_module
def test_training_lowers_the_loss_of_linear_attention(implementation: str) -> None:
    """The loss of a few random rows falls, and every parameter has a gradient."""
    module = made(implementation, dtype=torch.float32)
    generator = torch.Generator().manual_seed(4)
    x, target = (torch.randn(2, 5, 6, generator=generator) for _ in range(2))
    optimiser = torch.optim.AdamW(module.parameters(), lr=0.05)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        loss = (module(x) - target).square().mean()
        loss.backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@each_module
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_of_linear_attention_stays_within_its_rounding(
    implementation: str, dtype: torch.dtype
) -> None:
    """They compute the same to the dtype's own rounding."""
    exact, rounded = made(implementation), made(implementation, dtype=dtype)
    x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        found, expected = rounded(x.to(dtype)).double(), exact(x.double())
    coarse = 1e-5 if dtype == torch.float32 else 0.1  # 24 and 8 bits, some dozen roundings
    torch.testing.assert_close(found, expected, rtol=0, atol=coarse)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"d": 6, "n": 4, "l": 3, "C": 2}, "d must be divisible by n: d = 6 and n = 4"),
        ({"d": 6, "l": 3, "C": 2}, "linear-attention .* needs the size n and was given d, l, C"),
        ({"d": 6, "n": 0, "l": 3, "C": 2}, "size n must be a positive integer and is 0"),
    ],
)
def test_bad_sizes_are_refused(sizes: dict[str, int], message: str) -> None:
    for described in registry.implementations(NAME).values():
        with pytest.raises(ValueError, match=message):
            build(described, sizes, device="cpu", dtype=torch.float64, seed=0)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"d": 6, "n": 2, "l": 3, "C": 0}, "size C must be a positive integer and is 0"),
        ({"d": 6, "n": 2, "l": 3}, "linear-attention chunked needs the size C and was given"),
    ],
)
def test_bad_chunks_are_refused(sizes: dict[str, int], message: str) -> None:
    described = registry.implementations(NAME)["chunked"]
    with pytest.raises(ValueError, match=message):
        build(described, sizes, device="cpu", dtype=torch.float64, seed=0)
