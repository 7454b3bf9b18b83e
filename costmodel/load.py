"""Where does a name lead: to a built-in mixer, or to a mixer in a user's own file?"""

from __future__ import annotations

import difflib
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from costmodel.equations import Mixer
from costmodel.mixers import UnknownMixer, builtin, names as builtin_names

USER = "costmodel_user_"
"""What the Python modules of users' files are called, before their path."""


def mixer(name: str | Mixer) -> Mixer:
    """The mixer with this name or alias, or of a user's `path/to/file.py:NAME`.

    Raises:
        UnknownMixer: no such name, file, or mixer in the file; the message says what was found.
    """
    if isinstance(name, Mixer):
        return name
    path, separator, attribute = name.rpartition(":")
    if not separator or not path.endswith(".py"):
        return builtin(name)
    return _in_file(Path(path), attribute)


def _in_file(path: Path, attribute: str) -> Mixer:
    module = user_module(path)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Mixer)}
    for key, value in found.items():
        if attribute in (key, value.name):
            if value.name in builtin_names():
                raise UnknownMixer(
                    f"{path} calls its mixer '{value.name}', which is the name of a built-in one: "
                    f"choose another"
                )
            value.origin = f"{path}:{attribute}"
            value.home = module.__name__
            return value
    names = sorted({value.name for value in found.values()})
    if not names:
        raise UnknownMixer(f"{path} defines no mixer: write `{attribute} = cm.Mixer(...)` in it")
    near = difflib.get_close_matches(attribute, names, 1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise UnknownMixer(f"{path} has no mixer '{attribute}'{hint} It defines {', '.join(names)}.")


def user_module(path: Path) -> ModuleType:
    """Import a user's file, once per process.

    Raises:
        UnknownMixer: the file is missing or does not import; one sentence with the cause.
    """
    if not path.is_file():
        raise UnknownMixer(f"no file '{path}': a mixer of your own is given as FILE.py:NAME")
    name = f"{USER}{path.resolve().as_posix().replace('/', '_').removesuffix('.py')}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UnknownMixer(f"{path} does not import: {type(error).__name__}: {error}") from error
    return module
