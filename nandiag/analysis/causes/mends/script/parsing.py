"""The script's text as the parser reads it; None where it is no Python, as that of a damaged file (reader side)."""

from __future__ import annotations

import ast

_REFUSED = (SyntaxError, ValueError, RecursionError, MemoryError)


def module(text: str) -> ast.Module | None:
    """Return the tree of statements."""
    try:
        return ast.parse(text)
    except _REFUSED:
        return None


def statement(text: str) -> ast.stmt | None:
    """Return the one statement that a text is."""
    tree = module(text)
    return tree.body[0] if tree is not None and len(tree.body) == 1 else None


def expression(text: str) -> ast.expr | None:
    """Return the expression that a text is."""
    try:
        return ast.parse(text, mode="eval").body
    except _REFUSED:
        return None
