"""The errors that a user can meet, each a sentence that says what to do, and words for others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from opcode import opmap
from traceback import walk_tb
from types import FunctionType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


USER = "costmodel_user_"
"""The prefix of the Python module name of a user's file; the file's path follows."""

TOO_LITTLE = "there is too little memory here; smaller sizes need less"
"""The message when memory is exhausted."""


class DataMissing(FileNotFoundError):
    """A folder of the project's data is missing."""


class Refused(ValueError):
    """A question about a mixer has no answer; the message is the reason.

    Args:
        advice: what the author of the equations can change. A traceback shows the advice as a note;
            a command adds the advice to the sentence if the mixer is in a user's own file.
    """

    def __init__(self, reason: object, advice: str = "") -> None:
        super().__init__(str(reason))
        self.advice = advice
        if advice:
            self.add_note(advice)

    def told(self, home: str) -> Self:
        """The error with its advice in the message if the mixer has a home (a user's own file)."""
        return type(self)(f"{self}; {self.advice}") if home and self.advice else self


class Unsupported(Refused):
    """The equations are valid, but the answer is not derived exactly; the message says where."""


class FormulaError(ValueError):
    """A formula that cannot be parsed; the message says what was expected, what came, and where."""


class NotPolynomial(ValueError):
    """A formula that is valid but no polynomial in the sizes; it can be compared at given sizes."""


class NoGrowth(ValueError):
    """A formula whose growth is not a sum of products of powers and logarithms."""


class SizeError(ValueError):
    """A size that is missing, not a positive integer, or does not fit the mixer."""


class EquationError(ValueError):
    """A mixer that is not well formed; the message names the equation and what to change."""


class WrongKind(EquationError, TypeError):
    """An argument of a wrong type in an author's equations."""


class UnknownMixer(ValueError):
    """No mixer has this name; the message suggests the nearest one."""


class UnreadFile(UnknownMixer):
    """A user's file, which exists, raises an exception; the message says which, and its line."""


class ConventionError(ValueError):
    """An unknown convention, or names that cannot be combined; the message lists the choices."""


class Unanswered(Refused):
    """The question has no answer for this mixer or form."""


class TransformError(ValueError):
    """A Fourier transform that the oracle's radix-2 algorithm cannot compute."""


class TooMuch(Exception):
    """A request that exceeds the limit of effort."""


class OracleError(ValueError):
    """Equations that cannot be executed; the message says where and at which sizes."""


class ModelError(ValueError):
    """An invalid request for a network; the message says what was expected."""


class BoardError(ValueError):
    """A board, or a figure of a board, that is not there; or a file that describes no board."""


class PublishedError(ValueError):
    """A file of claims that cannot be read; the message names file, claim and what was expected."""


class TableError(ValueError):
    """An invalid request for a table; the message lists the choices."""


# Words for values and errors of other code


def shortened(text: str, most: int = 80) -> str:
    """A text for a message: unchanged up to `most` characters, else its beginning and its length.

    >>> shortened("9" * 99)
    '99999999999999999999... (99 characters)'
    """
    return text if len(text) <= most else f"{text[: most // 4]}... ({len(text):,} characters)"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """A question for the message about an unknown word: the name among `known` that is most similar
    to the word; "" if none is similar.

    >>> did_you_mean("fwd", ["forward", "backward"]), did_you_mean("x", ["forward"])
    ("did you mean 'forward'? ", '')
    """
    near = get_close_matches(str(word), [*known], 1)
    return f"did you mean '{near[0]}'? " if near else ""


def described(value: object) -> str:
    """A value in words, for messages about a wrong argument.

    >>> described(None), described("j"), described(1.5), described([1, 2]), described(True)
    ('nothing (None)', "the string 'j'", 'the number 1.5', 'a value of type list', 'the value True')
    """
    if value is None:
        return "nothing (None)"
    if isinstance(value, bool):
        return f"the value {value}"
    if isinstance(value, str):
        return f"the string '{shortened(str.__getitem__(value, slice(None)))}'"
    if type(value) in (int, float):
        return (
            f"the number {shortened(repr(value) if isinstance(value, float) else _digits(value))}"
        )
    own = getattr(type(value), "in_words", None)
    if own is not None:
        return shortened(str(own(value)))
    if isinstance(value, slice):
        return "a slice"
    if isinstance(value, (type, FunctionType)):
        kind = "class" if isinstance(value, type) else "function"
        return f"the {kind} {shortened(value.__name__)}"
    return f"a value of type {shortened(type(value).__name__)}"


def _digits(number: object) -> str:
    """An integer as text; a phrase if it has more digits than Python prints."""
    try:
        return str(number)
    except ValueError:
        return "of more than 4,000 digits"


LONGEST, LONGEST_WORD = 400, 200
"""The most characters shown of another code's exception, and of one word of a sentence."""


def short_words(text: str) -> str:
    """A text with each word of more than `LONGEST_WORD` characters shortened."""
    return re.sub(
        rf"\S{{{LONGEST_WORD + 1},}}", lambda word: shortened(word[0], LONGEST_WORD), text
    )


def text_of(error: BaseException, most: int = LONGEST) -> str:
    """The text of an exception of other code, unchanged up to `most` characters, else its beginning
    and its length; "" if it has none or if formatting it raises an exception too.

    >>> text_of(ValueError("x" * 999))[-20:], text_of(ValueError("no " * 999))[-27:]
    ('... (999 characters)', 'no n ... (2,996 characters)')
    """
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        text = str.__getitem__(text, slice(None)).strip()
    except BaseException as own:  # an exception's own code may raise anything
        if is_interrupt(own):
            raise
        return ""
    short = text if len(text) <= most else short_words(text)
    return short if len(short) <= most else f"{short[:most]} ... ({len(text):,} characters)"


