"""Which mixer does a name stand for: a built-in mixer, or FILE.py:NAME of a user's own file?"""

from __future__ import annotations

import ast
import difflib
import linecache
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import module_from_spec, spec_from_file_location
from os.path import isdir, isfile
from pathlib import Path
from types import ModuleType

from costmodel.errors import (
    USER,
    EquationError,
    UnknownMixer,
    UnreadFile,
    class_name,
    described,
    is_interrupt,
    shortened,
    text_of,
    unusable_package,
    words_of,
)
from costmodel.language.equations import Mixer
from costmodel.language.options import defined, joined, split, stands_for, variant
from costmodel.mixers import builtin, names as builtin_names
from costmodel.symbolic.sizes import is_letter

PACKAGE = Path(__file__).parents[1]
"""The folder of this package's code."""


def mixer(name: str | Mixer) -> Mixer:
    """The built-in mixer with a name or alias, or a user's mixer `path/to/file.py:NAME`; a `Mixer`
    is returned unchanged. Options may follow the name, each after a `+`, then sizes in braces.

    Raises:
        UnknownMixer: an unknown name, file, mixer in the file, or option; the message says what
            was found.
    """
    if isinstance(name, Mixer):
        return name
    if not isinstance(name, str):
        raise UnknownMixer(f"expected the name of a mixer, or a mixer, got {described(name)}")
    path, separator, attribute = name.rpartition(":")
    if separator and attribute and path.endswith(".py"):
        return _in_file(Path(path), attribute)
    file = name.removesuffix(":")
    if file.endswith(".py"):
        raise UnknownMixer(_message_without_name(Path(file)))
    try:
        return builtin(name)
    except UnknownMixer as error:
        if isfile(f"{file}.py"):
            raise UnknownMixer(
                f"unknown mixer '{name}': {_message_without_name(Path(f'{file}.py'))}"
            ) from error
        raise


def unread(name: str) -> Mixer:
    """A mixer of a copy, y = x, for the place of FILE.py:NAME in a table if FILE.py raises an
    exception."""
    path, _, attribute = name.rpartition(":")
    found = Mixer("unread")
    found.name = found.title = f"{Path(path).name}:{attribute}"
    found.origin = name
    (l,) = found.sizes("l")
    x, y = found.input("x", l), found.output("y", l)
    with found.form("direct") as f:
        i = f.index("i", 1, l)
        y[i] = x[i]
    return found


def with_form(name: str | Mixer) -> tuple[Mixer, str | None]:
    """The (mixer, form) of `NAME:FORM`, where the form may be `all`; for a name without a form, or
    a mixer, the form is None.

    Raises:
        UnknownMixer: an unknown name.
        EquationError: a form that the mixer lacks.
    """
    form = None
    if isinstance(name, str):
        before, _, tail = name.rpartition(":")
        if before and tail and not before.endswith(".py"):
            name, form = before, tail
    found = mixer(name)
    if form not in (None, "all", *found.forms):
        bare, brace, sizes = str(form).partition("{")
        hint = f"; sizes stand before the form: {name}{brace}{sizes}:{bare}" if brace else ""
        raise EquationError(
            f"{found.name} has no form '{form}': expected all, {', '.join(found.forms)}{hint}"
        )
    return found, form


def one_form(found: Mixer, form: str | None) -> str:
    """`form`, or the default form's name if None; EquationError for `all`, or a form not there."""
    if form not in (None, *found.forms):
        raise EquationError(
            f"{found.name} has no form '{form}': expected one of {', '.join(found.forms)}"
        )
    return form or found.default_form


def known(name: str) -> Mixer:
    """The mixer that a record names, built in or of a user's file.

    A record is data and must not run code: the user's file must have been imported already.

    Raises:
        UnknownMixer: an unknown name, or a file that has not been imported.
    """
    path, _, attribute = name.rpartition(":")
    if not path.endswith(".py"):
        return builtin(name)
    imported(Path(path))
    return _in_file(Path(path), attribute)


def imported(path: Path) -> ModuleType:
    """The module of a user's file, if this process has imported the file. Data (such as records)
    may name a file, and must not run code, so that no import is made here.

    Raises:
        UnknownMixer: the file has not been imported; the message says how to allow the import.
    """
    if _module_name(path) not in sys.modules:
        raise UnknownMixer(
            f"a data file names '{path}', and data run no code: allow the code by --own {path}"
        )
    return user_module(path)


