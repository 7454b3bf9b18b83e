"""Which work belongs to one token, and which arrays are held between two tokens?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings

import costmodel as cm
from costmodel import Mixer, Unanswered
from costmodel.errors import OracleError, Unsupported
from costmodel.mixers import builtin
from costmodel.oracle.execute import Execution, execute
from costmodel.oracle.scalars import Instance
from costmodel.proofs.against_oracle import OracleComparison
from tests import chunk_systems, systems
from tests.small import complete, distinct, has_inference
from tests.systems import examples

SIZES = {"l": 5, "d": 3, "N": 2, "k": 3, "C": 2, "r": 2}


def _begun(name: str) -> Mixer:
    mixer = Mixer(name)
    l, d = mixer.sizes("l d")
    mixer.input("x", l, d)
    mixer.output("y", l, d)
    return mixer


def _aft(*, named: bool) -> Mixer:
    """Attention-free transformer: y[i] = sum exp(K[k] + w[i,k]) V[k] / sum exp(K[k] + w[i,k])."""
    mixer = _begun("aft")
    l, d = mixer.sizes("l d")
    x, y, w = mixer.arrays["x"], mixer.arrays["y"], mixer.parameter("w_", l, l)
    weights = [mixer.parameter(name, d, d) for name in ("WK", "WV")]
    with mixer.form("direct") as f:
        i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
        k = f.index("k", 1, i)
        K, V = f.array("K", l, d), f.array("V", l, d)
        for array, weight in zip((K, V), weights, strict=True):
            array[i, b] = cm.sum_(x[i, a] * weight[a, b], over=a)
        score = cm.exp(K[k, b] + w[i, k])
        if named:
            E = f.array("E", l, l, d)
            E[i, k, b] = score
            score = E[i, k, b]
        y[i, b] = cm.sum_(score * V[k, b], over=k) / cm.sum_(score, over=k)
    return mixer


def _shift(*, named: bool) -> Mixer:
    """Six mixtures of a row and the row before, whose products have a name or not."""
    mixer = _begun("shift")
    l, d = mixer.sizes("l d")
    x, y = mixer.arrays["x"], mixer.arrays["y"]
    mu, W = mixer.parameter("mu", 6, d), mixer.parameter("W", 6, d)
    with mixer.form("direct") as f:
        i, t, b, z = f.index("i", 1, l), f.index("t", 2, l), f.index("b", 1, d), f.index("z", 1, 6)
        M = f.array("M", 6, l, d)
        before = mu[z, b] * x[t - 1, b]
        if named:
            P = f.array("P", 6, l, d)
            P[z, t, b] = before
            before = P[z, t, b]
        M[z, 1, b] = mu[z, b] * x[1, b]
        M[z, t, b] = mu[z, b] * x[t, b] + before
        y[i, b] = cm.sum_(M[z, i, b] * W[z, b], over=z)
    return mixer


def _rotation() -> Mixer:
    """A state of two parts, as S4D has them; the second takes in no row of its own."""
    mixer = _begun("rotation")
    l, d, N = mixer.sizes("l d N")
    x, y = mixer.arrays["x"], mixer.arrays["y"]
    c, s = mixer.parameter("c_", d, N), mixer.parameter("s_", d, N)
    with mixer.form("direct") as f:
        i, t, b, m = f.index("i", 1, l), f.index("t", 2, l), f.index("b", 1, d), f.index("m", 1, N)
        P, Q = f.array("P", l, d, N), f.array("Q", l, d, N)
        P[1, b, m] = x[1, b] * c[b, m]
        Q[1, b, m] = x[1, b] * s[b, m]
        P[t, b, m] = c[b, m] * P[t - 1, b, m] - s[b, m] * Q[t - 1, b, m] + x[t, b]
        Q[t, b, m] = s[b, m] * P[t - 1, b, m] + c[b, m] * Q[t - 1, b, m]
        y[i, b] = cm.sum_(P[i, b, m] + Q[i, b, m], over=m)
    return mixer


def _taps() -> Mixer:
    """A convolution whose taps have a name."""
    mixer = _begun("taps")
    l, d, k = mixer.sizes("l d k")
    x, y, w = mixer.arrays["x"], mixer.arrays["y"], mixer.parameter("w_", k, d)
    with mixer.form("direct") as f:
        i, b, s = f.index("i", 1, l), f.index("b", 1, d), f.index("s", 1, k)
        T = f.array("T", l, k, d)
        T[i, s, b] = x[i, b] * w[s, b]
        back = f.index("back", 1, cm.min_(k, i))
        y[i, b] = cm.sum_(T[i - back + 1, back, b], over=back)
    return mixer


def _expanded() -> Mixer:
    """Keys that every query expands anew from a latent row."""
    mixer = _begun("expanded")
    l, d, r = mixer.sizes("l d r")
    x, y = mixer.arrays["x"], mixer.arrays["y"]
    down, up, w = (
        mixer.parameter("W_D", d, r),
        mixer.parameter("W_U", r, d),
        mixer.parameter("w_", l),
    )
    with mixer.form("direct") as f:
        i, a, b, c = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d), f.index("c", 1, r)
        k = f.index("k", 1, i)
        L, K = f.array("L", l, r), f.array("K", l, l, d)
        L[i, c] = cm.sum_(x[i, a] * down[a, c], over=a)
        K[i, k, b] = cm.sum_(L[k, c] * up[c, b], over=c)
        y[i, b] = cm.sum_(K[i, k, b] * w[i - k + 1], over=k)
    return mixer


def _blocks() -> Mixer:
    """Each row reads the sums of all complete chunks before its own."""
    mixer = _begun("blocks")
    l, d, C = mixer.sizes("l d C")
    x, y = mixer.arrays["x"], mixer.arrays["y"]
    with mixer.form("direct") as f:
        b, q, s = f.index("b", 1, d), f.index("q", 1, l // C), f.index("s", 1, C)
        S = f.array("S", l // C, d)
        S[q, b] = cm.sum_(x[(q - 1) * C + s, b], over=s)
        k, g = f.index("k_", 1, cm.min_(C, l)), f.index("g_", 2, l // C + 1)
        u, o = f.index("u_", 1, cm.min_(C, l - (g - 1) * C)), f.index("o", 1, g - 1)
        y[k, b] = x[k, b] * 1
        y[(g - 1) * C + u, b] = x[(g - 1) * C + u, b] * cm.sum_(S[o, b], over=o)
    return mixer


def _decay() -> Mixer:
    """The first row alone is taken in, and it decays."""
    mixer = _begun("decay")
    l, d = mixer.sizes("l d")
    x, y, w = mixer.arrays["x"], mixer.arrays["y"], mixer.parameter("w_", d)
    with mixer.form("direct") as f:
        i, t, b = f.index("i", 1, l), f.index("t", 2, l), f.index("b", 1, d)
        S = f.array("S", l, d)
        S[1, b] = x[1, b] * w[b]
        S[t, b] = S[t - 1, b] * w[b]
        y[i, b] = S[i, b] * x[i, b]
    return mixer


def _keys() -> Mixer:
    """A causal softmax whose scores read the key and the distance alone."""
    mixer = _begun("keys")
    l, d = mixer.sizes("l d")
    x, y = mixer.arrays["x"], mixer.arrays["y"]
    u, m = mixer.parameter("u", d), mixer.parameter("m", l)
    with mixer.form("direct") as f:
        i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
        k = f.index("k", 1, i)
        s, Z, A = f.array("s_", l), f.array("Z", l, l), f.array("A", l, l)
        s[i] = cm.sum_(x[i, a] * u[a], over=a)
        Z[i, k] = s[k] + m[i - k + 1]
        A[i, k] = cm.softmax(Z[i, k], over=k)
        y[i, b] = cm.sum_(A[i, k] * x[k, b], over=k)
    return mixer


def _places() -> Mixer:
    """Sums of the rows of a chunk so far, by chunk and place: the last chunk may be short."""
    mixer = _begun("places")
    l, d, C = mixer.sizes("l d C")
    x, y = mixer.arrays["x"], mixer.arrays["y"]
    with mixer.form("direct") as f:
        b, q = f.index("b", 1, d), f.index("q", 1, l // C + 1)
        e = f.index("e_", 1, cm.min_(C, l - (q - 1) * C))
        u = f.index("u_", 1, e)
        D = f.array("D", l // C + 1, C, d)
        D[q, e, b] = cm.sum_(x[(q - 1) * C + u, b], over=u)
        y[(q - 1) * C + e, b] = D[q, e, b] * x[(q - 1) * C + e, b]
    return mixer


Figures = Callable[[int, int], int]
"""t and the number of an entry's widths -> a figure."""