def words_of(error: BaseException) -> str:
    r"""An exception as `Kind: text`, on one line; without the kind if it is a sentence of this
    project's code.

    >>> words_of(ZeroDivisionError("division\nby zero")), words_of(SystemExit())
    ('ZeroDivisionError: division by zero', 'SystemExit')
    """
    kind, said = shortened(class_name(error)), " ".join(text_of(error).split())
    if said and _is_own_sentence(error):
        return said
    return f"{kind}: {said}" if said else kind


def _is_own_sentence(error: BaseException) -> bool:
    """Whether this project's code raised an exception that is meant for users, a ValueError."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not isinstance(error, ValueError):
        return False
    return str(last.tb_frame.f_globals.get("__name__")).partition(".")[0] in OWN


def class_name(error: BaseException) -> str:
    """The name of an exception's class, without a call of its metaclass, which may raise."""
    return str(vars(type)["__name__"].__get__(type(error)))


def is_interrupt(error: BaseException | None) -> bool:
    """Whether an exception comes from Ctrl-C. A KeyboardInterrupt that a `raise` statement of a
    user's file raises is an exception like others, unless it replaces one from Ctrl-C."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not last.tb_frame.f_globals.get("__name__", "").startswith(USER):
        return True
    raised = last.tb_frame.f_code.co_code[last.tb_lasti] == opmap["RAISE_VARARGS"]
    return not raised or is_interrupt(error.__context__)


class Raised(RuntimeError):
    """Other code raised a BaseException that is no Exception, such as SystemExit: the cause."""


@contextmanager
def as_exception() -> Iterator[None]:
    """A block around other code, which then raises only Exceptions and, after Ctrl-C,
    KeyboardInterrupt.

    Thus `except Exception` also catches SystemExit, which would otherwise end the process silently.

    Raises:
        Raised: in place of another BaseException, with the text `words_of` of that exception.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise Raised(words_of(error)) from error


INSTALLED_AS = {
    "pynvml": "nvidia-ml-py",
    **dict.fromkeys(("pandas", "pyarrow"), "'costmodel[dataframes]'"),
}
"""Name of a package in imports -> its name for pip, if they differ."""

OWN = ("costmodel", "profiler", "cli")
DEEPEST = 9
"""The most causes of an error that are followed: a chain of causes may be a circle."""


def unusable_package(error: BaseException, beside: str = "") -> str:
    """A phrase with the package whose import raised `error` and what to do; "" for an error that no
    import of a package raised, and for a module of this project, or of the folder `beside`.

    The phrase for a package that is installed ends with the limit where the system limits the
    memory of this process; else, for an ImportError, with how to install the package again.

    >>> unusable_package(ModuleNotFoundError("no torch", name="torch.nn"))
    'torch, which is not installed (pip install torch)'
    """
    named = error.name if isinstance(error, ImportError) and isinstance(error.name, str) else ""
    missing = isinstance(error, ModuleNotFoundError)
    package = (not missing and _imported_package(error, beside)) or named.partition(".")[0]
    if not package or package in OWN:
        return ""
    how = INSTALLED_AS.get(package, package)
    if missing:
        return f"{package}, which is not installed (pip install {how})"
    for _ in range(DEEPEST):  # the first cause says why
        error = error.__cause__ or error
    remedy = ""
    if (limit := address_space()) is not None:
        remedy = f"; ulimit -v allows this process {limit >> 10:,} KB"
    elif isinstance(error, ImportError):
        remedy = f"; install it again (pip install --force-reinstall {how})"
    said = words_of(error)
    if isinstance(error, MemoryError):
        said = "there is too little memory"
    return f"{package}, which does not load here: {said}{remedy}"


def _imported_package(error: BaseException, beside: str) -> str:
    """The package whose import raised `error`, outside this project, a user's files and the folder
    `beside` ("": none); "" for an error that no import raised."""
    last = error.__traceback__
    while last is not None:
        frame, last = last.tb_frame, last.tb_next
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        own = package in (*OWN, "__main__") or package.startswith(USER)
        own |= bool(beside) and frame.f_code.co_filename.startswith(f"{beside}/")
        # the top level of a module runs while the module is imported
        if frame.f_code.co_name == "<module>" and package and not own:
            return package
    return ""


def memory_exhausted(error: MemoryError, command: str) -> str:
    """The sentence for exhausted memory: which package, or that this project's code, could not be
    loaded for a command; else that smaller sizes need less."""
    following: BaseException | None = error
    loading = False
    for _ in range(DEEPEST):  # memory may be exhausted again while an error is handled
        if following is None:
            break
        if needs := unusable_package(following):
            return f"{command} needs {needs}"
        loading = loading or any(
            frame.f_code.co_name == "<module>" for frame, _ in walk_tb(following.__traceback__)
        )
        following = following.__cause__ or following.__context__
    limit = limit_words()
    if loading:
        return f"there is too little memory to load {command}{limit and f': {limit}'}"
    return TOO_LITTLE


def address_space() -> int | None:
    """The most bytes of memory that this process may map (`ulimit -v`); None without a limit."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return None
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if most == resource.RLIM_INFINITY else most


def limit_words() -> str:
    """A clause on the limit of memory (`ulimit -v`); "" without a limit."""
    limit = address_space()
    if limit is None:
        return ""
    return f"ulimit -v allows {limit >> 10:,} KB of memory, which is probably too little"