def refuse_unimported(name: str) -> None:
    """Raise UnknownMixer for a mixer's name from a file of data, FILE.py:NAME, whose FILE.py this
    process has not imported: data must not run code. Other names pass, unknown ones too.

    Raises:
        UnknownMixer: the file has not been imported; the message says how to allow the import.
    """
    path, separator, _ = name.rpartition(":")
    if separator and path.endswith(".py"):
        imported(Path(path))


def _message_without_name(path: Path) -> str:
    """The message for a user's file without a mixer's name: its mixers, or how to write one."""
    names = sorted({value.name for value in _mixers(path, user_module(path)).values()})
    if not names:
        return f"{path} defines no mixer: write `x = cm.Mixer(...)` in it, and give {path}:x"
    return f"{path} is a file: give {path}:NAME, it defines {', '.join(names)}"


def _in_file(path: Path, attribute: str) -> Mixer:
    """The mixer of a user's file that `attribute` names (NAME or NAME+OPTION).

    Raises:
        UnknownMixer: no such mixer or option, a class, or a mixer with a built-in mixer's name or
            without sizes of its own, a form, an input or an output; the message says what is there.
            UnreadFile, which is one: the file, or the function that writes the mixer, raises.
    """
    module = user_module(path)
    found = _mixers(path, module)  # name in the file -> mixer
    base, _ = split(attribute)
    for key, plain in found.items():
        if base in (key, plain.name, *plain.variants):
            if plain.name in builtin_names():
                raise UnknownMixer(
                    f"{path} calls its mixer '{plain.name}', which is the name of a built-in one: "
                    "rename the mixer"
                )
            with _told(path, f"does not write '{attribute}'"):
                value = variant(module, plain, *stands_for(plain, attribute))
            if value.arrays and not value.letters:
                raise UnknownMixer(
                    f"{path}:{base} declares no sizes of its own: write `l, d = m.sizes('l d')`"
                )
            if not value.forms:
                raise UnknownMixer(
                    f"{path}:{base} has no form: write its equations in "
                    f"`with {base}.form(...) as f`"
                )
            if missing := {"input", "output"} - {a.role for a in value.arrays.values()}:
                role = min(missing)
                raise UnknownMixer(
                    f"{path}:{base} needs exactly one {role}, got none: write `{base}.{role}(...)`"
                )
            called = plain.name if base in plain.variants else base
            value.origin = joined(f"{path}:{called}", value.options, value.given)
            value.home = value.at_any_sizes.home = module.__name__
            return value
    if isinstance(getattr(module, base, None), type):
        raise UnknownMixer(
            f"{path}:{base} is a class, not a mixer: `costmodel trace {path}:{base} --over l,d` "
            f"counts a module without equations, `costmodel profile {path}:{base}` measures one, "
            f"and --impl {path}:{base} measures a module of a mixer that has equations"
        )
    names = sorted({value.name for value in found.values()})
    if not names:
        raise UnknownMixer(f"{path} defines no mixer: write `{base} = cm.Mixer(...)` in it")
    near = difflib.get_close_matches(base, names, 1)
    hint = f"; did you mean '{near[0]}'? It" if near else ": it"
    raise UnknownMixer(f"{path} has no mixer '{attribute}'{hint} defines {', '.join(names)}")


def _mixers(path: Path, module: ModuleType) -> dict[str, Mixer]:
    """Variable in a user's file -> mixer."""
    with _told(path, "does not write its mixers"):
        return defined(module)


