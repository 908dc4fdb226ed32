"""The table of settings that ``nandiag doctor --settings`` prints (reader)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from nandiag.cli.configuration.places import DEFAULT, Configured
from nandiag.launch.options import OPTIONS
from nandiag.settings import INTERNAL, known, value_of


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
