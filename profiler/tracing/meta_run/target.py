"""Finds the module that `package.module:factory` names, and builds it with its inputs.

A *factory* is a class, or a function, that is called with the sizes that its parameters name; it
returns a module, or (module, inputs). Without inputs the module gets one tensor, x (b, l, d).
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from os.path import isfile
from pathlib import Path
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map

from costmodel import errors
from costmodel.errors import (
    TOO_LITTLE,
    FormulaError,
    Raised,
    Unanswered,
    UnknownMixer,
    as_exception,
    shortened,
    text_of,
    unusable_package,
    words_of,
)
from costmodel.language.formula_text import parse
from costmodel.mixers.load import user_module
from costmodel.symbolic.formulas import Formula
from costmodel.symbolic.polynomial import Poly
from costmodel.symbolic.sizes import LETTERS, in_order, is_letter, whole_number
from profiler.counting.call import higher_order_reason
from profiler.tracing.meta_run.shape_values import MetaMode, on_meta


class TraceError(Unanswered):
    """The module cannot be traced; the message says why, and the remedy."""


class Untraceable(Exception):
    """Raised while a module runs; the message says why the module cannot be traced, without the
    module's name, which `as_trace_error` puts before the message."""


Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Variables:
    """The sizes in which formulas are written, and the sizes that follow from these.

    `over` maps each letter to the number whose multiples are tried (1 unless the module needs
    more); `let` maps a name to its formula.
    """

    over: Mapping[str, int]
    let: Mapping[str, Formula] = field(default_factory=dict)

    def sizes(self, point: Sizes) -> dict[str, int]:
        """A dict: name -> value of every size at a point (letter -> size), those of --let computed
        by their formulas; TraceError if a formula gives no positive whole number."""
        found = dict(point)
        for name, formula in self.let.items():
            try:
                number = formula.at(found)
            except FormulaError as error:
                raise TraceError(f"--let {name}={formula.text}: {error}") from error
            if number.denominator != 1 or number < 1:
                raise TraceError(
                    f"--let {name}={formula.text} gives {number} at {listed_sizes(point)}: "
                    f"expected a positive whole number"
                )
            found[name] = number.numerator
        return found

    def poly(self, name: str) -> Poly | None:
        """A size as a polynomial in the letters of `over`; None for an unknown name. Raises
        TraceError: the formula of the size in `let` is no polynomial."""
        if name in self.over:
            return Poly.atom(name)
        if name not in self.let:
            return None
        from costmodel.errors import NotPolynomial
        from costmodel.symbolic.formulas import poly
        from costmodel.symbolic.polynomial import size

        atoms = {letter: Poly.atom(letter) for letter in self.over}
        bound = {
            letter: atom
            for letter, atom in atoms.items()
            if letter not in LETTERS or size(letter) != atom  # h, elsewhere d/n, is a letter here
        }
        for let in self.let:
            if let == name:  # a formula has no later name
                break
            if (inner := self.poly(let)) is not None:
                bound[let] = inner
        try:
            return poly(self.let[name].tree, bound)
        except NotPolynomial as error:
            raise TraceError(
                f"--let {name}={self.let[name].text} has {error}: expected a polynomial in sizes"
            ) from error


def listed_sizes(point: Sizes) -> str:
    """Sizes, as printed in messages.

    >>> listed_sizes({"l": 3, "d": 4})
    'l=3, d=4'
    """
    return ", ".join(f"{name}={value}" for name, value in point.items())


def parse_variables(
    over: str | Sequence[str],
    let: str | Sequence[str] | Mapping[str, str],
    own: Collection[str] = (),
) -> Variables:
    """Parse --over and --let: the variables of texts such as `l,h:2,n` (h by twos) and `d=n*h`.
    Letters are those that mixers share, and those in `own`, the names that a module takes. Raises
    TraceError: an unknown letter, a multiple that is not a positive number, an invalid formula."""
    listed = over.split(",") if isinstance(over, str) else list(over)
    letters: dict[str, int] = {}
    for entry in filter(None, (text.strip() for text in listed)):
        letter, _, typed = entry.partition(":")
        known = in_order({*LETTERS, *filter(is_letter, own)})
        if letter not in known:
            raise TraceError(f"--over {letter}: expected sizes out of {' '.join(known)}")
        if letter in letters:
            raise TraceError(f"--over names {letter} twice: give every size once")
        if not (multiple := whole_number(typed or "1")):
            raise TraceError(
                f"--over {shortened(entry)}: expected LETTER or LETTER:MULTIPLE, such as h:2"
            )
        letters[letter] = multiple
    if not letters:
        raise TraceError("--over names no size: give the letters of formulas, such as l")
    return Variables(letters, _lets(let, letters))