def user_module(path: Path) -> ModuleType:
    """Import a user's file, once per process. The file may import its neighbours, as a script may;
    installed packages come before a neighbour of the same name.

    Raises:
        UnknownMixer: the file is missing, its import fails (the message has cause and line), or a
            neighbour's name is that of a module imported from beside another file of the user.
    """
    if not isfile(path):
        what = f"'{path}' is a folder" if isdir(path) else f"no file '{path}'"
        raise UnknownMixer(f"{what}: a mixer of your own is given as FILE.py:NAME")
    name = _module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.append(folder)
    try:
        with _told(path, "does not import"):
            spec.loader.exec_module(module)
        _refuse_others_neighbours(path)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _refuse_others_neighbours(path: Path) -> None:
    """Raise UnknownMixer if a module or package beside a user's file, which was just imported, has
    the name of one imported from another such file's folder: the file may have got that one."""
    folder, modules = path.resolve().parent, dict(sys.modules)
    of_users = (module for name, module in modules.items() if name.startswith(USER))
    folders = {Path(str(module.__file__)).resolve().parent for module in of_users} - {folder}
    for own in {*folder.glob("*.py"), *folder.glob("*/__init__.py")} - {path.resolve()}:
        beside, name = _place(own)
        file = getattr(modules.get(name), "__file__", None)
        if file and beside == folder and _place(Path(file).resolve())[0] in folders:
            raise UnknownMixer(f"{own} is a neighbour of {path}, but {file} of the same name is "
                               "imported already: rename one")  # fmt: skip


def _place(file: Path) -> tuple[Path, str]:
    """The folder from which a file is imported, and the name of the module or package."""
    own = file.parent if file.name == "__init__.py" else file
    return own.parent, own.stem


@contextmanager
def _told(path: Path, what: str) -> Iterator[None]:
    """A context for calls of a user's code, which may print and raise anything.

    Args:
        path: the user's file.
        what: what the file failed to do, for the message, such as "does not import".

    Raises:
        UnreadFile: in place of any exception but an interrupt; the message has the file, `what`,
            the cause, and the line.
    """
    try:
        with _streams_kept():
            yield
    except UnknownMixer:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        line = _line_of_error(error, path)
        said = _said(error, path, line)
        what = "is no Python" if _is_no_python(error, path) else what
        where = f" (line {line}{_quoted(error, said, path, line)})" if line else ""
        raise UnreadFile(f"{path} {what}: {said}{where}") from error


@contextmanager
def _streams_kept() -> Iterator[None]:
    """A context in which standard output is standard error, since standard output is for answers
    alone; a standard stream that was closed in it, by `sys.stdout.close()`, is open again after
    it."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            closed = getattr(sys, name)
            if closed.closed:
                again = open(  # noqa: SIM115 - as long as the process
                    descriptor, "w", 1, closed.encoding, closed.errors, closefd=False
                )
                setattr(sys, name, again)


SAYING = (ValueError, NotImplementedError, RecursionError)
"""Exceptions of this package's code whose own messages tell an author the cause."""


def _said(error: BaseException, path: Path, line: int | None) -> str:
    """The message of an exception, for the author of the file `path`, of whose lines `line` led to
    the exception (None: no line): the exception's own text for an EquationError, a file that is no
    Python and an unknown `cm.NAME`; a message of this package for an unknown attribute of a mixer
    and the like (a class with `in_words`), a package that is missing or does not load, an unknown
    name, and a line as in `_sizes_unlike_names`; kind and text of any other, but if this package's
    code raises it, and not in `SAYING`, that the line is no part of the language."""
    if isinstance(error, EquationError) or _is_no_python(error, path):
        return text_of(error)
    if isinstance(error, AttributeError) and error.obj is sys.modules["costmodel"]:
        return text_of(error)
    if isinstance(error, AttributeError) and hasattr(type(error.obj), "in_words"):
        name = str(error.name)
        near = difflib.get_close_matches(name, dir(error.obj), 1)
        hint = f": did you mean '{near[0]}'?" if near else ""
        return f"{described(error.obj)} has no attribute '{shortened(name)}'{hint}"
    if isinstance(error, ModuleNotFoundError) and error.name and "." not in error.name:
        return f"{words_of(error)}: install {error.name}, or put its file beside {path.name}"
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, NameError) and isinstance(error.name, str):
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if _is_file(frame.f_code.co_filename, path):
            return _undeclared(error.name, {**frame.f_globals, **frame.f_locals})
    pythons = type(error) is ValueError and frames and _is_file(frames[-1].filename, path)
    if pythons and (told := _sizes_unlike_names(path, line)):
        return told
    folder = path.resolve().parent
    elsewhere = frames and not Path(frames[-1].filename).resolve().is_relative_to(folder)
    needs = unusable_package(error, folder.as_posix()) if isinstance(error, ImportError) else ""
    if needs and elsewhere:
        return f"the file needs {needs}"
    inside = bool(frames) and Path(frames[-1].filename).is_relative_to(PACKAGE)
    if line is None or not inside or isinstance(error, SAYING):
        return words_of(error)
    return "no declaration or equation of this language"


