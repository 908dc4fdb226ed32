"""``nandiag explain [SLUG]``: what a word of the report means, how it looks and how to fix it (reader, no torch)."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from nandiag.errors import UsageError
from nandiag.settings import nearest

if TYPE_CHECKING:
    from nandiag.analysis.explained import Explanation

_WIDTH = 100
_KINDS = {"cause": "Causes", "warning": "Warnings", "finding": "Findings"}


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("explain")(explain)


def explain(
    *,
    slug: Annotated[
        str | None, typer.Argument(metavar="[WORD]", help="A word that stands in brackets in a report: overflow.")
    ] = None,
) -> None:
    """Explain a word of the report, or list all of them."""
    from nandiag.analysis.explained import catalogue
    from nandiag.cli.plugins import explanations

    known = {**catalogue(), **{one.slug: one for one in explanations()}}
    lines = listed(known) if slug is None else text_of(_find(slug, known))
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _find(slug: str, known: Mapping[str, Explanation]) -> Explanation:
    word = slug.strip("[]").lower().replace("-", "_")
    if word in known:
        return known[word]
    near = nearest(word, list(known)) or next((name for name in known if word in name), None)
    guess = f"Did you mean {near}? " if near else ""
    raise UsageError(f"There is no word {slug!r} to explain.", todo=f"{guess}`nandiag explain` lists all.")


def listed(known: Mapping[str, Explanation]) -> Iterator[str]:
    """Yield every slug with the first sentence of its text, causes first."""
    width = max(map(len, known))
    for kind, name in _KINDS.items():
        own = [one for one in known.values() if one.kind == kind]
        if own:
            yield f"{name}:"
        for one in own:
            head = f"  {one.slug:<{width}}  "
            yield from textwrap.wrap(one.title, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
        yield ""
    yield "`nandiag explain SLUG` says how it looks, how to fix it and where to read on."


def text_of(one: Explanation) -> Iterator[str]:
    """Yield the whole text on one slug."""
    yield one.slug
    yield ""
    yield from textwrap.wrap(one.what, _WIDTH)
    if one.looks:
        yield from ["", "How it looks:"]
    for line in one.looks:
        yield from textwrap.wrap(line, _WIDTH, initial_indent="  ", subsequent_indent="    ")
    if one.fix:
        yield from ["", "How to fix it:"]
    for suggestion in one.fix:
        yield from textwrap.wrap(suggestion.text, _WIDTH, initial_indent="  - ", subsequent_indent="    ")
        yield from [f"      {line}" for line in (suggestion.code or "").splitlines()]
    if one.links:
        yield from ["", "Read on:", *(f"  {link}" for link in one.links)]
