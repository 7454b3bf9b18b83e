"""Which errors can a user meet? Each is one sentence that says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


class DataMissing(FileNotFoundError):
    """A folder of data that should have come with the project is not there."""


class Unsupported(ValueError):
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


class UnknownMixer(ValueError):
    """No mixer has this name; the message suggests the nearest one."""


class ConventionError(ValueError):
    """A convention that does not exist or does not combine; the message lists the choices."""


class Unanswered(ValueError):
    """The question has no answer for this mixer or form; the message is the reason."""


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