def _lets(
    let: str | Sequence[str] | Mapping[str, str], letters: Mapping[str, int]
) -> dict[str, Formula]:
    """A dict: name -> formula of each size in --let. A formula may use the letters of `over` and
    earlier names and, after h (in `over` or as an earlier name), also d and n, since h is d/n.
    TraceError for any other letter, an invalid formula, or a name that is given twice."""
    if isinstance(let, str):
        let = let.split(",")
    pairs = (
        list(let.items())
        if isinstance(let, Mapping)
        else [_let_entry(text) for text in let if text]
    )
    found: dict[str, Formula] = {}
    for name, text in pairs:
        if name in letters or name in found:
            raise TraceError(f"--let {name}: this size is given twice: give every size once")
        try:
            formula = parse(str(text))
        except FormulaError as error:
            raise TraceError(f"--let {name}: {error}") from error
        needed = formula.letters - {"d", "n"} if "h" in (*letters, *found) else formula.letters
        if unknown := sorted(needed - letters.keys() - found.keys()):
            raise TraceError(
                f"--let {name}={text}: {', '.join(unknown)} is not among the sizes: add it to "
                "--over, or define it in an earlier --let"
            )
        found[name] = formula
    return found


def _let_entry(text: str) -> tuple[str, str]:
    """Name and formula of an entry such as `d=n*h`; TraceError for any other text."""
    name, equals, formula = (part.strip() for part in text.partition("="))
    if not equals or not name.isidentifier() or not formula:
        raise TraceError(f"--let {text}: expected NAME=FORMULA, such as d=n*h")
    return name, formula


GRADS = ("parameters", "inputs", "both", "none")
"""The gradients that a backward pass may be asked for; frozen parameters never have any, and with
`none` there is no backward pass."""

MODES = ("train", "eval")
"""The modes in which a module may be asked to run."""


@dataclass(frozen=True)
class Target:
    """A class or function that makes the module, and the name by which the user gave it.

    `grad` is one of `GRADS`, or None to follow `requires_grad` of parameters and inputs; `mode` is
    one of `MODES`, or None for the mode in which the module is made.
    """

    name: str
    make: Callable[..., Any]
    grad: str | None = None
    mode: str | None = None


def load_target(target: str | Callable[..., Any]) -> Target:
    """Find the class or function that `package.module:factory` or `path/file.py:Class` names, or a
    class or function that was passed itself. Raises TraceError: there is no such file, package or
    name, it fails to import, or it is not callable. "m:A.b" names b of A in m."""
    if callable(target) and not isinstance(target, nn.Module):
        return Target(getattr(target, "__name__", "module"), target)
    if not isinstance(target, str):
        raise TraceError(
            f"expected a class or a function that makes the module at given sizes, got a "
            f"{type(target).__name__}: its sizes are fixed already"
        )
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise TraceError(f"'{target}': expected package.module:factory or path/file.py:Class")
    home = _file(Path(place)) if place.endswith(".py") else _package(place)
    found = home
    for part in name.split("."):
        if not hasattr(found, part):
            known = [n for n, v in vars(found).items() if callable(v) and not n.startswith("_")]
            near = difflib.get_close_matches(part, known, 1)
            hint = f": did you mean '{near[0]}'?" if near else ""
            raise TraceError(f"{place} has no '{part}'{hint}")
        found = getattr(found, part)
    if isinstance(found, nn.Module) or not callable(found):
        kind = type(found).__name__
        raise TraceError(f"{target} is a {kind}: give a class or a function that builds a module")
    return Target(target, found)


