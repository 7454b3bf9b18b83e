"""The page of `explore`: its trees give the numbers of the tables, and a browser shows them."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode
from xml.dom.minidom import parseString

import pytest
from typer.testing import CliRunner

import cli
from costmodel.backwards.candidates import candidate
from costmodel.language.equations import Mixer
from costmodel.language.notation import equation
from costmodel.mixers import builtin, names
from costmodel.program.conventions import Convention
from costmodel.program.element_types import BYTES, Dtypes
from costmodel.questions.question import Case, Missing, answers
from costmodel.questions.registry import FIGURES
from costmodel.report import explorer
from costmodel.report.mathml import mathml
from tests.systems import examples

MIXERS = ("self-attention", "gqa", "mla", "gated-deltanet", "mamba-2", "reformer", "she", "fnet",
          "bigbird", "gpt-oss-attention", "aft-local", "rwkv-7", "gpt-2",
          "strided-attention", "qwen3-next-attention")  # fmt: skip
RECORDS = Path(__file__).with_name("recorded.jsonl")
ROLES = ("activations", "weights", "cache", "state")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of `MIXERS`, as the command writes it."""
    path = tmp_path_factory.mktemp("explorer") / "explore.html"
    done = CliRunner().invoke(
        cli.app, ["explore", *MIXERS, "--from", str(RECORDS), "-o", str(path)]
    )
    assert done.exit_code == 0, done.output
    return path


@pytest.fixture(scope="module")
def data(page_of: Path) -> dict[str, Any]:
    """The data that the page holds."""
    text = page_of.read_text(encoding="utf-8")
    _, _, rest = text.partition('id="data">')
    found: dict[str, Any] = json.loads(rest.partition("</script>")[0])
    return found


def load(name: str) -> Mixer:
    """The mixer, or the model in the place of a mixer, of a name."""
    return candidate(name)[0]


def settings(seed: int) -> tuple[str, str, dict[str, int], dict[str, str]]:
    """A mixer, a phase, sizes by letter and element types by role, drawn at random."""
    draw = random.Random(seed)
    name, phase = draw.choice(MIXERS), draw.choice(("training", "inference"))
    heads = draw.choice((1, 2, 4, 8))
    sizes = {"n": heads, "g": draw.choice([g for g in (1, 2, 4) if heads % g == 0])}
    sizes |= {"d": 8 * heads * draw.randint(1, 9), "b": draw.randint(1, 5)}
    sizes |= {"l": 16 * draw.randint(2, 12), "w": draw.randint(1, 20), "s": draw.randint(1, 4)}
    sizes |= {"N": draw.randint(1, 70), "k": draw.randint(1, 5)}
    if phase == "inference":
        sizes["t"] = draw.randint(1, sizes["l"])
    mixer = load(name)
    kept = {x: size for x, size in sizes.items() if x in (*mixer.letters, "b", "t")}
    kept = {x: size for x, size in kept.items() if x not in mixer.given}
    return name, phase, kept, {role: draw.choice([*BYTES]) for role in ROLES}


def numbers(name: str, phase: str, sizes: Mapping[str, int], types: Mapping[str, str]) -> Any:
    """Figure -> its value as `table` computes it: a number, or None without an answer."""
    mixer = load(name)
    dtypes = Dtypes(*(types[role] for role in ("activations", "state", "weights", "cache")))
    usual = {x: mixer.letter(x).default or 1 for x in mixer.letters}
    known = {"t": sizes.get("t", sizes.get("l", 128)), "b": 1, **usual, **mixer.given, **sizes}
    about = answers(mixer, mixer.default_form, phase, Convention())
    case = Case(about, known, symbolic=False, dtypes=dtypes)
    found = {name: case.figure(figure) for name, figure in FIGURES.items()}
    return {x: None if isinstance(value, Missing) else value for x, value in found.items()}


