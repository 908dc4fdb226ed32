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


def written(form: str, *parts: ast.expr | str) -> str:
    """Return code with the script's expressions in the places ``{}`` of ``form``, in brackets where they need them.

    ``a if c else b`` before ``<= 1`` would be read as another condition; what is read as one thing stays as it is.
    """
    plain = [part if isinstance(part, str) else ast.unparse(part) for part in parts]
    texts = [f"({text})" for text in plain]
    meant = _dumped(form.format(*texts))
    if meant is None:
        return form.format(*plain)
    for place, text in enumerate(plain):
        tried = [*texts[:place], text, *texts[place + 1 :]]
        texts = tried if _dumped(form.format(*tried)) == meant else texts
    return form.format(*texts)


def _dumped(code: str) -> str | None:
    tree = module(code)
    return None if tree is None else ast.dump(tree)
