"""Which PyTorch modules implement a mixer, and which equations does each of them execute?

The *description* of a module class names the form that `forward` computes, the rewrites of the
form's equations, and the kernel class of each equation ("contraction", "softmax", ...); and form,
rewrites and kernel classes of `step`.

A user describes a module class in the same way, in the file of the user's equations:

    from profiler.modules import implementation

    @implementation("decay")
    class Decay(nn.Module): ...
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from costmodel.errors import USER, WrongKind, described
from costmodel.language.arguments import checked
from costmodel.language.equations import Mixer as Equations
from costmodel.language.options import split
from costmodel.mixers import builtin, file_of, names
from costmodel.program.conventions import KERNEL_CLASSES, LISTED, REWRITES, of_sequences
from costmodel.program.lowering import lower
from costmodel.program.phases import inference_reason, underivable
from costmodel.questions.kept import fingerprint, kept

if TYPE_CHECKING:
    from torch import nn

BUILT_IN = "profiler.mixers."
"""The beginning of the names of the Python modules with built-in classes."""


class NoModule(ValueError):
    """No module class is described as an implementation of the mixer."""


@dataclass(frozen=True)
class Implementation:
    """One module class of a mixer, with the equations that it executes.

    `kernels` maps the name of an array to the kernel class of its equation; None means that the
    classes are derived from the equations. `step_form` is None if the class has no `step`.
    """

    mixer: str
    name: str
    made: type[nn.Module] | str = field(repr=False)
    """The class; of a built-in class its place."""
    form: str
    rewrites: tuple[str, ...]
    kernels: Mapping[str, str] | None = field(hash=False)
    step_form: str | None
    step_rewrites: tuple[str, ...]
    step_kernels: Mapping[str, str] | None = field(hash=False)
    takes: tuple[str, ...] = ()
    """The mixer's options that the class accepts."""
    options: tuple[str, ...] = ()
    """The mixer's options that the module is built with."""
    option_kernels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Array that an option brings -> kernel class of its equation."""
    of_form: tuple[str, ...] = ()
    """Of name, form and step_form, those that its description leaves out; a mixer with a single
    form gives them the name of this form."""

    def __post_init__(self) -> None:
        """Raise a ValueError for a kernel class outside `KERNEL_CLASSES`."""
        for kernels in (self.kernels or {}, self.step_kernels or {}, self.option_kernels):
            for array, kernel in kernels.items():
                if kernel not in KERNEL_CLASSES:
                    raise ValueError(
                        f"{self.mixer} {self.name}: the kernel class of {array} is {kernel!r} and "
                        f"must be one of {', '.join(sorted(KERNEL_CLASSES))}"
                    )

    def built_with(self, mixer: Equations) -> Implementation:
        """A copy of the implementation for a variant (the mixer with options), with kernel classes
        for the arrays that the options bring."""

        def every(known: Mapping[str, str] | None, form: str | None) -> Mapping[str, str] | None:
            """The kernel classes by array: `known`, and the classes of the options' arrays that the
            form computes; `known` alone if it is None, or the mixer lacks the form."""
            if known is None or form not in mixer.forms:
                return known
            made = {equation.name for equation in mixer.forms[form].equations}
            return {**known, **{a: k for a, k in self.option_kernels.items() if a in made}}

        return replace(
            self,
            mixer=mixer.name,
            options=mixer.options,
            kernels=every(self.kernels, self.form),
            step_kernels=every(self.step_kernels, self.step_form),
        )

    @property
    def home(self) -> str:
        """The Python module of a user's file with the class; "" for a built-in class."""
        return self.place.partition(":")[0] if self.place.startswith(USER) else ""

    @property
    def module(self) -> type[nn.Module]:
        """The class; a built-in class is imported from its file."""
        if not isinstance(self.made, str):
            return self.made
        found: type[nn.Module] = pkgutil.resolve_name(self.made)
        return found

    @property
    def place(self) -> str:
        """The place of the class, MODULE:CLASS."""
        return self.made if isinstance(self.made, str) else place_of(self.made)


def place_of(module: type[nn.Module]) -> str:
    """The place of a class, MODULE:CLASS."""
    return f"{module.__module__}:{module.__qualname__}"


_registry: dict[str, dict[tuple[str, str], Implementation]] = {}
"""Mixer -> (the user's file or "", name) -> implementation."""
_Module = TypeVar("_Module", bound="type[nn.Module]")