def _undeclared(name: str, known: Iterable[str]) -> str:
    """The message for a name without a value: how an author declares a size, array or index of this
    name, and the nearest of the names `known` there.

    >>> _undeclared("N", ())[:72]
    "nothing above is called N: a size is declared by (N,) = m.sizes('N'), an"
    """
    near = difflib.get_close_matches(name, [x for x in known if not x.startswith("__")], 1)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    name, size = shortened(name), ""
    if is_letter(name):
        try:
            Mixer("any").sizes(name)
            size = f"a size is declared by ({name},) = m.sizes('{name}'), "
        except EquationError:  # a letter that no mixer may declare
            size = f"no size may be called {name}, "
        except ValueError:  # no shared letter
            size = f"a size is declared by {name} = m.size('{name}', 'its meaning', 16), "
    array, index = f"f.array('{name}', l, d)", f"f.index('{name}', 1, l)"
    return (
        f"nothing above is called {name}{hint}: {size}an array is declared by {array}, an index by "
        f"{index}; any other name needs an assignment or import"
    )


def _sizes_unlike_names(path: Path, line: int | None) -> str:
    """The message for a line such as `l, d = m.sizes("l d n")`, whose names are more or fewer than
    the letters; "" for any other line."""
    for node in ast.walk(ast.parse("".join(linecache.getlines(str(path))))):
        match node:
            case ast.Assign(
                [ast.Tuple(names) | ast.List(names)],
                ast.Call(ast.Attribute(attr="sizes"), [ast.Constant(str(letters))]) as call,
            ) if node.lineno == line and len(names) != (declared := len(letters.split())):
                plural = "s" if len(names) != 1 else ""
                return (
                    f"{shortened(ast.unparse(call))} declares one size for each letter, {declared} "
                    f"in all, and the left side has {len(names)} name{plural}: write one name for "
                    "each letter"
                )
            case _:  # any other statement or expression
                continue
    return ""


def _is_no_python(error: BaseException, path: Path) -> bool:
    """Whether a user's file cannot be parsed; False for a SyntaxError that the file's own code
    raises, or of a file that it imports."""
    frames = traceback.extract_tb(error.__traceback__)
    own = any(_is_file(frame.filename, path) for frame in frames)
    return isinstance(error, SyntaxError) and not own


def _quoted(error: BaseException, said: str, path: Path, line: int) -> str:
    """The author's line, for a message on an equation: the line names the array and its indices,
    which the message may not. "" for other messages."""
    pythons = said.startswith(shortened(class_name(error))) and not isinstance(error, TypeError)
    written = " ".join(linecache.getline(str(path), line).split())
    return f": `{shortened(written)}`" if written and not pythons else ""


def raised_in_users_file(error: BaseException) -> str:
    """A sentence: a user's file, its innermost line in the traceback, the error; "" without one."""
    files = {
        getattr(module, "__file__", None)
        for name, module in list(sys.modules.items())
        if name.startswith(USER)
    }
    for entry in reversed(traceback.extract_tb(error.__traceback__)):
        if entry.filename in files:
            return f"{entry.filename} raises {words_of(error)} (line {entry.lineno})"
    return ""


def _module_name(path: Path) -> str:
    """The name in `sys.modules` of a user's file; different files have different names."""
    file = path.resolve().as_posix().removesuffix(".py")
    return f"{USER}{file.replace('_', '__').replace('/', '_s')}"


def _line_of_error(error: BaseException, path: Path) -> int | None:
    """The line of a file at which an error arose, or the innermost call that led to the error; None
    if the file took no part."""
    if isinstance(error, SyntaxError) and _is_file(error.filename, path):
        return error.lineno
    entries = traceback.extract_tb(error.__traceback__)
    return next((e.lineno for e in reversed(entries) if _is_file(e.filename, path)), None)


def _is_file(file: str | None, path: Path) -> bool:
    return file is not None and Path(file).resolve() == path.resolve()
