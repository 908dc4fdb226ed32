"""The settings of a run from all places that can give them, and which gave each (launcher and reader).

The command line goes before ``NANDIAG_*`` variables, those before ``--config FILE`` (YAML), that before
``[tool.nandiag]`` of the nearest ``pyproject.toml``, that before the default. What can be set is what
:func:`nandiag.settings.known` yields: a field added there is found here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nandiag.errors import UsageError
from nandiag.settings import INTERNAL, PREFIX, Setting, Settings, environment, known, nearest, parse, with_value

PROJECT_FILE = "pyproject.toml"
TABLE = "tool.nandiag"
DEFAULT = "default"
# Variables with our prefix that are no settings: a worker's own mark, and the torch that scripts/ of this project take.
_NO_SETTINGS = frozenset({"NANDIAG_CLAIM", "NANDIAG_PARENT", "NANDIAG_TORCH"})


@dataclass(frozen=True, slots=True)
class Configured:
    """Settings, and by name where each was given; one without an entry has its default.

    ``notes`` name variables that look like ours and are none.
    """

    settings: Settings
    sources: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Given:
    """One value as it was found. ``place`` says where (``pyproject.toml``), ``where`` begins a sentence on it."""

    name: str
    raw: object
    place: str
    where: str


def load(
    config: str | None = None, given: Sequence[str] = (), environ: Mapping[str, str] | None = None,
    here: Path | None = None,
) -> Configured:  # fmt: skip
    """Return the settings; raises UsageError, naming the place, for a key that is none or a value that does not fit.

    ``config`` is a YAML file, ``given`` are ``NAME=VALUE`` of the command line, ``here`` is where to look for a
    ``pyproject.toml``, upwards.
    """
    environ = environment() if environ is None else environ
    settings = {setting.name: setting for setting in known()}
    result, sources = Settings(), {}
    for one in (*_from_project(here or Path.cwd()), *_from_file(config), *_from_env(environ), *_from_words(given)):
        setting = _setting(one, settings)
        result = with_value(result, one.name, parse(setting, one.raw, one.where))
        sources[one.name] = one.place
    return Configured(result, sources, tuple(_unknown_variables(environ, settings)))


def _setting(one: _Given, settings: Mapping[str, Setting]) -> Setting:
    free = one.place.startswith(PREFIX)
    setting = settings.get(one.name)
    if setting is None or (one.name in INTERNAL and not free):
        names = [name for name in settings if name not in INTERNAL]
        near = nearest(one.name, names) or _by_leaf(one.name, names)
        guess = f"Did you mean {near}? " if near else ""
        raise UsageError(
            f"There is no setting {one.name!r} ({one.place}).", todo=f"{guess}`nandiag doctor --settings` lists them."
        )
    return setting


def _by_leaf(name: str, names: list[str]) -> str | None:
    """Return the setting of a group whose last part is meant: ``thresholds.loss_spike`` for ``loss_spikes``."""
    leaves = {one.rpartition(".")[2]: one for one in names}
    near = nearest(name.rpartition(".")[2], list(leaves))
    return leaves[near] if near else None


def _from_project(here: Path) -> Iterator[_Given]:
    found = next((path for folder in (here, *here.parents) if (path := folder / PROJECT_FILE).is_file()), None)
    if found is None:
        return
    try:
        text = found.read_bytes()
    except OSError:
        return
    # Most projects say nothing to us: theirs need not be parsed, nor be right.
    if b"nandiag" in text:
        table = _toml(text.decode("utf-8", "replace"), found)
        yield from _leaves(table, f"{_short(found, here)} [{TABLE}]")


def _toml(text: str, path: Path) -> Mapping[str, Any]:
    # Python 3.10 has no reader of its own.
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        table = tomllib.loads(text)
        for part in TABLE.split("."):
            table = table.get(part, {})
    except (ValueError, AttributeError) as error:
        raise UsageError(f"The file {str(path)!r} cannot be read: {error}.", todo="Mend it.") from None
    if not isinstance(table, Mapping):
        raise UsageError(f"[{TABLE}] of {str(path)!r} is no table.", todo=f"Write it as [{TABLE}].")
    return table


def _from_file(config: str | None) -> Iterator[_Given]:
    if config is None:
        return
    import yaml

    try:
        content = yaml.safe_load(Path(config).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"--config {config!r} cannot be read: {why}.", todo="Name a YAML file.") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        at = f" at line {where.line + 1}" if where is not None else ""
        raise UsageError(
            f"--config {config!r} is no YAML{at}.", todo="Write a setting a line: `NAME: VALUE`."
        ) from None
    if content is not None and not isinstance(content, Mapping):
        raise UsageError(f"--config {config!r} holds no settings.", todo="Write a setting a line: `NAME: VALUE`.")
    yield from _leaves(content or {}, config)


def _leaves(table: Mapping[Any, Any], place: str, prefix: str = "") -> Iterator[_Given]:
    for key, value in table.items():
        name = prefix + str(key).replace("-", "_")
        if isinstance(value, Mapping):
            yield from _leaves(value, place, f"{name}.")
        else:
            yield _Given(name, value, place, f"{name} = {value!r} ({place})")


def _from_env(environ: Mapping[str, str]) -> Iterator[_Given]:
    for setting in known():
        text = environ.get(setting.variable)
        if text is not None:
            yield _Given(setting.name, text, setting.variable, f"{setting.variable}={text!r}")


def _from_words(given: Sequence[str]) -> Iterator[_Given]:
    for word in given:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--set {word!r} has no value.", todo="Write --set NAME=VALUE.")
        yield _Given(name.strip().replace("-", "_"), value, "--set", f"--set {word!r}")


def _unknown_variables(environ: Mapping[str, str], settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield a note on each variable of our prefix that is no setting; raises UsageError for one that nearly is one."""
    variables = [setting.variable for setting in settings.values()]
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in variables or name in _NO_SETTINGS:
            continue
        near = nearest(name.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in variables])
        if near is not None:
            raise UsageError(f"There is no variable {name}.", todo=f"Did you mean {PREFIX}{near}? Mend or unset it.")
        yield f"the variable {name} is no setting of nandiag and was left alone."


def _short(path: Path, here: Path) -> str:
    return path.name if path.parent == here else str(path)
