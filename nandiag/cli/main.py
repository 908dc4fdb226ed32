"""The ``nandiag`` command: one file a verb; this one puts them together (launcher and reader, never a worker)."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from nandiag import __version__
from nandiag.cli.problems import complain
from nandiag.errors import Exit, NandiagError, UsageError

VERBS = ("run", "report", "explain", "doctor")
OWN = ("--help", "-h", "--version")


def build(verb: str | None = None) -> typer.Typer:
    """Return the command with all its verbs, or with ``verb`` alone where there is one of that name.

    Each verb imports what it needs, and only one of them is ever used: `run` must start as fast as torchrun.
    """
    app = typer.Typer(
        name="nandiag",
        help="Find where numbers go bad in distributed PyTorch training. Put `nandiag run` where torchrun stood.",
        no_args_is_help=True,
        add_completion=False,
        add_help_option=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in (verb,) if verb in VERBS else VERBS:
        importlib.import_module(f"nandiag.cli.{name}").register(app)
    return app


def main() -> int:
    """Run the command line of this process and return its exit code."""
    hook = sys.excepthook
    try:
        _refuse_misplaced(sys.argv[1:])
        build(sys.argv[1] if len(sys.argv) > 1 else None)(prog_name="nandiag")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.OK if end.code is None else Exit.SCRIPT_FAILED
    except NandiagError as error:
        complain(error)
        return error.exit_code
    finally:
        # typer puts its own hook in place, and the interpreter's last words are not its business.
        sys.excepthook = hook
    return Exit.OK


def _refuse_misplaced(words: Sequence[str]) -> None:
    """Raise UsageError where a script, or an option that is a verb's, stands in the place of the verb."""
    first = words[0] if words else ""
    if first in VERBS or first in OWN:
        return
    if first.startswith("-") and first != "-":
        raise UsageError(f"{first} stands before the verb, and belongs behind it.", todo=_behind_verb(words))
    if first.endswith(".py"):
        raise UsageError(f"There is no command {first!r}.", todo=f"Did you mean `{_typed('run', *words)}`?")


def _behind_verb(words: Sequence[str]) -> str:
    """Return what was probably meant by words that begin with an option."""
    verb = next((word for word in words if word in VERBS), None)
    if verb is not None:
        at = words.index(verb)
        return f"Did you mean `{_typed(verb, *words[:at], *words[at + 1 :])}`?"
    if len(words) > 1:
        return f"Did you mean `{_typed('run', *words)}`?"
    return f"The verbs are {', '.join(VERBS)}; `nandiag VERB --help` lists what each of them takes."


def _typed(*words: str) -> str:
    return shlex.join(["nandiag", *words])


def _show_version(value: bool) -> None:  # noqa: FBT001 - the shape of a typer callback
    if value:
        sys.stdout.write(f"nandiag {__version__}\n")
        raise typer.Exit


def _show_help(ctx: typer.Context, value: bool) -> None:  # noqa: FBT001 - the shape of a typer callback
    if value:
        sys.stdout.write(ctx.get_help() + "\n")
        raise typer.Exit


def _root(
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
    # typer's own option of this name loads pydantic (40 ms) in every command that is not helped.
    _help: Annotated[
        bool, typer.Option("--help", "-h", help="Show this message and exit.", callback=_show_help, is_eager=True)
    ] = False,
) -> None:
    pass