class Tree:
    """The trees of a page at sizes, evaluated by rules of their own."""

    def __init__(self, data: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        self.data, self.sizes = data, sizes

    def poly(self, place: int) -> Fraction:
        total = Fraction(0)
        for number, *factors in self.data["polys"][place]:
            term = Fraction(number)
            for atom, power in zip(factors[::2], factors[1::2], strict=True):
                base = self.sizes[atom] if isinstance(atom, str) else self.function(atom)
                term *= Fraction(base) ** power
            total += term
        return total

    def function(self, place: int) -> Fraction:
        name, *places = self.data["functions"][place]
        args = [self.poly(argument) for argument in places]
        if name in ("Max", "Min"):
            return max(args) if name == "Max" else min(args)
        if name == "pow2":
            return Fraction(2) ** int(args[0])
        if name == "floor_div":
            return Fraction(args[0] // args[1])
        exponent = 0
        while Fraction(2) ** exponent < args[0]:
            exponent += 1
        return Fraction(exponent)

    def answer(self, place: int) -> Fraction | None:
        tree = self.data["answers"][place]
        if "sum" in tree:
            pieces = ((poly, map(self.poly, guards)) for guards, poly in tree["sum"])
            held = (self.poly(poly) for poly, guards in pieces if min(guards, default=0) >= 0)
            return sum(held, Fraction(0))
        if "max" in tree:
            return max(value for p in tree["max"] if (value := self.answer(p)) is not None)
        if "quotient" in tree:
            above, below = map(self.answer, tree["quotient"])
            return above / below if above is not None and below else None
        assert tree["value"] is None and tree["reason"]
        return None


@pytest.mark.parametrize("seed", range(40))
def test_trees_give_the_numbers_of_the_table(seed: int, data: dict[str, Any]) -> None:
    name, phase, sizes, types = settings(seed)
    mixer = next(m for m in data["mixers"] if m["name"] == load(name).name)
    of = mixer["forms"][mixer["default"]]["phases"][phase]
    expected = numbers(name, phase, sizes, types)
    known = {x: default for x, (_, default) in {**data["letters"], **mixer["own"]}.items()}
    known = {**known, "t": sizes.get("l", 128), **mixer["given"], **sizes}
    tree = Tree(data, known | {role: BYTES[types[role]] for role in ROLES})
    for figure, place in of["figures"].items():
        beyond = any(min(map(tree.poly, guards)) >= 0 for _, guards in of["beyond"])
        found = None if beyond and not FIGURES[figure].always else tree.answer(place)
        # a number that only a search finds has no tree
        if found is not None or not FIGURES[figure].search:
            assert found == expected[figure], figure


def test_a_figure_without_a_formula_says_that_a_table_has_it(data: dict[str, Any]) -> None:
    mixer = next(each for each in data["mixers"] if each["name"] == "strided-attention")
    place = mixer["forms"][mixer["default"]]["phases"]["training"]["figures"]["path_length"]
    reason = data["answers"][place]["reason"]
    assert reason.endswith("; costmodel table searches for it at given sizes")


@pytest.mark.grid(4)
@pytest.mark.parametrize("name", names())
def test_equations_are_typeset_as_mathml(name: str) -> None:
    mixer = builtin(name)
    for form in mixer.forms.values():
        for each in map(equation, form.equations):
            for text in (f"{each.left} = {each.right}", *each.ranges):
                parseString(mathml(text))
                assert text.count("{,}") < 4  # pi is no quotient of two integers


@pytest.mark.parametrize(
    "text",
    [
        r"\frac{a}{",
        r"\unheard{x}",
        "a}",
        r"\begin{align} a \end{align}",
        r"\begin{cases} a & b",
        r"\begin{cases} a } b",
    ],
)
def test_mathml_refuses_what_no_rule_prints(text: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"too early|expected|no rule .*: (add one to _COMMANDS|use 'cases')|no partner",
    ):
        mathml(text)


def test_a_page_is_written_once_and_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    run = CliRunner().invoke
    assert run(cli.app, ["explore", "she", "-o", str(path)]).exit_code == 0
    assert run(cli.app, ["explore", "she", "-o", str(path)]).exit_code != 0
    assert run(cli.app, ["explore", "she"]).exit_code != 0


def test_a_page_holds_the_licence_of_the_library_that_it_holds(page_of: Path) -> None:
    vendored = Path(explorer.__file__).with_name("vendor")
    (licence,) = vendored.glob("*LICENSE*")
    page = page_of.read_text("utf-8")
    assert licence.read_text("utf-8").strip() in page
    assert page.index("Copyright (c)") < page.index(
        vendored.joinpath("uPlot.min.css").read_text("utf-8")
    )


def test_a_page_opens_with_the_mixers_named_and_its_link_names_them(tmp_path: Path) -> None:
    asked = ["explore", "mqa", "mla{c=8}", "-o", str(tmp_path / "page.html")]
    done = CliRunner().invoke(cli.app, asked)
    names = [load(name).name for name in asked[1:3]]
    found = json.loads(
        (tmp_path / "page.html").read_text("utf-8").partition('id="data">')[2].split("</script>")[0]
    )
    assert found["first"] == names
    _, _, link = done.output.strip().partition("#")
    assert dict(parse_qsl(link)) == {"mixers": " ".join(names), "size.l": "4096"}


def test_a_page_opens_with_as_many_mixers_as_its_map_has_colours_for(data: dict[str, Any]) -> None:
    assert 1 < data["colours"] < len(MIXERS)
    assert data["first"] == [load(name).name for name in MIXERS[: data["colours"]]]


@pytest.fixture(scope="module")
def browser_page(page_of: Path) -> Iterator[Any]:
    """The page in a headless browser without a network; a message in its console is an error."""
    if CHROMIUM is None or (needs := _missing("playwright", "axe_playwright_python")):
        reason = "no Chromium is installed" if CHROMIUM is None else f"{needs} is not installed"
        if os.environ.get("COSTMODEL_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(offline=True, viewport={"width": 1600, "height": 1000})
        shown = context.new_page()
        said: list[str] = []
        shown.on("console", lambda message: said.append(message.text))
        shown.on("pageerror", lambda error: said.append(str(error)))
        shown.on("request", lambda request: _local(request.url, said))
        shown.goto(page_of.as_uri())
        shown.wait_for_selector("#costs tbody tr")
        yield shown
        browser.close()
        assert said == []


def _local(url: str, said: list[str]) -> None:
    if not url.startswith(("file:", "data:")):
        said.append(f"a request to {url}")


def _missing(*packages: str) -> str:
    from importlib.util import find_spec

    return next((name for name in packages if find_spec(name) is None), "")


def test_the_page_shows_the_numbers_of_the_table(browser_page: Any) -> None:
    for seed in range(100, 100 + examples(50)):
        name, phase, sizes, types = settings(seed)
        named = {"mixers": load(name).name, "phase": phase}
        named |= {f"size.{x}": str(size) for x, size in sizes.items()}
        named |= {f"type.{role}": dtype for role, dtype in types.items()}
        browser_page.evaluate("link => { location.hash = link; }", urlencode(named))
        row = f"tr[data-mixer='{load(name).name}']"
        browser_page.wait_for_function(
            f'settings.phase === "{phase}" && document.querySelector("{row}")'
        )
        cells = browser_page.eval_on_selector_all(
            "#costs td[data-figure]", "all => all.map(one => [one.dataset.figure, one.textContent])"
        )
        expected = numbers(name, phase, sizes, types)
        assert cells or not any(expected.values())
        for figure, text in cells:
            value = expected[figure]
            if FIGURES[figure].kind == "ratio" and Fraction(value).denominator != 1:
                assert float(text) == pytest.approx(float(value), rel=1e-3)
            else:
                assert text.replace(",", "") == str(value), (name, phase, sizes, figure)


def violations(page: Any, part: str | None = None) -> list[tuple[str, list[Any]]]:
    """What axe finds on a page, or in a part of it: (rule, the first places)."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, part).response["violations"]
    return [(one["id"], [n["target"] for n in one["nodes"]][:3]) for one in found]


@pytest.mark.grid(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1600])
def test_the_page_is_accessible(browser_page: Any, scheme: str, width: int) -> None:
    browser_page.emulate_media(color_scheme=scheme)
    browser_page.set_viewport_size({"width": width, "height": 900})
    assert violations(browser_page) == []
    assert browser_page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_a_card_is_accessible(browser_page: Any) -> None:
    browser_page.emulate_media(color_scheme="dark")
    browser_page.set_viewport_size({"width": 390, "height": 900})
    for name in (load(name).name for name in MIXERS):
        browser_page.evaluate("focus => { settings.focus = focus; drawCard(); }", name)
        # wide equations and ranges scroll in places of their own
        browser_page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")
    assert violations(browser_page, "#card") == []


def test_words_of_the_map_keep_their_size_and_a_hint_its_contrast(browser_page: Any) -> None:
    """A picture that a narrow screen shrinks is no text for axe: a pixel of the map is a pixel of
    the screen. Nor does axe look at the hint in an empty field."""
    for scheme in ("light", "dark"):
        browser_page.emulate_media(color_scheme=scheme)
        for width in (390, 1600):
            browser_page.set_viewport_size({"width": width, "height": 900})
            browser_page.wait_for_function(
                "$('map').clientWidth * devicePixelRatio === $('map').width"
                " && $('map').clientWidth <= innerWidth"
            )
        of = "getComputedStyle(document.querySelector('#search'), "
        hint = browser_page.evaluate(f"{of}'::placeholder').color")
        assert hint == browser_page.evaluate("getComputedStyle($('found')).color")


def test_a_page_without_room_is_drawn(browser_page: Any) -> None:
    """A hidden frame has no width, and a map of no width no room for the words of its axes."""
    browser_page.set_viewport_size({"width": 1600, "height": 900})
    browser_page.evaluate("$('map').parentElement.style.display = 'none'; drawMap()")
    assert browser_page.evaluate("parseInt($('map').style.width)") > 0
    browser_page.evaluate("$('map').parentElement.style.display = ''; drawMap()")


def test_a_search_and_a_slider_change_the_page(browser_page: Any) -> None:
    browser_page.get_by_label("Search names, ideas and sources").fill("delta")
    found, _, of = browser_page.get_by_role("status").first.text_content().partition(" of ")
    assert 0 < int(found) < int(of.split()[0]) == len(MIXERS)
    browser_page.get_by_label("Search names, ideas and sources").fill("")
    browser_page.evaluate("location.hash = 'mixers=she&phase=training'")
    cell = browser_page.locator('tr[data-mixer="she"] td[data-figure="total"]')
    cell.wait_for()
    before = cell.text_content()
    browser_page.get_by_label("l sequence length", exact=True).fill("256")
    assert cell.text_content() != before
    assert "size.l=256" in browser_page.evaluate("location.hash")
    browser_page.get_by_role("button", name="reformer", exact=True).click()
    total = browser_page.locator("#card dt:text-matches('^Total') + dd")
    before = total.text_content()
    browser_page.get_by_label("C chunk", exact=True).fill("32")  # a size of the shown mixer alone
    assert total.text_content() != before and "C = 32" in browser_page.inner_text("#card")


def test_a_link_opens_with_mixers_and_sizes(browser_page: Any) -> None:
    link = browser_page.url.partition("#")[0] + "#mixers=mla+gqa&size.l=4096&size.d=256"
    browser_page.goto("about:blank")
    browser_page.goto(link)
    rows = browser_page.eval_on_selector_all(
        "#costs tbody tr", "all => all.map(o => o.dataset.mixer)"
    )
    assert rows == [load(name).name for name in ("mla", "gqa")]
    for letter, size in (("l", "4096"), ("d", "256")):
        assert browser_page.locator(f"#size-{letter}").input_value() == size


@pytest.mark.parametrize(
    ("mixer", "letter", "limit"), [("gpt-2", "l", 1024), ("mamba-2", "N", None), ("mla", "c", None)]
)
def test_a_size_with_a_default_of_the_mixers_own_is_an_axis(
    browser_page: Any, mixer: str, letter: str, limit: int | None
) -> None:
    browser_page.evaluate(
        "link => { location.hash = link; }",
        f"mixers={mixer}&phase=training&over={letter}&x={letter}&y=b&first=1&last=4096",
    )
    browser_page.wait_for_function(
        f"plot?.series[0].label === '{letter}' && plot.series[1].label === '{mixer}'"
        " && plot.data[0].at(-1) === 4096"
    )
    drawn = dict(zip(*browser_page.evaluate("[plot.data[0], plot.data[1]]"), strict=True))
    kept = {size: value for size, value in drawn.items() if value is not None}
    assert len({*kept.values()}) == len(kept) > 5
    assert limit is None or max(kept) == limit < max(drawn)
    for size in (min(kept), max(kept)):
        assert (
            kept[size]
            == numbers(mixer, "training", {letter: size}, dict.fromkeys(ROLES, "fp32"))["total"]
        )
    assert browser_page.evaluate("[settings.over, settings.x, settings.y]") == [letter, letter, "b"]
    said = browser_page.evaluate("plot.axes[0].label")
    assert said == f"{letter}: {load(mixer).letter(letter).meaning}"


def test_a_setting_that_is_refused_is_said_and_has_no_numbers(browser_page: Any) -> None:
    said = browser_page.locator("#refused p")
    browser_page.evaluate("location.hash = 'mixers=she&phase=training&size.d=128'")
    browser_page.wait_for_function("settings.sizes.d === 128n && settings.mixers[0] === 'she'")
    box, costs = browser_page.locator("#size-d"), browser_page.locator("#costs")
    assert said.count() == 0 and costs.is_visible()
    for wrong in ("-5", "12.5", "9007199254740993", "1e"):
        box.press("Control+A")
        box.press_sequentially(wrong)
        assert "Size d: expected a whole number" in said.inner_text() and not costs.is_visible()
    box.fill("64")
    assert said.count() == 0 and costs.is_visible()
    link = "mixers=she+nonsense&size.d=abc&phase=foo&size.mamba-2.N=7&hue=2&sizes=3&forms=x"
    link += "&size.toString=3&form.she=constructor&type.constructor=fp32&type.weights=valueOf"
    browser_page.evaluate("link => { location.hash = link; }", link)
    said.first.wait_for()
    words = said.all_inner_texts()
    setting = "is left out: expected a setting of this page"
    wrong_ones = (
        "nonsense", "size.d = abc", "phase = foo", "size.mamba-2.N = 7", f"hue = 2 {setting}",
        f"sizes = 3 {setting}", f"forms = x {setting}", "size.toString = 3",
        "form.she = constructor", "type.constructor = fp32", "type.weights = valueOf",
    )  # fmt: skip
    assert [text in one for text, one in zip(wrong_ones, words, strict=True)] == [True] * 11
    box.fill("32")  # the sentence about d goes, the others stay
    assert said.all_inner_texts() == [one for one in words if "size.d" not in one]


def test_a_size_beyond_its_bound_has_no_numbers(browser_page: Any) -> None:
    link = "mixers=qwen3-next-attention&phase=training&size.d=128&size.n=8&size.r="
    note = browser_page.locator("#notes")
    for size, said in (("16", False), ("64", True)):
        browser_page.evaluate("link => { location.hash = link; }", link + size)
        browser_page.wait_for_function(f"settings.sizes.r === {size}n")
        assert ("r = 64 must be at most" in note.inner_text()) is said
        assert (browser_page.locator("#costs td[data-figure]").count() == 0) is said


def test_measured_points_stand_beside_the_curves(browser_page: Any) -> None:
    """Every implementation of a mixer has its entry; the page opens at the sizes of a record."""
    found = [
        record
        for record in map(json.loads, RECORDS.read_text(encoding="utf-8").splitlines())
        if (record["mixer"], record["phase"]) == ("she", "training")
    ]
    browser_page.evaluate("location.hash = 'mixers=she&phase=training&over=l'")
    for record in found:
        value = record["readings"]["latency"]["value"]
        browser_page.wait_for_function(f"plot?.data.some(one => one.includes({value}))")
        at = browser_page.evaluate(f"plot.data.findIndex(one => one.includes({value}))")
        words = browser_page.evaluate(f"[plot.series[{at}].label, inUnit({value}, 's')]")
        assert words[0].startswith(f"she {record['implementation']}, fp32, ")
        assert re.fullmatch(r"[\d.]+ [µm]s", words[1])
    assert len(found) == 2
    style = "[style.borderStyle, style.backgroundColor, style.borderRadius]"
    shown = f"all => all.map((one) => getComputedStyle(one)).map((style) => {style})"
    marks = browser_page.eval_on_selector_all(".u-legend .u-marker", shown)[-3:]
    assert len({*map(tuple, marks)}) == 3  # a curve and the points of two implementations
    assert browser_page.evaluate("plot.axes.at(-1).label") == "measured latency, hot"
    assert browser_page.evaluate("Number(initial().sizes.d)") == found[0]["sizes"]["d"]
    browser_page.get_by_label("with measured").select_option("peak memory")
    value = found[0]["readings"]["peak_memory"]["value"]
    browser_page.wait_for_function(f"plot?.data.some(one => one.includes({value}))")