@checked
def implementation(
    mixer: str | type[Any] = "",
    name: str | None = None,
    *,
    form: str | None = None,
    rewrites: tuple[str, ...] = (),
    kernels: Mapping[str, str] | None = None,
    step_form: str | None = None,
    step_rewrites: tuple[str, ...] | None = None,
    step_kernels: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
    option_kernels: Mapping[str, str] | None = None,
) -> Callable[[_Module], _Module]:
    """Return a decorator that registers a module class as an implementation of `mixer`, with the
    equations (form and rewrites) it executes and the kernel class of each array (A: "softmax").

    The default form is the only form of a mixer in the same file, else "direct"; the default name
    is the form. By default `step` has the form and rewrites of `forward`, except those that
    concern sums over whole sequences. The class also implements the mixer with any of
    `options`; its constructor gets the chosen options as the argument `options`. `kernels` are the
    kernel classes of arrays in `forward`, `step_kernels` those in `step`, and `option_kernels`
    those of the arrays that only these options bring.

    Raises:
        WrongKind: no name of a mixer, as in `@implementation` without its call; the decorated
            object is no class of modules.
        ValueError: a text in place of a tuple, an unknown kernel class or rewrite, or a second
            class with the same name.
    """
    if not isinstance(mixer, str) or not mixer:
        got = f", got {described(mixer)}" if mixer else ""
        raise WrongKind(
            f"implementation takes the name of a mixer{got}: write @implementation('NAME') above "
            "the class"
        )
    for option, given in (
        ("rewrites", rewrites), ("step_rewrites", step_rewrites), ("options", options),
    ):  # fmt: skip
        if isinstance(given, str):
            raise ValueError(
                f"{mixer}: {option}={given!r} is one string: expected a tuple of names, such as "
                f"{option}=({given!r},)"
            )
    for rewrite in (*rewrites, *(step_rewrites or ())):
        if rewrite not in REWRITES:
            raise ValueError(f"{mixer}: unknown rewrite {rewrite!r}: the rewrites are {LISTED}")
    if step_rewrites is None:
        step_rewrites = tuple(rewrite for rewrite in rewrites if not of_sequences(rewrite))

    chosen = "direct" if form is None else form

    def register(module: _Module) -> _Module:
        """Register the class as described and return it; without `step` it has no step form."""
        torch = sys.modules.get("torch")
        if torch and not (isinstance(module, type) and issubclass(module, torch.nn.Module)):
            raise WrongKind(
                f"implementation('{mixer}') stands above {described(module)}: expected a class "
                "that derives from torch.nn.Module"
            )
        given = {"name": name, "form": form}
        given |= {"step_form": step_form} if hasattr(module, "step") else {}
        _register(
            Implementation(
                mixer=mixer,
                name=chosen if name is None else name,
                made=place_of(module) if module.__module__.startswith(BUILT_IN) else module,
                form=chosen,
                rewrites=tuple(rewrites),
                kernels=kernels,
                step_form=(step_form or chosen) if hasattr(module, "step") else None,
                step_rewrites=tuple(step_rewrites),
                step_kernels=step_kernels,
                takes=tuple(options),
                option_kernels=option_kernels or {},
                # a user's mixer of one form, unknown as yet, will give these the form's name
                of_form=tuple(o for o in given if given[o] is None) if form is None else (),
            )
        )
        return module

    return register


def implementations(mixer: Equations | str) -> dict[str, Implementation]:
    """A dict: name -> implementation of a mixer, the default implementation first.

    A built-in mixer (or its name) has the implementations of all files, a user's mixer those of the
    user's file. With options, as in "self-attention+grouped", only classes that accept the options
    are included.

    Raises:
        NoModule: the mixer has no implementation.
        UnknownMixer: an option that the mixer lacks, or an option of no built-in mixer.
        ValueError: an implementation of a user's mixer names a kernel class for an array that no
            equation computes.
    """
    if isinstance(mixer, str) and (split(mixer)[1] or file_of(split(mixer)[0])):
        mixer = builtin(mixer)
    name, home = (mixer, "") if isinstance(mixer, str) else (mixer.name, mixer.home)
    base, options = split(name)
    _import_file(base)
    found = {
        own: described
        for entry, taken in _registered_names(base, options)
        for (place, own), described in _registry[entry].items()
        if (not home or place == home) and taken <= {*described.takes}
    }
    if not found:
        raise NoModule(_missing(name, home))
    if home and not isinstance(mixer, str):
        for described in found.values():
            _require_arrays(mixer, described)
        found = {it.name: it for it in (_in_only_form(mixer, it, found) for it in found.values())}
    if not options:
        return found
    variant = builtin(name) if isinstance(mixer, str) else mixer
    return {own: it.built_with(variant) for own, it in found.items()}


def _in_only_form(
    mixer: Equations, described: Implementation, taken: Collection[str]
) -> Implementation:
    """A copy of the description with the mixer's only form in place of a form and a name that the
    description leaves out; unchanged if the mixer has several forms. A name in `taken` is not given
    again."""
    if len(mixer.forms) != 1:
        return described
    only, left_out = mixer.default_form, described.of_form
    return replace(
        described,
        name=only if "name" in left_out and only not in taken else described.name,
        form=only if "form" in left_out else described.form,
        step_form=only if "step_form" in left_out else described.step_form,
    )