def _file(path: Path) -> Any:
    """Import the Python module of a user's file; TraceError if there is no such file, or it
    fails."""
    if not isfile(path):
        raise TraceError(f"no file '{path}': give path/file.py:Class or package.module:factory")
    try:
        return user_module(path)
    except UnknownMixer as error:
        raise TraceError(str(error)) from error


def _package(name: str) -> Any:
    """Import the Python module of this name, which may lie in the working directory; TraceError if
    it is not installed or fails to import."""
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        with as_exception():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise TraceError(
            f"no package '{error.name}' is installed or in the working directory, so that {name} "
            "does not import: install it, or give path/file.py:Class"
        ) from error
    except Exception as error:  # a module of a user's own may raise anything
        raise TraceError(f"{name} does not import: {words_of(error)}") from error
    finally:
        if added:
            sys.path.remove(here)


@dataclass(frozen=True)
class Built:
    """A module on the meta device, and its inputs.

    While the module runs, `misread` collects the names of layers with `batch_first` False that
    receive the default x (b, l, d), which they read as (l, b, d).
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    misread: set[str] = field(default_factory=set)
    own_inputs: bool = False
    """Whether the factory made the inputs too."""
    frozen: int = 0
    """The number of entries of parameters that the factory made without `requires_grad`."""

    @property
    def differentiated(self) -> frozenset[str]:
        """Which gradients the backward pass computes: of `parameters`, `inputs`, both or none."""
        tensors = {"parameters": self.module.parameters(), "inputs": self.inputs()}
        return frozenset(n for n, found in tensors.items() if any(t.requires_grad for t in found))

    def inputs(self) -> Iterator[Tensor]:
        """Every tensor among the module's inputs."""
        return nested_tensors((self.args, self.kwargs))

    @property
    def modes(self) -> frozenset[str]:
        """The modes of its layers: `train`, `eval` or both."""
        return frozenset(MODES[not layer.training] for layer in self.module.modules())


def build_target(target: Target, sizes: Sizes) -> Built:
    """Build the module at these sizes on the meta device, with the factory's inputs or else x (b,
    l, d). Raises TraceError: the factory needs a size that was not given, refuses these sizes, or
    makes no module. `target.mode`, `target.grad`: as `trace` takes them."""
    with on_meta(), MetaMode():
        made = make(target, sizes)
    module = on_meta_device(made.module)
    if target.mode is not None:
        module.train(target.mode == "train")
    frozen = sum(p.numel() for p in module.parameters() if not p.requires_grad)
    if target.grad in ("inputs", "none"):
        module.requires_grad_(False)
    # gradients of inputs
    asked = None if target.grad is None else target.grad in ("inputs", "both")
    args, kwargs = meta_inputs((made.args, made.kwargs), asked)
    built = Built(module, args, kwargs, own_inputs=made.own_inputs, frozen=frozen)
    if not made.own_inputs:
        _watch(built, args[0].shape)
    return built


def on_meta_device(module: nn.Module) -> nn.Module:
    """Move the module to the meta device and return it. A parameter that layers share stays shared,
    which torch's own move would undo."""
    held = [
        (layer, name, parameter)
        for layer in module.modules()
        for name, parameter in layer._parameters.items()
        if parameter is not None
    ]
    module.to("meta")
    first: dict[int, nn.Parameter | None] = {}
    for layer, name, before in held:
        layer._parameters[name] = first.setdefault(id(before), layer._parameters[name])
    return module


