"""Which errors can a user meet? Each is one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


TOO_LITTLE = "there is too little memory here; smaller sizes need less"
"""What is said where memory ends."""


class DataMissing(FileNotFoundError):
    """A folder of data that should have come with the project is not there."""


class Refused(ValueError):
    """A question about a mixer has no answer: the message is the reason, in words of the mixer.

    Args:
        advice: what the author of the equations may change. A traceback shows it below the reason;
            a sentence has it where the equations stand in a user's own file.
    """

    def __init__(self, reason: object, advice: str = "") -> None:
        super().__init__(str(reason))
        self.advice = advice
        if advice:
            self.add_note(advice)

    def told(self, home: str) -> Self:
        """The error for a reader of a mixer whose home is this: its author, if there is one."""
        return type(self)(f"{self}; {self.advice}") if home and self.advice else self


class Unsupported(Refused):
    """The language allows it but exact summation does not cover it; the message says where."""


class FormulaError(ValueError):
    """One sentence: what was expected, what came, and where."""


class NotPolynomial(ValueError):
    """The formula is well formed but is no polynomial in the sizes; compare it at points."""


class NoGrowth(ValueError):
    """A formula whose growth is not a sum of products of powers and logarithms; one sentence."""


class SizeError(ValueError):
    """A size that is missing, not a positive integer, or does not fit the mixer."""


class EquationError(ValueError):
    """A mixer that is not well formed; the message names the equation and what to change."""


class WrongKind(EquationError, TypeError):
    """An argument of a kind that does not stand there, in what an author of equations writes."""


class UnknownMixer(ValueError):
    """No mixer has this name; the message suggests the nearest one."""


class ConventionError(ValueError):
    """A convention that does not exist or does not combine; the message lists the choices."""


class Unanswered(Refused):
    """The question has no answer for this mixer or form."""


class TransformError(ValueError):
    """A transform that radix-2 cannot do."""


class TooMuch(Exception):
    """What is asked for takes more work than anything asked for may take; one sentence."""


class OracleError(ValueError):
    """The equations cannot be executed as they stand; the message says where and at which sizes."""


class ModelError(ValueError):
    """A network that cannot be made as asked; the message says what was expected."""


class PublishedError(ValueError):
    """A file of claims that cannot be read; the message names file, claim and what was expected."""


class TableError(ValueError):
    """A table that cannot be made as asked; the message lists the choices."""


# What somebody else's text and code say


def shortened(text: str, most: int = 80) -> str:
    """A user's text as it may stand in a sentence: whole up to `most` signs, else its beginning.

    >>> shortened("9" * 99)
    '99999999999999999999... (99 signs)'
    """
    return text if len(text) <= most else f"{text[: most // 4]}... ({len(text):,} signs)"


def described(value: object) -> str:
    """A value that somebody gave where another was expected, in words.

    >>> described(None), described("j"), described(1.5), described([1, 2]), described(True)
    ('nothing (None)', "the text 'j'", 'the number 1.5', 'a value of type list', 'the value True')
    """
    if value is None:
        return "nothing (None)"
    if isinstance(value, bool):
        return f"the value {value}"
    if isinstance(value, str):
        return f"the text '{shortened(str.__getitem__(value, slice(None)))}'"
    if type(value) in (int, float):
        return (
            f"the number {shortened(repr(value) if isinstance(value, float) else _digits(value))}"
        )
    own = getattr(type(value), "in_words", None)
    if own is not None:
        return shortened(str(own(value)))
    if isinstance(value, slice):
        return "a slice"
    return f"a value of type {shortened(type(value).__name__)}"


def _digits(number: object) -> str:
    """A whole number; of one that Python does not print, how long it is."""
    try:
        return str(number)
    except ValueError:
        return "of more than 4,000 digits"


LONGEST = 400
"""Of what an exception of somebody else's code says, so many signs are shown."""


def text_of(error: BaseException, most: int = LONGEST) -> str:
    """The text of an exception that somebody else's code raised, at most so many signs of it;
    empty where there is none or where making the text raises, too."""
    try:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        start = str.__getitem__(text, slice(0, most + 1)).strip()
    except KeyboardInterrupt:
        raise
    except BaseException:  # an exception's own code may raise anything
        return ""
    return start if len(start) <= most else f"{start[:most]}..."


def words_of(error: BaseException) -> str:
    r"""An exception that somebody else's code raised as `Kind: text`, on one line.

    >>> words_of(ZeroDivisionError("division\nby zero")), words_of(SystemExit())
    ('ZeroDivisionError: division by zero', 'SystemExit')
    """
    kind, said = shortened(type(error).__name__), " ".join(text_of(error).split())
    return f"{kind}: {said}" if said else kind


class Raised(RuntimeError):
    """Somebody else's code raised what is no `Exception`, such as SystemExit; the cause is that."""


@contextmanager
def as_exception() -> Iterator[None]:
    """Around somebody else's code: what is raised is an `Exception`, or an interrupt.

    `except Exception` then meets SystemExit, which would end this process in silence, and classes
    of BaseException.

    Raises:
        Raised: in place of what is no Exception; its text is `words_of` that.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise Raised(words_of(error)) from error


INSTALLED_AS = {"pynvml": "nvidia-ml-py"}
"""Package as it is imported -> as it is installed, where the two names differ."""

OWN = ("costmodel", "profiler", "cli")


def missing_package(error: BaseException) -> str:
    """The package that an import did not find, and what installs it; empty for another error, and
    for a module of this project.

    >>> missing_package(ModuleNotFoundError("no torch", name="torch.nn"))
    'torch, which is not installed (pip install torch)'
    """
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or not name or name in OWN:
        return ""
    return f"{name}, which is not installed (pip install {INSTALLED_AS.get(name, name)})"
