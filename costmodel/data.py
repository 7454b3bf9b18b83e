"""Where do the tables that come with the project lie, in a checkout and in an installed wheel?"""

from __future__ import annotations

from pathlib import Path

from costmodel.errors import DataMissing


def data_dir(name: str) -> Path:
    """The folder of tables with this name: "published", "measured" or "generated".

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