@dataclass(frozen=True)
class Made:
    """A module as its factory made it, and its inputs."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    own_inputs: bool
    """Whether the factory made the inputs too."""


def make(target: Target, sizes: Sizes) -> Made:
    """Make the module at these sizes and its inputs, by the factory on the default device. Raises
    TraceError: the factory needs a size that was not given or fails, the result is no module or has
    lazy parameters, or `forward` does not accept the inputs."""
    given = _factory_sizes(target, sizes)
    try:
        with as_exception():
            made = target.make(**given)
    except Exception as error:  # a module of a user's own may raise anything
        raise TraceError(
            f"{target.name} cannot be built at {listed_sizes(sizes)}: {_error_words(error)}"
        ) from error
    module, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        raise TraceError(
            f"{target.name} makes a {type(made).__name__}: expected a torch.nn.Module, or a pair "
            "(module, inputs)"
        )
    if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        raise TraceError(
            f"{target.name} makes a module whose parameters get their shapes at its first "
            f"call: give all of its sizes, as torch.nn.Linear takes them"
        )
    own = inputs is not None
    args, kwargs = _arguments(target, inputs if own else (_sequence(target, sizes),))
    _refuse_arguments(target, module, args, kwargs, own)
    return Made(module, args, kwargs, own)


DEFERRED: Mapping[Callable[[Any], bool], str] = {
    inspect.isgeneratorfunction: "yield",
    inspect.iscoroutinefunction: "async def",
    inspect.isasyncgenfunction: "async def",
}
"""Test of a function whose call runs none of its lines -> the words by which Python knows it."""


def _refuse_arguments(
    target: Target, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], own: bool
) -> None:
    """Raise TraceError if `forward` does not accept these arguments, or is a generator or a
    coroutine, so that its call runs nothing; `own`: whether the factory made them."""
    for holds, written in DEFERRED.items():
        if holds(module.forward):
            raise TraceError(
                f"a call of {target.name} runs nothing: its forward is written with `{written}`; "
                f"return a list of its results"
            )
    try:
        taken = inspect.signature(module.forward)
    except ValueError:  # one of torch's forwards, written in C++
        return
    try:
        taken.bind(*args, **kwargs)
    except TypeError as error:
        given, mend = "x (b, l, d) alone", "a function may return the module and its inputs"
        if own:
            given, mend = "its inputs", "correct the inputs that it returns"
        raise TraceError(f"{target.name} cannot be called with {given}: {error}; {mend}") from error


def _watch(built: Built, shape: tuple[int, ...]) -> None:
    """Register hooks that note in `built.misread` each layer with `batch_first` False that receives
    an input of this shape, that of x (b, l, d): it reads the batch axis as the length."""

    def called(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], Tensor) and inputs[0].shape == shape:
            built.misread.add(type(layer).__name__)

    for layer in built.module.modules():
        if getattr(layer, "batch_first", None) is False:
            layer.register_forward_pre_hook(called)


def _factory_sizes(target: Target, sizes: Sizes) -> dict[str, int]:
    """A dict: name -> value of the sizes that the factory's parameters name; a factory with
    **kwargs also receives the names of --let that are no letters. {} for a class that inherits
    nn.Module's constructor. Raises TraceError: a parameter without default has no size, or a name
    of --let is no parameter. `def f(l, m=8)` at l = 5, h = 2 gets {"l": 5}."""
    if getattr(target.make, "__init__", None) is nn.Module.__init__:
        return {}
    parameters = parameters_of(target)
    kinds = {p.kind for p in parameters.values()}
    missing = [
        name
        for name, p in parameters.items()
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY, p.POSITIONAL_ONLY)
        and name not in sizes
    ]
    if missing:
        listed = ", ".join(missing)
        raise TraceError(
            f"{target.name} needs {listed}: name a Python function that takes the sizes and "
            f"returns the module or, with `costmodel trace`, add --let {missing[0]}=FORMULA"
        )
    anything = inspect.Parameter.VAR_KEYWORD in kinds
    written = filter(str.isidentifier, sizes)  # letters of quotients are named by their formulas
    foreign = [name for name in written if name not in parameters and name not in LETTERS]
    if foreign and not anything:
        near = difflib.get_close_matches(foreign[0], parameters, 1)
        known = f", but {', '.join(parameters)}" if parameters else " and no other size"
        hint = f": did you mean '{near[0]}'?" if near else known
        raise TraceError(f"{target.name} takes no '{foreign[0]}' (--let){hint}")
    return {
        name: value
        for name, value in sizes.items()
        if name in parameters or (anything and name.isidentifier() and name not in LETTERS)
    }


def parameters_of(target: Target) -> Mapping[str, inspect.Parameter]:
    """The factory's parameters by name; TraceError if it has no signature."""
    try:
        return inspect.signature(target.make).parameters
    except ValueError as error:
        raise TraceError(f"{target.name} does not say which sizes it takes: {error}") from error


