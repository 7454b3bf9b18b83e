"""Checks of the number and types of arguments in calls by authors."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import cache, wraps
from types import UnionType
from typing import Any, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from costmodel.errors import WrongKind, described

P = ParamSpec("P")
T = TypeVar("T")

INSIDE = ("costmodel.language", "costmodel.language.macros", "costmodel.symbolic")
"""The packages whose code is not code of an author."""

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
MISSING = inspect.Parameter.empty

WORDS = {
    "Index": "an index of the form, such as f.index('i', 1, l)",
    "Array": "an array, such as m.parameter('W', d, d)",
    "Complex": "a complex number, such as complex_(A)[i, c]",
    "str": "a string",
    "int": "a whole number",
    "NoneType": "None",
}
"""Class of a parameter -> the words for what it takes. Parameters of other classes are not checked
here, but by the code that uses them."""


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """The function, for authors, decorated so that each call checks the number of its arguments,
    and the type of each argument whose annotated class has a word for messages in `WORDS`.

    Raises:
        WrongKind: (in a call) an argument is missing, is one too many or has another type; the
            message names the function, the parameter, what is expected there and what came.
    """
    signature = inspect.signature(function)
    positional = [p.name for p in signature.parameters.values() if p.kind in POSITIONAL]
    places = {parameter: k for k, parameter in enumerate(positional)}  # name -> position in args
    name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @wraps(function)
    def called(*args: P.args, **named: P.kwargs) -> T:
        """Check the types of the arguments that are given, and call the function. WrongKind for an
        argument of another type, and for a call that the function's parameters do not allow."""
        for parameter, kinds, several in _kinds(function):  # several: a list of `kinds` is expected
            value: Any = MISSING
            if parameter in named:
                value = named[parameter]
            elif places.get(parameter, len(args)) < len(args):
                value = args[places[parameter]]
            if value is MISSING:
                continue
            if several and (isinstance(value, str) or not isinstance(value, Sequence)):
                raise WrongKind(
                    f"{name}: {parameter} must be a list of strings, got {described(value)}"
                )
            for one in value if several else (value,):
                if not isinstance(one, kinds):
                    expected = " or ".join(WORDS[kind.__name__] for kind in kinds)
                    raise WrongKind(f"{name}: {parameter} must be {expected}, got {described(one)}")
        try:
            return function(*args, **named)
        except TypeError:
            try:  # slow, so that only a call that failed pays for it
                signature.bind(*args, **named)
            except TypeError:
                raise WrongKind(_usage(name, signature, args, named)) from None
            raise

    return called


@cache
def _kinds(function: Callable[..., Any]) -> tuple[tuple[str, tuple[type, ...], bool], ...]:
    """The parameters of a decorated function whose type each call checks, as (name, accepted
    classes, whether a list of them is expected): ("aliases", (str,), True). Checked are parameters
    annotated with a class that has a word for messages in `WORDS`, a union of such classes, or a
    `Sequence` of one."""
    found = []
    for name, hint in get_type_hints(function).items():
        several = get_origin(hint) is Sequence
        union = several or isinstance(hint, UnionType)
        kinds = get_args(hint) if union else (hint,)
        if name != "return" and all(getattr(kind, "__name__", "") in WORDS for kind in kinds):
            found.append((name, kinds, several))
    return tuple(found)


def written_at() -> str:
    """`FILE, line N` of the innermost stack frame outside of the packages `INSIDE`, which make up
    the language: the place in the author's code."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__package__", "") in INSIDE:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"


def _usage(name: str, signature: inspect.Signature, args: Any, named: Any) -> str:
    """The message for a call that does not fit: the function's parameters, the given arguments."""
    takes = [p for p in signature.parameters if p != "self"]
    without = len(args) - ("self" in signature.parameters)
    given = [f"{without} without a name"] + [f"{parameter}=" for parameter in named]
    return f"{name} takes {', '.join(takes)}; it was given {', '.join(given)}"
