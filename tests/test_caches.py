"""Does `clear_all` reach every function with a cache?"""

from __future__ import annotations

import ast
import importlib
import operator
import re
from collections.abc import Iterator

from tests.caches import KEPT, caches
from tests.test_architecture import module_name, sources

CACHE = re.compile(r"\b(lru_)?cache\b")


def cached(tree: ast.Module) -> Iterator[str]:
    """The functions and methods with a cache that a file defines (`f`, `Class.f`); a cache inside a
    function ends with a call of the function."""
    classes = [found for found in tree.body if isinstance(found, ast.ClassDef)]
    for prefix, body in [("", tree.body), *((f"{one.name}.", one.body) for one in classes)]:
        for found in body:
            match found:
                case ast.FunctionDef(name=name, decorator_list=[*made]):
                    pass
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=called)):
                    made = [called]
                case _:
                    continue
            if any(CACHE.search(ast.unparse(one)) for one in made):
                yield prefix + name


def test_every_function_with_a_cache_is_emptied() -> None:
    modules = {
        name: ast.parse(text)
        for path in sources()
        if not (name := module_name(path)).startswith(KEPT)
        if CACHE.search(text := path.read_text(encoding="utf-8"))
    }
    defined = {
        f"{module}.{name}": operator.attrgetter(name)(importlib.import_module(module))
        for module, tree in modules.items()
        for name in cached(tree)
    }
    emptied = {id(found) for found in caches()}
    assert [name for name, found in defined.items() if id(found) not in emptied] == []
    assert len(defined) > 100
