"""The folders of the project's tables, in a checkout or an installed wheel, and bounded reading of
data files in JSON and TOML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from costmodel.errors import DataMissing


def data_dir(name: str) -> Path:
    """The folder of tables with a name such as "published".

    It lies inside the package in a wheel, and next to the package in a checkout.

    Raises:
        DataMissing: the folder is in neither place; the message names both.
    """
    package = Path(__file__).parent
    places = (package / "_tables" / name, package.parent / "tables" / name)
    for place in places:
        if place.is_dir():
            return place
    raise DataMissing(f"no tables '{name}' in {places[0]} or {places[1]}: install costmodel again")


MOST_BYTES = 1 << 26
"""The largest number of bytes that is read from a file; endless devices exceed it."""


def read_bytes(path: Path, most: int | None = MOST_BYTES) -> bytes:
    """The contents of a file of at most `most` bytes; with None a file may have any length, and
    only a device or pipe is bounded, by `MOST_BYTES`.

    Raises:
        OSError: the file cannot be read; ValueError: the file is too large.
    """
    if most is None and path.is_file():
        return path.read_bytes()
    most = most or MOST_BYTES
    with path.open("rb") as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise ValueError(f"the file has more than {most:,} bytes, or no end")
    return found


def not_text(error: UnicodeDecodeError) -> str:
    """The reason why a file is no text, in words."""
    return f"byte {error.start + 1:,} of the file is no text in UTF-8"


def read_data(path: Path) -> Any:
    """The parsed contents of a data file: TOML if its name ends in .toml, else JSON.

    Raises:
        ValueError: the file cannot be read or parsed; the message is the reason.
    """
    try:
        text = read_bytes(path).decode()
        if not text.strip():
            raise ValueError("the file is empty")
        if path.suffix != ".toml":
            return json.loads(text)
        import tomllib  # a table of mixers reads no TOML

        return tomllib.loads(text)
    except OSError as error:
        raise ValueError(error.strerror) from None
    except UnicodeDecodeError as error:
        raise ValueError(not_text(error)) from None
    except RecursionError:
        raise ValueError("the file nests too deeply") from None
    except ValueError as error:
        if str(error).startswith("Exceeds the limit"):
            raise ValueError("a number has more digits than Python reads, 4,300") from None
        raise
