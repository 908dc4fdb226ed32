"""The text of the files that frames stand in, parsed (worker)."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache

_LARGEST = 2_000_000


@lru_cache(maxsize=8)
def tree_of(file: str) -> ast.Module | None:
    """Return the tree of a file, None where there is none, or its text is no Python."""
    text = "".join(linecache.getlines(file))
    try:
        return ast.parse(text) if 0 < len(text) < _LARGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@lru_cache(maxsize=32)
def nodes_of(scope: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a file or function, itself first; many questions are asked of the same one at a harm."""
    return tuple(ast.walk(scope))
