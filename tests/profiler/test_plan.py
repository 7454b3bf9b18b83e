"""Does a command line become the requested measurements, or one sentence of refusal?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import costmodel as cm
from costmodel.errors import SizeError
from costmodel.mixers import names
from costmodel.proofs.check import Proof
from profiler.mixers.extractor import MeToeplitz
from profiler.modules import Implementation, build, implementations
from profiler.proofs.equality import module_equals
from profiler.records.reading import MeasureError
from profiler.run.in_record import is_class
from profiler.run.own_class import users_class
from profiler.run.plan import Plan, chosen_implementations, requests
from profiler.run.request import Request
from profiler.run.subject import named as named_by
from tests.stand_ins import Instead
from tests.user_mixers import written

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")

OWN = """
import torch
from profiler.mixers.extractor import SheConvolution, SheDirect

class Same(SheDirect):
    pass

class Convolved(SheConvolution):
    pass

class GateLost(SheDirect):
    def _surround(self, x, ext):
        return ext @ self.W_out

class SumLost(SheDirect):
    def mix(self, x):
        return self._surround(x, x @ self.W_ext[0])

class StepLost(SheDirect):
    def advance(self, x_t, state):
        return 0 * super().advance(x_t, state)

class Renamed(SheDirect):
    def __init__(self, *, d, l):
        super().__init__(d=d, l=l)
        self.W_last = self.W_out
        del self.W_out

class Broken(SheDirect):
    def mix(self, x):
        raise ValueError("half done")

class NoModule:
    pass
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "mine.py"
    path.write_text(OWN, encoding="utf-8")
    return path


def planned(*mixers: str, **options: object) -> list[Request]:
    """The requests of a plan over these mixers, on the CPU unless told otherwise."""
    chosen = {"device": "cpu"} | options
    return requests(Plan([cm.mixer(name) for name in mixers], **chosen))  # type: ignore[arg-type]


def named(found: list[Request]) -> list[tuple[str, str]]:
    """Mixer and implementation of each request."""
    return [(r.mixer.name, r.implementation.name) for r in found]


def test_all_is_every_implementation_in_order() -> None:
    assert named(planned("self-attention", "she")) == [
        ("self-attention", "explicit"), ("self-attention", "sdpa"),
        ("she", "direct"), ("she", "conv"), ("she", "fft"),
    ]  # fmt: skip


def test_every_mixer_is_planned_with_all_its_sizes() -> None:
    """Every implementation of every mixer: its sizes, given or default, are letters of the mixer,
    and enough to build the module and to count what it does."""
    found = planned(*names(), given={"l": (48,), "d": (32,)}, phases=("training", "inference"))
    for phase in ("training", "inference"):
        ours = [request for request in found if request.phase == phase]
        assert named(ours) == [(m, name) for m in names() for name in implementations(m)]
    for request in found:
        known = {"l": 48, "d": 32, "t": 48}
        assert request.sizes == {
            x: known.get(x, request.equations.letter(x).default) for x in request.sizes
        }
        letters = {*request.equations.letters, "b"} | (
            {"t"} if request.phase == "inference" else set()
        )
        assert request.sizes.keys() <= letters
        build(
            request.implementation, dict(request.sizes), device="meta", dtype=torch.float32, seed=0
        )
        does = request.implementation
        if request.phase == "training" or does.step_form:
            form = does.form if request.phase == "training" else does.step_form
            assert cm.count(request.equations, request.phase, form).at(**request.sizes).total >= 0


def test_names_choose_and_order() -> None:
    assert named(planned("she", implementation="fft, direct")) == [
        ("she", "fft"), ("she", "direct"),
    ]  # fmt: skip


def test_a_name_that_only_one_mixer_has_chooses_of_that_one() -> None:
    found = planned("self-attention", "she", "he", implementation="sdpa,fft")
    assert named(found) == [("self-attention", "sdpa"), ("she", "fft"), ("he", "fft")]


