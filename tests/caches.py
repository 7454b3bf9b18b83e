"""How does a test empty every cache of derived answers?"""

from __future__ import annotations

import sys


def clear_all() -> None:
    """Empty every cache of the derivations: of functions, and of functions of classes.

    The mixers themselves stay, since tests hold them.
    """
    for name, module in tuple(sys.modules.items()):
        derived = name.startswith(("costmodel.", "profiler.reconcile."))
        if derived and not name.startswith("costmodel.mixers"):
            for value in tuple(vars(module).values()):
                members = vars(value).values() if isinstance(value, type) else ()
                for one in (value, *members):
                    if hasattr(one, "cache_clear"):
                        one.cache_clear()
