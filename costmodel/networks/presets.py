"""Which networks have a name, and how is a data file of networks read?"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from os.path import isdir, isfile
from pathlib import Path
from typing import Any

from costmodel.data import data_dir, read_data
from costmodel.errors import ModelError
from costmodel.mixers import file_of
from costmodel.networks.choices import Choices, from_entry


def load(path: Path) -> dict[str, Choices]:
    """A dict: name -> choices of the networks in one data file (schema 1).

    Raises:
        ModelError: not JSON, a missing key, an unknown key of a network, a value of another type, a
            name that is taken, or a `from` that no entry above defines.
    """
    try:
        data = read_data(path)
    except ValueError as reason:
        raise ModelError(f"{path} is not a readable file of networks: {reason}") from None
    if not isinstance(data, dict):
        raise ModelError(f"{path}: expected an object with the keys schema, citation and models")
    if data.get("schema") != 1:
        raise ModelError(f"{path}: 'schema' must be 1, got {data.get('schema')!r}")
    citation, entries = data.get("citation"), data.get("models")
    if not isinstance(citation, str) or not citation:
        raise ModelError(
            f"{path}: 'citation' must be a string that says where the networks are printed, got "
            f"{data.get('citation')!r}"
        )
    if not isinstance(entries, list):
        raise ModelError(f"{path}: 'models' must be a list of networks, got {entries!r}")
    found: dict[str, Choices] = {}
    for number, entry in enumerate(entries, 1):
        choices = _choices(f"{path.name}, network number {number}", entry, found, citation)
        found[choices.name] = choices
    return found


def _choices(where: str, entry: Any, found: Mapping[str, Choices], citation: str) -> Choices:
    """The choices of one entry of a file: its own keys over those of the entry that it names in
    `from`, or over the defaults. `found`: entries above it. ModelError: no name, a name that is
    taken, or an unknown `from`."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ModelError(f"{where}: expected an object with a name, got {entry!r}")
    name, source = entry["name"], entry.get("from")
    where = f"{where.partition(',')[0]}, {name}"
    if name in found:
        raise ModelError(f"{where}: the name is taken already: give the network another name")
    if source is not None and (not isinstance(source, str) or source not in found):
        raise ModelError(f"{where}: 'from' names '{source}', which no entry above defines")
    base = Choices(source=citation) if source is None else found[source]
    own = {key: value for key, value in entry.items() if key != "from"}
    return from_entry(where, own, base)


@cache
def presets() -> dict[str, Choices]:
    """A dict: name -> choices of every network that comes with the project, file by file.

    Raises:
        ModelError: a file that cannot be read, or one name in two files.
    """
    found: dict[str, Choices] = {}
    for path in sorted(data_dir("models").glob("*.json"), key=_plain_first):
        for name, choices in load(path).items():
            if name in found:
                raise ModelError(
                    f"{path.name}: '{name}' stands in another file as well: give one of the two "
                    "another name"
                )
            found[name] = choices
    return found


def _plain_first(path: Path) -> tuple[bool, str]:
    """A key that sorts `plain.json`, whose networks lists show first, before other files."""
    return path.stem != "plain", path.stem


def names() -> tuple[str, ...]:
    """The names of all networks."""
    return tuple(presets())


def preset(name: str) -> Choices:
    """The choices of the network with this name; ModelError, with the nearest, if it is unknown,
    and for a directory."""
    if name in presets():
        return presets()[name]
    if isdir(name):
        raise ModelError(
            f"'{name}' is a directory: give the name of a network (`costmodel model --list` shows "
            "them all) or a file, config.json"
        )
    if isfile(name):
        raise ModelError(
            f"'{name}' is a file, and the name of a network is expected here: "
            f"`costmodel model --hf {name}` reads the file"
        )
    if file_of(base := name.partition("+")[0]):
        raise ModelError(
            f"'{base}' is a mixer, and the name of a network is expected here: `costmodel model "
            f"decoder --mixer {name}` makes a network of it"
        )
    near = difflib.get_close_matches(name, names(), 1)
    hint = f"; did you mean '{near[0]}'? `" if near else ": `"
    raise ModelError(f"unknown network '{name}'{hint}costmodel model --list` shows them all")