def test_an_implementation_is_named_with_its_mixer() -> None:
    listed = [named_by("self-attention:sdpa"), named_by("she")]
    wanted = Plan(listed, implementation="conv,fft", device="cpu")
    assert named(requests(wanted)) == [
        ("self-attention", "sdpa"), ("she", "conv"), ("she", "fft"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "chosen", "sentence"),
    [
        ("she self-attention", "sdpa", "--impl sdpa leaves nothing to measure of she, which has "
         "direct, conv, fft: name an implementation with its mixer, such as self-attention:sdpa"),
        ("she:conv self-attention:sdpa", "fft", "--impl fft applies to mixers named without"),
        ("she:sdpa self-attention", "all", "no implementation 'sdpa': she has direct, conv, fft"),
    ],
)  # fmt: skip
def test_nothing_that_was_named_is_dropped(words: str, chosen: str, sentence: str) -> None:
    with pytest.raises(MeasureError, match=sentence):
        requests(Plan([*map(named_by, words.split())], implementation=chosen, device="cpu"))


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("cnv", "no implementation 'cnv': did you mean 'conv'? she has direct, conv, fft, and a "
         "class of your own is given as FILE.py:Class"),
        ("zzz", "no implementation 'zzz': she has direct, conv, fft, and"),
        ("", "no implementation '': she has"),
        ("direct,spda", "no implementation 'spda': she has"),
    ],
)  # fmt: skip
def test_a_name_that_no_mixer_has(typed: str, sentence: str) -> None:
    with pytest.raises(MeasureError) as refused:
        planned("she", implementation=typed)
    assert str(refused.value).startswith(sentence)


def test_a_mixer_without_modules_says_how_to_add_one(tmp_path: Path) -> None:
    change = ('@implementation("NAME")', '@implementation("of-another")')
    name = written(tmp_path, "window-without-module", change)
    for wanted in ("all", "conv"):
        with pytest.raises(MeasureError, match="no module implements the mixer 'window-without"):
            planned(name, "she", implementation=wanted)
    with pytest.raises(MeasureError, match="no module implements the mixer 'window-without"):
        planned("she", name, implementation="conv")


def test_sizes_phases_and_dtypes_are_a_cross_product() -> None:
    found = planned(
        "me",
        given={"l": (4, 8), "d": (3,), "n": (1, 2)},
        phases=("training", "inference"),
        implementation="fft",
        dtype="fp32,float64",
    )
    combined = [
        ("training", {"b": 1, "l": 4, "d": 3}),
        ("training", {"b": 1, "l": 8, "d": 3}),
        ("inference", {"b": 1, "l": 4, "t": 4, "d": 3}),
        ("inference", {"b": 1, "l": 8, "t": 8, "d": 3}),
    ]
    assert [(r.phase, dict(r.sizes), r.dtype) for r in found] == [
        (phase, sizes, dtype) for phase, sizes in combined for dtype in ("fp32", "fp64")
    ]


def test_seed_and_device_reach_every_request() -> None:
    assert {(r.seed, r.device) for r in planned("she", seed=5)} == {(5, "cpu")}


def test_sizes_that_a_mixer_refuses() -> None:
    with pytest.raises(SizeError, match="choose d divisible by n"):
        planned("she", "self-attention", given={"d": (100,), "n": (8,)})


@pytest.mark.parametrize(("option", "sentence"), [
    ({"dtype": "fp8"}, "unknown dtype 'fp8': expected one of fp64, fp32, bf16, fp16"),
    ({"dtype": "fp32,"}, "unknown dtype ''"),
    ({"device": "gpu"}, "unknown device 'gpu': expected cpu, cuda or cuda:N"),
    ({"device": "meta"}, "device 'meta' is not measured: expected cpu, cuda or cuda:N"),
])  # fmt: skip
def test_what_cannot_be_measured_on(option: dict[str, str], sentence: str) -> None:
    with pytest.raises(MeasureError) as refused:
        planned("she", **option)
    assert str(refused.value).startswith(sentence)


@NO_GPU
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(MeasureError, match="torch finds no NVIDIA GPU: use cpu"):
        planned("she", device="cuda")


# A class of a user's own


def test_a_class_of_ones_own_that_is_equal(own: Path) -> None:
    (request,) = planned("she", implementation=f"{own}:Same")
    assert request.implementation.name == f"{own}:Same"
    assert request.implementation.form == request.implementation.step_form == "direct"
    assert request.implementation.kernels is None


def test_beside_implementations_of_the_project(own: Path) -> None:
    found = planned("she", implementation=f"conv,{own}:Convolved,all")
    assert named(found) == [
        ("she", "conv"), ("she", f"{own}:Convolved"), ("she", "direct"), ("she", "fft"),
    ]  # fmt: skip


def test_it_is_shown_equal_once_however_many_sizes(own: Path, instead: Instead) -> None:
    shown: list[str] = []
    real = module_equals

    def counted(mixer: cm.Mixer, implementation: Implementation) -> Proof:
        shown.append(implementation.name)
        return real(mixer, implementation)

    instead(module_equals=counted)
    found = planned("she", given={"l": (1, 2, 3), "d": (1, 2)}, implementation=f"{own}:Same")
    assert len(found) == 6
    assert shown == [f"{own}:Same"]


