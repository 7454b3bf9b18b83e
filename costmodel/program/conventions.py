"""Named counting conventions: accountings (the first is the default), rewrites, and peers.

An accounting says how many additions a sum takes, a rewrite changes the equations, and a peer is
the operation counter of another tool (torch, fvcore), whose printed figure is derived.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from costmodel.errors import ConventionError, described

ACCOUNTINGS: Mapping[str, str] = {
    "strict": "a sum of R terms takes R-1 additions",
    "mac": "a sum of R terms takes R additions (one per multiply-add)",
}


FUSED_ATTENTION = "fused-attention"
KERNEL_CLASSES: Mapping[str, str] = {
    "contraction": "a matrix product",
    "einsum": "a matrix product through torch.einsum",
    "convolution": "a convolution over the padded sequence",
    "complex-contraction": "a matrix product of complex numbers",
    FUSED_ATTENTION: "scores, softmax and weighted sum in one operation",
    "softmax": "a softmax over rows",
    "elementwise": "one operation per entry",
    "complex-elementwise": "one complex operation per entry",
    "reduction": "products and their sum in separate operations",
    "running-sum": "the sums up to every row in one operation, of terms written before",
    "fft": "a Fourier transform",
    "recurrent-layer": "all rows of a recurrence in one operation",
    "move": "copies only",
}
"""The kinds of operations that may execute an equation in an implementation: a closed list."""


@dataclass(frozen=True)
class KernelRule:
    """What a peer counts for a kernel class, per real product in the equation's reductions.

    `per_product` is None if the peer does not count the class; `meaning` is the rule in words;
    `masked`: pairs that a causal bound leaves out are counted too; `digits`: the peer halves a
    count of two operations per product that another library printed with so many significant
    digits.
    """

    per_product: Fraction | None
    meaning: str
    masked: bool = False
    digits: int | None = None

    def rounded(self, figure: int) -> int:
        """The figure that the peer (another tool's counter) prints for an exact figure: the same
        number, or, if the rule has `digits`, half of the doubled number rounded to so many
        significant digits: 123450 for 123456 and 4 digits, as 246912 is printed as 246900."""
        if self.digits is None:
            return figure
        return int(float(f"{2 * figure:.{self.digits - 1}e}") // 2)


@dataclass(frozen=True)
class Peer:
    """Another tool's counter: a table from kernel class (and backend) to its counting rule."""

    name: str
    meaning: str
    additions: bool
    """Whether a multiply-add counts as two operations."""
    kernels: Mapping[str | tuple[str, str], KernelRule]
    """A key (class, backend) precedes a key class; a class without a key is not counted."""
    gradients: str = ""
    """Which operations of a backward pass the peer counts, in words; empty where the peer counts
    forward passes alone."""

    @property
    def counted(self) -> tuple[str, ...]:
        """The operation classes that the peer counts; other classes are unknown, not zero."""
        return ("mul", "add") if self.additions else ("mul",)

    @staticmethod
    def words(name: str) -> str:
        """The words for an uncounted operation class in a reason: `add` gives "additions"."""
        return _UNCOUNTED.get(name, f"operations of class '{name}'")

    def rule(self, kernel: str, backend: str, known: Collection[str] = ()) -> KernelRule:
        """How the peer (another tool's counter) counts a kernel class, such as matrix products, on
        a backend (cpu, cuda): by the rule of (kernel, backend), else that of kernel, else a rule
        that counts nothing. For the classes in `known`, for which the measured peer printed a
        figure, the rule of kernel applies: a rule of (kernel, backend) is about versions of the
        peer without a formula there.

        Raises:
            ValueError: a class outside the closed list.
        """
        if kernel not in KERNEL_CLASSES:
            raise ValueError(
                f"unknown kernel class '{kernel}': expected one of {', '.join(KERNEL_CLASSES)}"
            )
        found = None if kernel in known else self.kernels.get((kernel, backend))
        found = found or self.kernels.get(kernel)
        return found or KernelRule(None, f"operations of kernel class {kernel} are not counted")


_UNCOUNTED: Mapping[str, str] = {
    "add": "additions",
    "div": "divisions",
    "exp": "exponentiations",
    "other": "comparisons and other operations",
    "once": "the work on weights alone as a class of its own",
}


PEERS: Mapping[str, Peer] = {
    "torch": Peer(
        "torch",
        "FlopCounterMode: 2 per multiply-add of dense contractions, nothing else",
        True,
        {
            "contraction": KernelRule(Fraction(2), "R additions for a sum of R terms"),
            "einsum": KernelRule(Fraction(2), "R additions for a sum of R terms"),
            "convolution": KernelRule(Fraction(2), "R additions for a sum of R terms"),
            "complex-contraction": KernelRule(
                Fraction(1, 2), "a complex multiply-add counts as a real one"
            ),
            FUSED_ATTENTION: KernelRule(
                Fraction(2), "R additions for a sum of R terms", masked=True
            ),
            (FUSED_ATTENTION, "cpu"): KernelRule(
                None, "FlopCounterMode has no formula for attention on a CPU"
            ),
            "recurrent-layer": KernelRule(
                None, "FlopCounterMode has no formula for a fused recurrence"
            ),
            ("recurrent-layer", "cpu"): KernelRule(Fraction(2), "R additions for a sum of R terms"),
        },
        "a contraction has one more, as large, for the gradient of each factor that gets one",
    ),
    "fvcore": Peer(
        "fvcore",
        "FlopCountAnalysis: 1 per multiply-add of dense contractions, nothing else",
        False,
        {
            "contraction": KernelRule(Fraction(1), "a multiply-add counts once"),
            "einsum": KernelRule(Fraction(1), "a multiply-add counts once", digits=4),
            "convolution": KernelRule(Fraction(1), "a multiply-add counts once"),
            "complex-contraction": KernelRule(
                Fraction(1, 4), "a complex multiply-add counts as one"
            ),
            FUSED_ATTENTION: KernelRule(
                None, "fvcore does not support scaled_dot_product_attention"
            ),
            "recurrent-layer": KernelRule(None, "fvcore does not support recurrent layers"),
        },
    ),
}


RECOMPUTE, ONLY, LOSS = "recompute=", "only=", "loss="
"""The prefixes of names that choose what a backward pass recomputes, computes, and starts from."""


WANTED: Mapping[str, tuple[str, ...]] = {
    "parameters": ("parameter",),
    "inputs": ("input", "context"),
}
"""Suffix of `only=` -> the roles of the arrays that get a gradient."""


LOSSES: Mapping[str, str] = {
    "squared-error": "the mean of the squares of y - t over the entries of the output y",
    "cross-entropy": "the mean of -log(softmax(y)[t]) over the rows of the output y",
}
"""Suffix of `loss=` -> the loss of one sequence, with output y and target t."""


_ONE_OF: Mapping[str, tuple[Collection[str], str]] = {
    ONLY: (WANTED, "neither: both is the default"),
    LOSS: (LOSSES, "no loss: then the gradient of the output is given"),
}
"""Prefix -> its possible suffixes, and the meaning of its absence."""


@dataclass(frozen=True)
class Backward:
    """The options of a backward pass, given by names among the rewrites.

    `recompute` names forward arrays that are recomputed instead of kept; `only` is one of `WANTED`,
    or empty for gradients of all inputs, contexts and parameters; `loss` is one of `LOSSES`, or
    empty if the gradient of the output is given.
    """

    recompute: tuple[str, ...] = ()
    only: str = ""
    loss: str = ""

    @property
    def caption(self) -> Sequence[str]:
        """Phrases for a caption, one for each option of the backward pass that is set."""
        said = []
        if self.recompute:
            every = "all arrays of the forward pass"
            named = every if "all" in self.recompute else ", ".join(self.recompute)
            said.append(f"recomputed in the backward pass, not kept: {named}")
        said += [f"gradients of {self.only} only"] * bool(self.only)
        if self.loss:
            said.append(f"loss {self.loss}: {LOSSES[self.loss]}")
        return said

    @property
    def given(self) -> str:
        """A clause for captions that says from which gradient the backward pass starts."""
        if not self.loss:
            return "the gradient of the output is given: no loss is counted"
        return (
            f"loss {self.loss}: each sequence has its own loss, counted with its gradients; the "
            "target and the gradient of the loss, one number, are given"
        )


def parted(rewrites: Sequence[str]) -> tuple[tuple[str, ...], Backward]:
    """The names of rewrites, sorted into (rewrites of equations, options of the backward pass);
    options are the names that begin with `recompute=`, `only=` or `loss=`."""
    again = tuple(r.removeprefix(RECOMPUTE) for r in rewrites if r.startswith(RECOMPUTE))
    only = "".join(r.removeprefix(ONLY) for r in rewrites if r.startswith(ONLY))
    loss = "".join(r.removeprefix(LOSS) for r in rewrites if r.startswith(LOSS))
    others = tuple(r for r in rewrites if not r.startswith((RECOMPUTE, ONLY, LOSS)))
    return others, Backward(again, only, loss)


@dataclass(frozen=True)
class Convention:
    """One accounting with any rewrites (and options of a backward pass), or one peer alone."""

    accounting: str = "strict"
    rewrites: tuple[str, ...] = ()
    peer: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names as given on the command line."""
        return (self.peer,) if self.peer else (self.accounting, *self.rewrites)

    @property
    def title(self) -> str:
        """The names, without options of the backward pass, which the caption gives in words."""
        return self.peer or ",".join((self.accounting, *parted(self.rewrites)[0]))

    @property
    def caption(self) -> str:
        """The convention in words, joined by "; ". A peer's meaning alone; else the accounting, the
        scale, how a softmax and masked pairs are computed (said also of the defaults), and each
        further rewrite and option of a backward pass that is set."""
        if self.peer:
            return PEERS[self.peer].meaning
        parts = [ACCOUNTINGS[self.accounting]]
        scale = next((r for r in self.rewrites if r in SCALES), SCALES[0])
        parts.append(REWRITES[scale])
        if "safe-softmax" in self.rewrites:
            parts.append(REWRITES["safe-softmax"])
        elif not any(rows_of_block(name, ONLINE) for name in self.rewrites):
            parts.append("no maximum is subtracted in softmax")
        parts += [REWRITES[name] for name in self.rewrites if rows_of_block(name, ONLINE)]
        masked = [REWRITES[name] for name in self.rewrites if computes_masked([name])]
        parts += masked or ["masked pairs are not computed"]
        others = (
            "mask=add", "norm=rsqrt", *OF_ALGORITHMS, "cut-rows", "repeated-rows", "zero-state",
            "unread-rows", *OF_GRADIENTS,
        )  # fmt: skip
        parts += [REWRITES[r] for r in others if r in self.rewrites]
        return "; ".join([*parts, *self.backward.caption])

    @property
    def backward(self) -> Backward:
        """The options of the backward pass."""
        return parted(self.rewrites)[1]

    @property
    def of_gradients(self) -> str:
        """Clauses for captions of a backward pass: from which gradient the pass starts, and which
        array of the convention gets none."""
        shift = "the maximum that a softmax subtracts cancels, and gets no gradient"
        shifted = any(r == "safe-softmax" or rows_of_block(r, ONLINE) for r in self.rewrites)
        return "; ".join([self.backward.given, *([shift] if shifted else ())])


def convention(names: str | Sequence[str] | Convention = ()) -> Convention:
    """The convention that a text `a,b` or a sequence of names states: one accounting (how sums
    count) and any rewrites (changes of equations), or one peer (another tool's counter) alone. A
    `Convention` is returned unchanged; an empty sequence gives the default.

    Raises:
        ConventionError: a text without a name, an unknown name (with the nearest known name), a
            peer with other names, or names that exclude each other, such as two accountings.
    """
    if isinstance(names, Convention):
        return names
    given = names.split(",") if isinstance(names, str) else names
    given = tuple(given) if isinstance(given, Iterable) else (given,)
    if wrong := [name for name in given if not isinstance(name, str)]:
        raise ConventionError(
            "expected a convention as text, such as 'mac,dense', or a list of such names, got "
            f"{described(wrong[0])}"
        )
    parts = tuple(dict.fromkeys(p.strip() for p in given if p.strip()))
    if isinstance(names, str) and not parts:
        raise ConventionError(f"an empty convention: the default is {next(iter(ACCOUNTINGS))}")
    return _read(parts)


def _quoted(names: Iterable[str]) -> str:
    """The names in quotation marks, joined by "and": 'strict' and 'mac'."""
    return " and ".join(f"'{name}'" for name in names)


@cache
def _read(parts: tuple[str, ...]) -> Convention:
    """The convention of the names `parts`, each once, sorted into accounting, rewrites or peer. The
    default scale is left out of the rewrites, so that naming it changes no answer. Raises
    ConventionError: an unknown name (`recompute=ARRAY` takes any text), a peer with other names,
    names that exclude each other, or a padding (`padded`, `padded-rows`) without `dense`."""
    _refuse_unknown(parts)
    peers = [p for p in parts if p in PEERS]
    accountings = [p for p in parts if p in ACCOUNTINGS]
    scales = [p for p in parts if p in SCALES]
    masked = [p for p in parts if computes_masked([p])]
    if peers and len(parts) > 1:
        raise ConventionError(
            f"peer '{peers[0]}' cannot be combined with other names: name it alone"
        )
    if len(accountings) > 1 or len(scales) > 1:
        raise ConventionError(
            f"{_quoted(accountings + scales)} exclude each other: choose one of them"
        )
    online = [p for p in parts if rows_of_block(p, ONLINE)]
    padded = [p for p in parts if p in PADDINGS]
    for several in (masked, online, padded):
        if len(several) > 1:
            raise ConventionError(f"{_quoted(several)} exclude each other: choose one of them")
    if padded and "dense" not in parts:
        raise ConventionError(
            f"'{padded[0]}' stores zeros, and only 'dense' counts multiplications by zeros: write "
            f"dense,{padded[0]}"
        )
    for begin, (_, without) in _ONE_OF.items():
        chosen = [p for p in parts if p.startswith(begin)]
        if len(chosen) > 1:
            raise ConventionError(
                f"{_quoted(chosen)} exclude each other: choose one of them, or {without}"
            )
    if peers:
        return Convention(peer=peers[0])
    rewrites = tuple(sorted(p for p in parts if p not in (*ACCOUNTINGS, SCALES[0])))
    return Convention(accountings[0] if accountings else "strict", rewrites)


def _refuse_unknown(parts: Sequence[str]) -> None:
    """Raise ConventionError for the first name that is no accounting, rewrite (`dense=16` too),
    peer or option of a backward pass (`recompute=A`), with names that may be meant."""
    choices = [begin + end for begin, (ends, _) in _ONE_OF.items() for end in ends]
    known = [*ACCOUNTINGS, *REWRITES, *PEERS, *choices]
    for part in parts:
        recomputed = part.startswith(RECOMPUTE) and part != RECOMPUTE
        if part not in known and part not in REWRITES and not recomputed:
            near = " or ".join(f"'{name}'" for name in _nearest(part, [*known, *_OPEN]))
            hint = f"; did you mean {near}?" if near else "."
            raise ConventionError(
                f"unknown convention '{part}'{hint} Expected {' or '.join(PEERS)} alone, or, "
                f"separated by commas, {' or '.join(ACCOUNTINGS)}, any rewrites of equations "
                f"({LISTED}), and, for a backward pass, {', '.join(_OPEN[-2:])}, "
                f"{' or '.join(choices)}."
            )


SCALES_OF_PAPERS = ("scale=per-score", "scale=mul", "scale=folded")
SCALES = (*SCALES_OF_PAPERS, "scale=root", "scale=root-each")
"""How scores are scaled; the last two are what torch executes without a fused kernel, on whole
sequences and token by token."""


DENSE, IN_BLOCKS, ONLINE = "dense", "dense=", "online="
"""The rewrite that computes all masked pairs, and the prefixes of those that compute some, in
blocks of rows (`dense=16`), and of those that compute a softmax in blocks of keys (`online=16`)."""


def rows_of_block(name: str, prefix: str = IN_BLOCKS) -> int:
    """The number of rows in a block, 16 for the rewrite `dense=16`, or for `online=16` with the
    prefix `online=`; 0 for any other name."""
    rows = name.removeprefix(prefix)
    fits = name != rows and rows.isascii() and rows.isdigit() and len(rows) < 10
    return int(rows) if fits and rows == str(int(rows)) else 0


def computes_masked(rewrites: Iterable[str]) -> bool:
    """Whether one of the rewrites computes masked pairs: all (`dense`), or some (`dense=16`)."""
    return any(name == DENSE or rows_of_block(name) for name in rewrites)


def of_sequences(name: str) -> bool:
    """Whether a rewrite concerns sums over whole sequences, which a new token does not execute."""
    return name in OF_SEQUENCES or computes_masked([name]) or rows_of_block(name, ONLINE) > 0


def in_order(rewrites: Iterable[str]) -> tuple[str, ...]:
    """The rewrites, each once, in the order of `REWRITES`; `dense=16` stands first, as `dense`
    does, and `online=16` after `dense`."""
    places = {name: place for place, name in enumerate(REWRITES)}
    keys = {name: places[DENSE] + 0.5 for name in rewrites if rows_of_block(name, ONLINE)}
    return tuple(sorted({*rewrites}, key=lambda name: {**places, **keys}.get(name, -1)))


_NAMED: Mapping[str, str] = {
    "dense": "masked pairs computed, which no sum of the form covers",
    "safe-softmax": "the row's maximum is subtracted before the exponentials",
    "mask=add": "a mask of 0 and minus infinity is added to the scores",
    "scale=per-score": "one division per score",
    "scale=mul": "one multiplication per score",
    "scale=folded": "the scale is folded into the weights",
    "scale=root": "queries and keys are each multiplied by the root of the scale",
    "scale=root-each": "as scale=root, but the keys are multiplied again for each query",
    "norm=rsqrt": "a row is normalised by one reciprocal root and one product per entry",
    "softmax-gradient": "the gradient of a softmax comes from its result alone: (g - sum of g y) y",
    "weighted-sum-gradient": (
        "a softmax's sum of g y is taken over the weighted sum o instead: sum of g_o o"
    ),
    "logsumexp-gradient": "a softmax is computed again: exp(s - L), L the logarithm of its sum",
    "scale-gradient": "the scale of scores is applied to the gradients of queries and keys",
    "layer-norm-gradient": (
        "under norm=rsqrt, the gradient of a layer norm comes from its result, computed again"
    ),
    "rms-norm-gradient": (
        "under norm=rsqrt, the gradient of an RMS norm comes from its result, computed again"
    ),
    "mean-gradient": "the gradient of a mean is divided at every entry, instead of once per mean",
    "square-gradient": "the gradient of a square x x is g (2 x), not a sum of two products",
    "rms-square-gradient": "as square-gradient, for the squares of RMS norms alone",
    "length-gradient": "the gradient of a row's length n is g (x / n), and none where n is 0",
    "triangle-gradient": (
        "the gradient of a triangular matrix, by which a system is solved, is computed for all "
        "pairs of rows"
    ),
    "comparison-gradient": "the gradients of relu and of max(a, b) compare again",
    "quotient-gradient": "the gradient of a divisor b computes a / b again: -g (a / b) / b",
    "cases-gradient": (
        "the gradient of a function by cases is a sum over both branches, with zeros where the "
        "other branch holds"
    ),
    "padded": "the zeros around an array belong to the array, and their gradients are computed",
    "padded-rows": (
        "rows of zeros stand before and after the sequence, and their gradients are computed"
    ),
    "fft-gradient": "gradients of real transforms are complex transforms, doubled for inverses",
    "sort=merge": "a sort is a merge sort, P log2 P comparisons, in place of a bitonic network",
    "scan=brent-kung": (
        "a scan combines pairs up and down a tree, about 2P times with P: l rounded up to a power "
        "of two, not in rounds of all rows"
    ),
    "cut-rows": (
        "a short convolution computes k - 1 rows behind the sequence, too, which are cut off"
    ),
    "repeated-rows": (
        "rows that n/g heads share are repeated for each of these heads before a norm or a scale"
    ),
    "zero-state": "a recurrence starts from a row of zeros, which is multiplied like any other",
    "unread-rows": (
        "what a recurrence reads from row 2 on, such as its decays, is computed for row 1, too"
    ),
}


class _Rewrites(dict[str, str]):
    """Name of a rewrite -> its meaning; `dense=ROWS` and `online=ROWS` are known for every number
    of rows, and are not listed."""

    def __contains__(self, name: object) -> bool:
        sized = isinstance(name, str) and any(rows_of_block(name, one) for one in _SIZED)
        return super().__contains__(name) or sized

    def __missing__(self, name: str) -> str:
        for prefix, meaning in _SIZED.items():
            if rows := rows_of_block(name, prefix):
                return meaning.format(rows)
        raise KeyError(name)


_SIZED: Mapping[str, str] = {
    IN_BLOCKS: "masked pairs computed in blocks of {} rows, up to the last row of the block",
    ONLINE: (
        "softmax in blocks of {} keys, each of which scales the sums of the blocks before by the "
        "exponential of a difference of maxima"
    ),
}
"""Prefix of the rewrites with a number of rows -> their meaning."""


REWRITES: Mapping[str, str] = _Rewrites(_NAMED)


_OPEN = (*(f"{prefix}ROWS" for prefix in _SIZED), f"{RECOMPUTE}all", f"{RECOMPUTE}ARRAY")
"""The names with a part that users choose, for messages; the last two of a backward pass."""


LISTED = ", ".join([*REWRITES, *_OPEN[:-2]])
"""The names of all rewrites, for messages."""


def _nearest(part: str, known: Sequence[str]) -> Sequence[str]:
    """At most three names that an unknown one may mean: those with the same text before its `=`, as
    `loss=squared-error` for `loss=mse`; else similar ones, else those that contain it."""
    lead, equals, _ = part.partition("=")
    same = [name for name in known if equals and name.startswith(lead + equals)]
    near = same or difflib.get_close_matches(part.lower(), known, 3)
    return (near or [name for name in known if len(part) > 2 and part.lower() in name])[:3]


OF_ALGORITHMS = ("sort=merge", "scan=brent-kung")
"""Rewrites that choose the algorithm of a selection or scan."""


PADDINGS = ("padded", "padded-rows")


OF_SEQUENCES = ("dense", "mask=add", "cut-rows", *PADDINGS)
"""Rewrites of sums over whole sequences, which a step for one new token does not execute."""


OF_GRADIENTS = (
    "softmax-gradient", "weighted-sum-gradient", "logsumexp-gradient", "scale-gradient",
    "layer-norm-gradient", "rms-norm-gradient", "mean-gradient", "square-gradient",
    "rms-square-gradient", "length-gradient", "triangle-gradient", "comparison-gradient",
    "quotient-gradient", "cases-gradient", "fft-gradient", *PADDINGS,
)  # fmt: skip
"""Rewrites that change what a backward pass computes. Paddings also store zeros around arrays in
the forward pass, which moves more bytes and costs no operation."""

OF_FORWARD = frozenset(REWRITES) - {SCALES[0], *OF_GRADIENTS}
"""Rewrites that may change what a forward pass computes."""
