"""Where do the tables that come with the project lie, in a checkout and in an installed wheel; and
how is a file of data read, whatever it holds?"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from costmodel.errors import DataMissing


def data_dir(name: str) -> Path:
    """The folder of tables with this name, such as "published".

    A wheel carries them inside the package, a checkout beside it.

    Raises:
        DataMissing: neither has it; the message names both places.
    """
    package = Path(__file__).parent
    places = (package / "_tables" / name, package.parent / "tables" / name)
    for place in places:
        if place.is_dir():
            return place
    raise DataMissing(f"no tables '{name}': looked for {places[0]} and {places[1]}")


MOST_BYTES = 1 << 26
"""A file of data that holds more, as one without an end does, is refused."""


def read_bytes(path: Path, most: int | None = MOST_BYTES) -> bytes:
    """What a file holds; `most` is None where only files without an end are bounded.

    Raises:
        OSError: it cannot be read; ValueError: it holds too much.
    """
    if most is None and path.is_file():
        return path.read_bytes()
    most = most or MOST_BYTES
    with path.open("rb") as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise ValueError(f"it holds more than {most:,} bytes, or has no end")
    return found


def read_data(path: Path) -> Any:
    """What a file of data says: TOML where its name ends in .toml, else JSON.

    Raises:
        ValueError: it cannot be read, or is neither; the message is the reason.
    """
    try:
        text = read_bytes(path).decode()
        return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise ValueError(error.strerror) from None
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    except ValueError as error:
        if str(error).startswith("Exceeds the limit"):
            raise ValueError("a number has more digits than any size") from None
        raise
