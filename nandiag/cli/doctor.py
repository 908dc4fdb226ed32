"""``nandiag doctor``: what nandiag finds before a run; ``--settings`` lists each setting and who gave it (reader)."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import Annotated

import typer

from nandiag.cli.configuration import DEFAULT, Configured, load
from nandiag.errors import UsageError
from nandiag.launch.options import OPTIONS
from nandiag.settings import INTERNAL, known, value_of


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("doctor")(doctor)


def doctor(
    *,
    settings: Annotated[
        bool, typer.Option("--settings", help="List each setting, its value and where it comes from.")
    ] = False,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="A YAML file of settings, as `nandiag run` takes it.")
    ] = None,
) -> None:
    """Show how nandiag is set."""
    if not settings:
        raise UsageError("doctor has nothing to look at.", todo="Give --settings.")
    sys.stdout.write("".join(f"{line}\n" for line in listed(load(config))))


def listed(configured: Configured) -> Iterator[str]:
    """Yield the table of settings: name, value, where it was given; below each what it does."""
    helps = {option.dest: option.help for option in OPTIONS}
    rows = [
        (setting, repr(value_of(configured.settings, setting.name)), configured.sources.get(setting.name, DEFAULT))
        for setting in known()
        if setting.name not in INTERNAL
    ]
    width = max(len(setting.name) for setting, _, _ in rows)
    for setting, value, source in rows:
        yield f"{setting.name:<{width}}  {value:<12}  {source}"
        text = setting.help or helps.get(setting.name, "")
        choices = f"One of {', '.join(setting.choices)}." if setting.choices else ""
        yield from textwrap.wrap(" ".join(filter(None, (text, choices))), 96, initial_indent=4 * " ",
                                 subsequent_indent=4 * " ")  # fmt: skip
    yield ""
    yield "Given by, the first counts: an option or --set NAME=VALUE; a variable NANDIAG_NAME (a dot becomes _);"
    yield "--config FILE (YAML); [tool.nandiag] of the nearest pyproject.toml; the default."