def _require_arrays(mixer: Equations, described: Implementation) -> None:
    """Raise a ValueError for a kernel class of an array that no form of a user's mixer computes,
    among those of `forward` and `step`; arrays of options (`option_kernels`) are not checked. Of a
    name with a dot, which a macro made from an array's name, the part before the dot counts."""
    known = {array: None for form in mixer.forms.values() for array in form.arrays}
    known |= {array.name: None for array in mixer.arrays.values() if array.role == "output"}
    for given in (described.kernels or {}, described.step_kernels or {}):
        if unknown := [name for name in given if name.partition(".")[0] not in known]:
            raise ValueError(
                f"{mixer.name} {described.name}: a kernel class is given for "
                f"{', '.join(unknown)}, which no equation computes: the equations compute "
                f"{', '.join(known)}"
            )


def _registered_names(base: str, options: Sequence[str]) -> Iterator[tuple[str, set[str]]]:
    """Yield (registered name, remaining options) for each registered name that is the mixer `base`
    with some of the options, those with fewer options first; a class must accept the remaining
    options. For `m+a`: ("m", {"a"}), and then ("m+a", {}) if `m+a` has classes of its own."""
    named = {entry: split(entry) for entry in _registry}
    for entry in sorted(named, key=lambda entry: len(named[entry][1])):
        if named[entry][0] == base and {*named[entry][1]} <= {*options}:
            yield entry, {*options} - {*named[entry][1]}


STEPLESS = "it has no `step`"
"""The reason of a class that cannot mix one new token, although its equations could."""


def without_token(mixer: Equations, implementation: Implementation) -> str:
    """A sentence on why an implementation cannot mix one new token; "" if it can.

    The reason is that of the form's equations, if they cannot be computed token by token, else
    `STEPLESS` without a `step`. A form whose tokens cannot be derived gives no reason, since its
    `step` may still be right.
    """
    form = mixer.forms.get(implementation.step_form or implementation.form)
    if form is not None and not underivable(lower(form)) and (why := inference_reason(lower(form))):
        return why
    return "" if implementation.step_form else STEPLESS


def _missing(name: str, home: str) -> str:
    """A sentence which says that a mixer has no module, and how to describe one; `home` is the
    user's file of the mixer, "" for a built-in mixer."""
    said = f"no module implements the mixer {name!r}"
    base, options = split(name)
    if not home and not options:
        return (
            f"{said}, known are {', '.join(sorted(names()))}: describe a torch.nn.Module class "
            f"with profiler.modules.implementation"
        )
    if not home:
        return f"{said}: name its options in the @implementation({base!r}) of a torch.nn.Module"
    others = [
        repr(mixer) for mixer, named in _registry.items() if any(own == home for own, _ in named)
    ]
    instead = f"; its file describes modules of {', '.join(others)}" if others else ""
    return (
        f'{said}: write @implementation("{name}"), from profiler.modules, above its '
        f"torch.nn.Module{instead}"
    )


_read: set[str] = set()
"""The files of built-in mixers whose implementations are registered."""


def _import_file(mixer: str) -> None:
    """Register the implementations in the file of a built-in mixer: their descriptions are in the
    cache on disk, or the file is imported, which imports torch."""
    file = file_of(split(mixer)[0])
    if file is None or file in _read:
        return
    for fields_ in kept(None, f"{_sources()} {file}", partial(_described_in, file)):
        found = Implementation(**fields_)
        _registry.setdefault(found.mixer, {}).setdefault((found.home, found.name), found)
    _read.add(file)


@cache
def _sources() -> str:
    """A digest of the files that describe built-in classes."""
    return fingerprint(Path(__file__).parents[1], ("mixers", "modules"))


def _described_in(file: str) -> list[dict[str, Any]]:
    """A dict (name of a field of `Implementation` -> value) for each implementation that the file
    of built-in mixers `file`, such as `sparse`, describes, in order."""
    importlib.import_module(f"{BUILT_IN}{file}")
    return [
        {each.name: getattr(found, each.name) for each in fields(found)}
        for entry, named in _registry.items()
        for found in named.values()
        if isinstance(found.made, str) and file_of(split(entry)[0]) == file
    ]


def _register(new: Implementation) -> None:
    """Register an implementation; a file that is imported again replaces its classes. Raises
    ValueError: another class of the same file has this name."""
    if not isinstance(new.made, str):
        _import_file(new.mixer)
    named = _registry.setdefault(new.mixer, {})
    old = named.get((new.home, new.name))
    if old is not None and old.place != new.place:
        raise ValueError(
            f"the mixer {new.mixer!r} has an implementation {new.name!r} already, "
            f"{_class_name(old)}: give {_class_name(new)} another name"
        )
    named[new.home, new.name] = new


def _class_name(of: Implementation) -> str:
    """The qualified name of a class."""
    return of.place.partition(":")[2]