UNEQUAL = (
    ("GateLost", "'module equals equations' fails at l = 1, d = 1: y[1, 1] is ",
     "the module computes ext as the equations do; equation (24) adj is the first whose values"),
    ("SumLost", "'module equals equations' fails at l = 2, d = 1: y[2, 1] is ",
     "equation (23) ext is the first whose values the module never computes"),
    ("StepLost", "'step equals forward' fails at l = 1, d = 1: y[1, 1] is 0, forward gives ",
     "in step, the module computes the values of every equation but returns other values"),
    ("Renamed", "'module equals equations' fails at l = 1, d = 1: ",
     "the equations have a parameter W_out (1, 1), the module has none of that name"),
    ("Broken", "'module equals equations' fails at l = 1, d = 1: ", "the module fails: half done"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "begins", "holds"), UNEQUAL, ids=[u[0] for u in UNEQUAL])
def test_a_class_that_is_not_equal_parts_somewhere(
    own: Path, name: str, begins: str, holds: str
) -> None:
    with pytest.raises(MeasureError) as refused:
        planned("she", implementation=f"{own}:{name}")
    assert str(refused.value).startswith(f"{own}:{name} does not compute she: the check {begins}")
    assert holds in str(refused.value)


@pytest.mark.parametrize("name", ["NoModule", "Absent", "torch"])
def test_what_is_no_module_class(own: Path, name: str) -> None:
    with pytest.raises(MeasureError, match=f"has no class '{name}' that is a torch.nn.Module"):
        planned("she", implementation=f"{own}:{name}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MeasureError) as refused:
        planned("she", implementation=f"{tmp_path}/none.py:Class")
    said = f"no file '{tmp_path}/none.py': a class of your own is given as FILE.py:Class"
    assert str(refused.value) == said


TIMES_3 = ("return s @ self.W_out", "return 3 * (s @ self.W_out)")
STEP_TIMES_3 = (".sum(1) @ self.W_out", ".sum(1) @ self.W_out * 3")


def test_a_module_of_ones_own_is_shown_equal_before_anything_is_measured(tmp_path: Path) -> None:
    name = written(tmp_path, "window-times-3", TIMES_3)
    with pytest.raises(MeasureError) as refused:
        planned(name)
    assert str(refused.value).startswith(
        "the module Window does not compute window-times-3: the check 'module equals equations' "
        "fails at l = 1, d = 1, w = 1: y[1, 1] is "
    )


def test_other_modules_stay_beside_one_that_is_not_equal(tmp_path: Path) -> None:
    name = written(tmp_path, "window-beside", TIMES_3)
    apart: list[tuple[Request, MeasureError]] = []
    plan = Plan([cm.mixer("we"), cm.mixer(name), cm.mixer("me")], device="cpu")
    found = requests(plan, unequal=lambda *each: apart.append(each))
    assert {mixer for mixer, _ in named(found)} == {"we", "me"}
    ((left, error),) = apart
    assert left.mixer.name == "window-beside"
    assert str(error).startswith("the module Window does not compute window-beside: ")
    with pytest.raises(MeasureError, match="does not compute window-beside"):
        requests(Plan([cm.mixer(name)], device="cpu"), unequal=lambda *each: apart.append(each))


def test_its_step_is_shown_equal_where_it_is_measured(tmp_path: Path) -> None:
    name = written(tmp_path, "step-times-3", STEP_TIMES_3)
    assert named(planned(name)) == [("step-times-3", "direct")]
    said = "the module Window does not compute step-times-3: the check 'step equals forward' fails"
    with pytest.raises(MeasureError, match=said):
        planned(name, phases=("training", "decode"))


def test_a_described_class_keeps_its_description_under_the_users_name(tmp_path: Path) -> None:
    name = written(tmp_path, "window-described")
    mixer = cm.mixer(name)
    wanted = name.replace(":window-described", ":Window")
    found = users_class(mixer, wanted)
    described = implementations("window-described")["direct"]
    assert found.name == wanted
    assert (found.module, found.form, found.rewrites) == (
        described.module, described.form, described.rewrites,
    )  # fmt: skip
    assert chosen_implementations(mixer, wanted, [mixer]) == [found]


def test_how_a_class_is_named() -> None:
    assert is_class("a/b.py:Class")
    assert not any(map(is_class, ("all", "conv", "b.py", "a:b")))
    assert issubclass(implementations("me")["toeplitz"].module, MeToeplitz)