CASES: list[tuple[Mixer, Figures, Figures]] = [
    # what is held after t tokens; multiplications of token t, from the equations
    (_aft(named=True), lambda t, d: 2 * t * d, lambda t, d: 2 * d * d + t * d),
    (_aft(named=False), lambda t, d: 2 * t * d, lambda t, d: 2 * d * d + t * d),
    (_shift(named=True), lambda t, d: d, lambda t, d: (12 if t > 1 else 6) * d + 6 * d),
    (_shift(named=False), lambda t, d: d, lambda t, d: (12 if t > 1 else 6) * d + 6 * d),
    (_rotation(), lambda t, d: 2 * 2 * d, lambda t, d: (4 if t > 1 else 2) * 2 * d),
    (_taps(), lambda t, d: min(t, 2) * d, lambda t, d: min(t, 3) * d),
    (_expanded(), lambda t, d: t * 2, lambda t, d: d * 2 + t * 2 * d + t * d),
    (_blocks(), lambda t, d: (t // 2 + t % 2) * d, lambda t, d: d),
    (_places(), lambda t, d: t % 2 * d, lambda t, d: d),
    (_decay(), lambda t, d: d, lambda t, d: 2 * d),
    (_keys(), lambda t, d: t * (d + 1), lambda t, d: d + t * d),
]
IDS = [f"{mixer.name}-{k}" for k, (mixer, _, _) in enumerate(CASES)]


@pytest.mark.parametrize(("mixer", "held", "products"), CASES, ids=IDS)
def test_what_a_token_holds_and_multiplies(mixer: Mixer, held: Figures, products: Figures) -> None:
    sizes = {letter: SIZES[letter] for letter in ("l", *mixer.letters)}
    for t in range(1, 6):
        assert cm.state(mixer).at(**sizes, t=t) == held(t, 3), t
        assert cm.count(mixer, "inference").at(**sizes, t=t).mul == products(t, 3), t


@pytest.mark.parametrize("mixer", [mixer for mixer, _, _ in CASES], ids=IDS)
def test_execution_finds_the_same(mixer: Mixer) -> None:
    for l, others in ((1, 1), (4, 1), (5, 2), (3, 3)):
        sizes = {**dict.fromkeys(mixer.letters, others), "l": l}
        made = OracleComparison(mixer).at(sizes)
        assert made.apart + made.refused == [], sizes


# --------------------------------------------------------------------------------------------------
# All tokens together, and one after another
# --------------------------------------------------------------------------------------------------


def _place(run: Execution, instance: Instance) -> tuple[str, object]:
    return run.system.equations[instance.equation].name, frozenset(instance.point.items())


def _late(run: Execution, longer: Execution) -> dict[str, Counter[str]]:
    """Equation -> the operations of a forward pass that are the work of tokens after its last."""
    owner = {_place(longer, i): longer.owners.of(i) for i in longer.instances}
    found: dict[str, Counter[str]] = {}
    for instance in run.instances:
        place = _place(run, instance)
        if owner[place] > run.sizes["l"]:
            found.setdefault(place[0], Counter()).update(instance.operations)
    return found


def _adds_up(mixer: Mixer, form: str, sizes: Mapping[str, int]) -> dict[str, Counter[str]]:
    """Check that a forward pass is the work of its tokens without that on rows beyond the last one,
    work on a context alone, and what is owned after the last token, which is returned."""
    run, longer = execute(mixer.forms[form], sizes), OracleComparison(mixer, form).longer(sizes)
    late = _late(run, longer)
    together: Counter[str] = sum(late.values(), Counter())
    for instance in run.instances:
        if instance.given and not run.owners.of(instance):
            together.update(instance.operations)
    there = {_place(run, instance) for instance in run.instances}
    for instance in longer.instances:
        if longer.owners.of(instance) in range(1, run.sizes["l"] + 1):
            together.subtract(() if _place(longer, instance) in there else instance.operations)
    for t in range(1, sizes["l"] + 1):
        together.update(cm.count(mixer, "inference", form).at(**sizes, t=t).by_class())
    assert +together == +Counter(run.counts()), sizes
    return late


def _each_held_entry_is_needed(run: Execution, last: int) -> None:
    """Without any one entry that is held, some later token cannot be computed."""
    for t in range(1, last + 1):
        for entry in run.held.after(t):
            if run.owners.of_entry(entry):
                readers = [run.owners.of(i) for i in run.owners.readers[entry]]
                later = min(owner for owner in readers if owner > t)
                with pytest.raises(OracleError):
                    run.decoding.token(later, without=[entry])


CAUSAL = [
    (name, form)
    for name, form in distinct()
    if has_inference(builtin(name), form) and not builtin(name).contexts
]
"""Work on a context alone is no token's."""


@pytest.mark.parametrize(("name", "form"), CAUSAL)
def test_the_tokens_of_a_built_in_add_up(name: str, form: str) -> None:
    for l, d, n in ((1, 1, 1), (5, 4, 2)):
        sizes = complete(builtin(name), {"l": l, "d": d, "n": n})
        assert _adds_up(builtin(name), form, sizes) == {}


@pytest.mark.parametrize(("name", "form"), CAUSAL)
def test_a_built_in_needs_all_that_it_holds(name: str, form: str) -> None:
    sizes = complete(builtin(name), {"l": 3, "d": 2, "n": 1})
    _each_held_entry_is_needed(OracleComparison(builtin(name), form).longer(sizes), 3)


def _random_adds_up(mixer: Mixer, sizes: Mapping[str, int]) -> None:
    try:
        cm.count(mixer, "inference").at(**sizes, t=1)
    except (Unanswered, Unsupported):
        return
    _adds_up(mixer, "direct", sizes)


@given(mixer=systems.mixers(ranges=("causal", "window"), grown=True), sizes=systems.sizes())
@settings(max_examples=examples(30))
def test_the_tokens_of_random_systems_add_up(mixer: Mixer, sizes: dict[str, int]) -> None:
    _random_adds_up(mixer, sizes)


@given(mixer=chunk_systems.mixers(), sizes=chunk_systems.sizes())
@settings(max_examples=examples(30))
def test_the_tokens_of_chunks_add_up(mixer: Mixer, sizes: dict[str, int]) -> None:
    _random_adds_up(mixer, sizes)


def test_what_is_made_for_later_tokens_is_named() -> None:
    """Each row reads the product of the row before: that of the last row is the next token's."""
    mixer = _begun("lagged")
    l, d = mixer.sizes("l d")
    x, y, w = mixer.arrays["x"], mixer.arrays["y"], mixer.parameter("w_", d)
    with mixer.form("direct") as f:
        i, t, b = f.index("i", 1, l), f.index("t", 2, l), f.index("b", 1, d)
        P = f.array("P", l, d)
        P[i, b] = x[i, b] * w[b]
        y[1, b] = x[1, b] * 1
        y[t, b] = x[t, b] + P[t - 1, b]
    assert _adds_up(mixer, "direct", {"l": 4, "d": 3}) == {"P": Counter(mul=3)}


@pytest.mark.parametrize("fed", [True, False])
def test_a_row_that_a_later_token_reads_is_the_later_tokens_work(*, fed: bool) -> None:
    """R[2], R[3], ... follow from x[1] alone, and so does S unless each row is fed x. Token i owns
    R[i] and T[i - 1], which row i of S reads: only the end of the sequence leaves R[l + 1] and T[l]
    without readers."""
    mixer = _begun("carried")
    l, d = mixer.sizes("l d")
    x, y = mixer.arrays["x"], mixer.arrays["y"]
    with mixer.form("direct") as f:
        i, t, b = f.index("i", 1, l), f.index("t", 2, l), f.index("b", 1, d)
        R, T, S = f.array("R", l + 1, d), f.array("T", l, d), f.array("S", l, d)
        R[1, b] = cm.function("tanh", x[1, b])
        R[i + 1, b] = cm.function("tanh", R[i, b])
        T[i, b] = cm.exp(R[i, b])
        S[1, b] = x[1, b]
        step = S[t - 1, b] * R[t, b] * T[t - 1, b]
        S[t, b] = step + x[t, b] if fed else step
        y[i, b] = S[i, b] + x[i, b]
    made = OracleComparison(mixer)
    for length in (1, 2, 3):
        assert made.at({"l": length, "d": 2}).apart == []
    counts = cm.count(mixer, "inference")
    assert [counts.at(l=9, d=1, t=t).by_class()["exp"] for t in (1, 2, 9)] == [0, 1, 1]


def test_the_sum_of_the_first_chunk_is_the_work_of_its_last_token() -> None:
    """The equation of S[1] has one row at each length, and is no loop of one token."""
    mixer = Mixer("chunked")
    l, C = mixer.sizes("l C")
    x, y = mixer.input("x", l), mixer.output("y", l)
    with mixer.form("direct") as f:
        o, q = f.index("o", 1, cm.min_(1, l // C)), f.index("q", 2, l // C)
        k, g = f.index("k", 1, cm.min_(C, l)), f.index("g", 2, l // C + 1)
        s, u = f.index("s", 1, C), f.index("u", 1, cm.min_(C, l - (g - 1) * C))
        S = f.array("S", l // C)
        S[o] = cm.sum_(x[(o - 1) * C + s], over=s)
        S[q] = S[q - 1] + cm.sum_(x[(q - 1) * C + s], over=s)
        y[k] = x[k] * 2
        y[(g - 1) * C + u] = x[(g - 1) * C + u] * S[g - 1]
    assert OracleComparison(mixer).at({"l": 5, "C": 2}).apart == []
    assert execute(mixer.forms["direct"], {"l": 5, "C": 2}).counts_inference(2)["add"] == 1


def test_a_stride_keeps_the_token() -> None:
    """u[3*k] has token k; where k is 1, an empty sum, u and y follow from weights alone."""
    mixer = _begun("strided")
    l, d = mixer.sizes("l d")
    x, y, w = mixer.arrays["x"], mixer.arrays["y"], mixer.parameter("w_", d)
    with mixer.form("direct") as f:
        k, b = f.index("k", 1, l), f.index("b", 1, d)
        h = f.index("h", 2, k)
        u = f.array("u", 3 * l, d)
        u[3 * k, b] = cm.sum_(x[h, b] * w[b], over=h)
        y[k, b] = u[3 * k, b] + w[b]
    assert OracleComparison(mixer).at({"l": 4, "d": 2}).apart == []
    assert cm.count(mixer, "inference").at(l=4, d=2, t=3).by_class()["mul"] == 2 * 2


def test_work_that_depends_on_no_input_is_no_second_token_that_reads() -> None:
    """S[1] is an empty sum, and so is H[1], which no token owns; each later S[i] is read by work of
    token i alone, and is no summary."""
    mixer = _begun("begun-late")
    l, d, s = mixer.sizes("l d s")
    x, y = mixer.arrays["x"], mixer.arrays["y"]
    with mixer.form("direct") as f:
        i, b = f.index("i", 1, l), f.index("b", 1, d)
        h, j, q = f.index("h", 1, i - 1), f.index("j", s, i), f.index("q", 1, cm.min_(s, i))
        S, H = f.array("S", l, d), f.array("H", l, d)
        S[i, b] = cm.sum_(x[j, b], over=j) + cm.sum_(x[h, b], over=h)
        H[i, b] = S[i, b] * 2
        y[i, b] = cm.sum_(H[q, b], over=q) + S[i, b] * x[i, b]
    made = OracleComparison(mixer).at({"l": 2, "d": 2, "s": 3}).at({"l": 5, "d": 1, "s": 2})
    assert made.apart == []


@given(pair=systems.with_and_without_names(), sizes=systems.sizes())
@settings(max_examples=examples(40))
def test_a_name_for_what_is_read_once_changes_nothing(
    pair: tuple[Mixer, Mixer], sizes: dict[str, int]
) -> None:
    found = []
    for mixer in pair:
        try:
            counts, state = cm.count(mixer, "inference"), cm.state(mixer)
        except (Unanswered, Unsupported):
            return
        tokens = [{**sizes, "t": t} for t in range(1, sizes["l"] + 1)]
        found.append([(counts.at(**at).by_class(), state.at(**at)) for at in tokens])
    assert found[0] == found[1], sizes


def test_an_output_that_only_its_gradient_reads_is_kept_for_each_sequence() -> None:
    """The gradient of y = relu(x W) reads x and y: l (d + d) entries of each of two sequences."""
    m = cm.Mixer("rectified")
    l, d = m.sizes("l d")
    x, y, W = m.input("x", l, d), m.output("y", l, d), m.parameter("W", d, d)
    with m.form("direct") as f:
        i, a, b = f.index("i", 1, l), f.index("a", 1, d), f.index("b", 1, d)
        y[i, b] = cm.function("relu", cm.sum_(x[i, a] * W[a, b], over=a))
    assert cm.activations(m).at(l=5, d=3, b=2) == 2 * 5 * (3 + 3)


def test_a_window_that_may_be_empty_keeps_a_summary() -> None:
    """S[3] = x[1] + x[2] serves y[3] and, where r < w, later rows: at r = w too its work is done
    as soon as x[2] is there."""
    mixer = _begun("between")
    l, d, w, r = mixer.sizes("l d w r")
    x, y = mixer.arrays["x"], mixer.arrays["y"]
    with mixer.form("direct") as f:
        i, b, g = f.index("i", 1, l), f.index("b", 1, d), f.index("g", 2, l)
        h, j = f.index("h", 1, g - 1), f.index("j", cm.max_(1, i - w + 1), i - r)
        S = f.array("S", l, d)
        S[1, b] = x[1, b] * x[1, b]
        S[g, b] = cm.sum_(x[h, b], over=h)
        y[i, b] = S[i, b] * cm.sum_(S[j, b], over=j)
    for w_, r_ in ((1, 1), (2, 2), (1, 3), (3, 1)):
        assert OracleComparison(mixer).at({"l": 3, "d": 1, "w": w_, "r": r_}).apart == []