def _sequence(target: Target, sizes: Sizes) -> Tensor:
    """The default input, an empty x (b, l, d); b is 1 if not given. TraceError without l or d."""
    if missing := [name for name in ("l", "d") if name not in sizes]:
        raise TraceError(
            f"the default input x (b, l, d) of {target.name} needs {' and '.join(missing)}: add "
            f"--over {','.join(missing)}, or name a function that returns (module, inputs)"
        )
    return torch.empty(sizes.get("b", 1), sizes["l"], sizes["d"])


def _arguments(target: Target, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(positional, keyword) arguments of `forward`, from a factory's inputs: a tensor, a list or
    tuple of arguments, or a mapping of arguments by name; TraceError for anything else."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, list | tuple):
        return tuple(inputs), {}
    raise TraceError(
        f"{target.name} gives inputs of type {type(inputs).__name__}: expected a tensor, a tuple "
        f"of arguments or a dict of them by name"
    )


NO_META = ("'Meta' backend", "with Meta tensors")
"""Parts of torch's messages for an operation without an implementation on the meta device."""


def _error_words(error: Exception) -> str:
    """The error of a module's own code or of torch, in one sentence of bounded length: which
    operation torch lacks on the meta device, if that is the cause; the first paragraph of a
    ValueError or RuntimeError; else the error's type and text."""
    said = text_of(error)
    if any(sign in said for sign in NO_META):
        name = operation_of_error(error) or "an operation"
        return f"torch has no {name} for the meta device, on which nothing is computed"
    if isinstance(error, Raised):  # its text says what was raised
        return said
    if isinstance(error, MemoryError) and not said:
        return TOO_LITTLE
    if not isinstance(error, ValueError | RuntimeError):
        return words_of(error)
    paragraph = " ".join(said.split("\n\n")[0].split())
    return paragraph or type(error).__name__


@contextmanager
def as_trace_error(target: Target, sizes: Sizes) -> Iterator[None]:
    """A context that turns errors of a run on the meta device into a TraceError of one sentence,
    which names the cause if known (values that a meta tensor lacks, a tensor on the CPU, an
    operator that does not run there) and the last line of a user's file. A MemoryError passes if it
    arose while a package was loaded, as torch loads some of its modules late."""
    try:
        with as_exception():
            yield
    except TraceError:
        raise
    except Exception as error:  # a module of a user's own may raise anything
        if isinstance(error, MemoryError) and unusable_package(error):
            raise
        where = foreign_line(error)
        if isinstance(error, Untraceable):
            line = f" ({where.removeprefix(', ')})" if where else ""
            raise TraceError(f"{target.name} cannot be traced: {error}{line}") from error
        if reason := higher_order_reason(error):
            raise TraceError(f"{target.name} cannot be traced: {reason}{where}") from error
        if reason := data_dependent(error):
            raise TraceError(
                f"{target.name} cannot be traced: its operations depend on the values of its input "
                f"or weights, or on random numbers, not only on sizes ({reason}{where}): trace a "
                "version without this operation"
            ) from error
        if "is not on the expected device" in text_of(error):
            raise TraceError(
                f"{target.name} does not run at {listed_sizes(sizes)}: {operation_of_error(error)} "
                "takes a tensor on the CPU beside others on the meta device: make the tensor with "
                f"torch.tensor, or on the device of the input{where}"
            ) from error
        raise TraceError(
            f"{target.name} does not run at {listed_sizes(sizes)}: {_error_words(error)}{where}"
        ) from error


VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""torch's tags of operations whose results, or result shapes, depend on values."""


OPERATION = "_costmodel_operation"
"""The attribute of an error that holds the operation that raised it."""


COPIES: Mapping[str, str] = {
    "Cannot copy out of meta tensor": "a copy to the CPU",
    "meta device type tensor to numpy": "Tensor.numpy",
}
"""Part of torch's message for a copy off the meta device -> the operation that copies."""


def operation_of_error(error: Exception) -> str:
    """The dispatched operation that raised an error; "" if none did."""
    func = getattr(error, OPERATION, None)
    return "" if func is None else str(func._schema.name)


def data_dependent(error: Exception) -> str:
    """If an error arose because a meta tensor has no values: the operation or copy that needs them,
    then others that torch's message names ("aten::nonzero, torch.nonzero"); else ""."""
    text = text_of(error)
    for message, name in COPIES.items():
        if message in text:
            return name
    func = getattr(error, OPERATION, None)
    if func is None or VALUES.isdisjoint(func.tags):
        return ""
    if not (isinstance(error, NotImplementedError) or "meta tensor" in text):
        return ""
    named = re.findall(r"(?:torch|Tensor)\.\w+(?=\(\))|aten::\w+", text)
    return ", ".join(dict.fromkeys([operation_of_error(error), *named]))


HOMES = (
    Path(__file__).parents[2],
    Path(errors.__file__).parent,
    Path(torch.__file__).parent,
    Path(contextlib.__file__),
)
"""Folders and files that no message names: this project's, torch's, and contextlib."""


def is_foreign(file: str) -> bool:
    """Whether a message may name a file of code: a user's file, or a package's outside `HOMES`."""
    return file[:1] != "<" and not any(map(Path(file).is_relative_to, HOMES))


def foreign_line(error: BaseException) -> str:
    """The last line of a user's file that led to an error, as `, my.py line 3`; "" without one."""
    raised = error.__cause__ if isinstance(error, Raised) and error.__cause__ else error
    entries = traceback.extract_tb(raised.__traceback__)
    foreign = [entry for entry in entries if is_foreign(entry.filename)]
    return f", {Path(foreign[-1].filename).name} line {foreign[-1].lineno}" if foreign else ""


OPAQUE = (nn.Module, type, ModuleType, FunctionType, MethodType)
"""Types that are not searched for tensors: a module's parameters are not inputs."""


def nested_tensors(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in nested lists, tuples, sets, mappings and attributes of objects, in
    order and each once. `OPAQUE` values, such as modules, are not searched."""
    seen: set[int] = set()

    def within(nest: Any) -> Iterator[Tensor]:
        """Yield the tensors, not seen before, in a nest: in lists, tuples, mappings, sets and
        attributes of objects."""
        for leaf in tree_leaves(nest):
            if id(leaf) in seen or isinstance(leaf, OPAQUE):
                continue
            if isinstance(leaf, Tensor):
                seen.add(id(leaf))
                yield leaf
            elif isinstance(leaf, Mapping):
                seen.add(id(leaf))
                yield from within(list(leaf.values()))
            elif isinstance(leaf, Set):
                yield from within(list(leaf))
            elif held := object_attributes(leaf):
                seen.add(id(leaf))
                yield from within(held)

    yield from within(value)


def object_attributes(item: Any) -> list[Any]:
    """The values of an object's attributes, in `__slots__` and in `__dict__`."""
    kinds = (kind for kind in type(item).__mro__ if "__slots__" in vars(kind))
    slots = (
        v for kind in kinds for v in vars(kind).values() if isinstance(v, MemberDescriptorType)
    )
    held = [getattr(item, slot.__name__) for slot in slots if hasattr(item, slot.__name__)]
    return [*held, *getattr(item, "__dict__", {}).values()]


def can_have_gradient(tensor: Tensor) -> bool:
    """Whether a tensor's dtype can have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def meta_inputs(value: Any, asked: bool | None) -> Any:
    """A copy of nested inputs on the meta device; a tensor that occurs twice stays one. `asked` is
    whether tensors whose dtype can have a gradient require one; None keeps each `requires_grad`. An
    object that holds tensors stays on its device, and the flags of its leaf tensors are set in
    place."""
    made: dict[int, Tensor] = {}

    def wanted(tensor: Tensor) -> bool:
        return tensor.requires_grad if asked is None else asked and can_have_gradient(tensor)

    def leaf(item: Any) -> Any:
        """A tensor on the meta device for a tensor; any other item unchanged."""
        if not isinstance(item, Tensor):
            for tensor in nested_tensors(item):  # the tensors of an object are changed in place
                if tensor.is_leaf:
                    tensor.requires_grad_(wanted(tensor))
            return item
        if id(item) not in made:
            made[id(item)] = item.detach().to("meta").requires_grad_(wanted(item))
        return made[id(item)]

    return tree_map(leaf, value)
