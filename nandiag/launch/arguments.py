"""The words of ``nandiag run``, split into nandiag's options, torchrun's, the script and its arguments (launcher).

torch's own parser does the work, with our options added to it, so that spellings, abbreviations, ``PET_*`` variables
and ``--`` are those of the installed torch.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from nandiag.errors import UsageError
from nandiag.launch.options import DEFAULT_LOGS, LAUNCHERS, OPTIONS, ShowText, add_own, names
from nandiag.settings import Settings

USAGE = "nandiag run [options] script.py [the script's own arguments]"
LEAST_HANG = 5
_WORKERS = ("--nproc", "--nproc-per-node")
_NPROC_WORDS = frozenset({"auto", "cpu", "gpu", "xpu"})


@dataclass(frozen=True, slots=True)
class Arguments:
    """What was asked for. ``torchrun`` holds torchrun's values, and is None where torchrun is not started.

    ``show`` is ``help`` or ``torchrun_help`` when only a text was asked for. ``notes`` say how words were read.
    ``config`` is a file of settings, ``given`` are settings as ``NAME=VALUE``; both are still to be read.
    """

    settings: Settings
    script: str = ""
    script_args: tuple[str, ...] = ()
    torchrun: argparse.Namespace | None = None
    log_dir: str = DEFAULT_LOGS
    json: str | None = None
    dry_run: bool = False
    show: str | None = None
    notes: tuple[str, ...] = ()
    config: str | None = None
    given: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What the run is named after, as a file name: the script, a module, or the script in a plain command."""
        if self.torchrun is not None:
            return f"{self.script}.py" if self.torchrun.module else self.script
        return next((word for word in (self.script, *self.script_args) if word.endswith(".py")), self.script)


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of ending the process.

    ``first`` are the flags that an abbreviation means before any of ours: those of torchrun.
    """

    first: tuple[str, ...] = ()

    def error(self, message: str) -> NoReturn:
        raise UsageError(_sentence(message), todo=f"Usage: {USAGE}; `nandiag run --help` lists the options.")


def read(argv: Sequence[str], settings: Settings) -> Arguments:
    """Read the words after ``nandiag run``; raises UsageError when they do not fit. Imports torch where it must."""
    if settings.launcher not in LAUNCHERS:
        raise UsageError(
            f"NANDIAG_LAUNCHER={settings.launcher!r} is not one of {', '.join(LAUNCHERS)}.",
            todo="Set it to one of these, or unset it.",
        )
    try:
        return _without_torch(list(argv), settings) or _with_torch(list(argv), settings)
    except ShowText as text:
        return Arguments(settings, show=str(text))


def _with_torch(words: list[str], settings: Settings) -> Arguments:
    parser = _with_torchrun(settings)
    head, tail = _cut(words, parser)
    head, tail, notes = _take_nproc(head, tail, parser)
    values, unknown = _parse(parser, head, tail)
    if unknown:
        raise _unknown(unknown[0], parser)
    arguments = _arguments(values, settings)
    torchrun = _only_torchrun(values)
    if arguments.settings.launcher == "none":
        raise _not_started(torchrun, parser)
    left = (*_left(head, tail), *_misspelt(head, tail, parser))
    # What became of --nproc needs saying only where another option, that nandiag did not take, stands beside it.
    return replace(arguments, torchrun=torchrun, notes=(*notes, *left))


def torchrun_help() -> str:
    """Return torchrun's own help text; imports torch."""
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    parser.prog = "torchrun"
    return str(parser.format_help())


def _without_torch(words: list[str], settings: Settings) -> Arguments | None:
    """Read the words where none of torchrun's options is needed for it; None where they are."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--log-dir", "--log_dir", default=None)
    add_own(parser, settings)
    parser.add_argument("training_script", nargs="?")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    try:
        values, unknown = parser.parse_known_args(words)
    except UsageError:
        return None
    if unknown:
        return None
    if values.training_script is None:
        raise UsageError("No script was given.", todo=f"Usage: {USAGE}; `nandiag run --help` lists the options.")
    return _arguments(values, settings) if values.launcher == "none" else None


def _with_torchrun(settings: Settings) -> _Parser:
    from torch.distributed.run import get_args_parser

    torchs = get_args_parser()
    parser = _Parser(parents=[torchs], add_help=False, conflict_handler="resolve")
    parser.first = tuple(flag for action in torchs._actions for flag in action.option_strings)  # noqa: SLF001
    parser.add_argument("--nproc", dest="nproc_per_node", default=argparse.SUPPRESS)
    add_own(parser, settings)
    return parser


def _cut(words: list[str], parser: _Parser) -> tuple[list[str], list[str]]:
    """Cut the words behind the script: the shortest beginning of them that has one."""
    for end in range(1, len(words) + 1):
        try:
            _parse(parser, words[:end], [])
        except UsageError:
            continue
        return words[:end], words[end:]
    return words, []


def _parse(
    parser: _Parser, head: list[str], tail: list[str], known: argparse.Namespace | None = None
) -> tuple[argparse.Namespace, list[str]]:
    """Parse the words up to the script, and let argparse do to the script's own what torchrun's would do.

    The script's words are hidden from it, all but ``--``: it would refuse those that look like an ambiguous
    abbreviation of an option, even there.
    """
    hidden = [word if word == "--" else str(index) for index, word in enumerate(tail)]
    values, unknown = parser.parse_known_args([*_spelled_out(head, parser), *hidden], known)
    values.training_script_args = [
        word if word == "--" else tail[int(word)] for word in values.training_script_args or []
    ]
    return values, unknown


def _spelled_out(head: list[str], parser: _Parser) -> list[str]:
    """Spell out abbreviations that are clear to torchrun, which an option of ours could make ambiguous."""
    stop = head.index("--") if "--" in head else len(head)
    return [*(_full(word, parser.first) for word in head[:stop]), *head[stop:]]


def _full(word: str, flags: tuple[str, ...]) -> str:
    name, equals, value = word.partition("=")
    near = [flag for flag in flags if flag.startswith(name)]
    return f"{near[0]}{equals}{value}" if name.startswith("--") and len(near) == 1 else word


def _take_nproc(head: list[str], tail: list[str], parser: _Parser) -> tuple[list[str], list[str], tuple[str, ...]]:
    """Move a ``--nproc N`` that follows the script before it, where none came before and no ``--`` did."""
    found = None if "--" in head else _find_nproc(tail[: tail.index("--") if "--" in tail else None])
    if found is None or _parse(parser, head, [], argparse.Namespace(nproc_per_node=None))[0].nproc_per_node is not None:
        return head, tail, ()
    start, end, count = found
    rest = [*tail[:start], *tail[end:]]
    note = f"--nproc {count} was taken as nandiag's, the script's arguments are: {' '.join(rest)}."
    return [*head[:-1], f"--nproc={count}", head[-1]], rest, (note,) if rest else ()


def _misspelt(head: list[str], tail: list[str], parser: _Parser) -> tuple[str, ...]:
    """Say that what looks like a number of workers stands after the script and is its own, where one was started."""
    words = [] if "--" in head else tail[: tail.index("--") if "--" in tail else None]
    for word, after in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        count = value if equals else after
        near = name.startswith("--") and difflib.get_close_matches(name.replace("_", "-"), _WORKERS, n=1, cutoff=0.85)
        if near and count != "1" and (count.isdigit() or count in _NPROC_WORDS):
            values = _parse(parser, head, [], argparse.Namespace(nproc_per_node=None))[0]
            if values.nproc_per_node not in {None, "1"}:
                return ()
            return (f"{name} {count} is the script's own there, and one worker is started; more: --nproc {count}.",)
    return ()


def _find_nproc(words: list[str]) -> tuple[int, int, str] | None:
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name != "--nproc":
            continue
        end = index + 1
        if not equals and end < len(words):
            value, end = words[end], end + 1
        # Anything but a count is the script's: it may have an option of that name which means something else.
        return (index, end, value) if value.isdigit() or value in _NPROC_WORDS else None
    return None


def _arguments(values: argparse.Namespace, settings: Settings) -> Arguments:
    chosen = {name: getattr(values, name) for name in Settings.__dataclass_fields__ if name in names()}
    if values.max_replays < 0:
        raise UsageError(f"--max-replays {values.max_replays} is below 0.", todo="Give 0 to never run a step again.")
    if values.sentinel_lag not in {0, 1}:
        raise UsageError(f"--sentinel-lag {values.sentinel_lag} is not 0 or 1.", todo="Give one of them.")
    if values.sentinel_lag and values.on_anomaly == "skip":
        raise UsageError(
            "--sentinel-lag 1 and --on-anomaly skip exclude each other: an update seen late cannot be left out.",
            todo="Leave one of them out.",
        )
    if values.hang_timeout != 0 and values.hang_timeout < LEAST_HANG:
        raise UsageError(
            f"--hang-timeout {values.hang_timeout} is below {LEAST_HANG} seconds.",
            todo="Give more seconds than the longest pause of a run that is well, or 0 for none.",
        )
    return Arguments(
        settings=replace(settings, **chosen),
        script=values.training_script,
        script_args=tuple(values.training_script_args),
        log_dir=values.log_dir or DEFAULT_LOGS,
        json=values.json,
        dry_run=values.dry_run,
        config=values.config,
        given=tuple(values.set or ()),
    )


def _only_torchrun(values: argparse.Namespace) -> argparse.Namespace:
    return argparse.Namespace(**{name: value for name, value in vars(values).items() if name not in names()})


def _left(head: list[str], tail: list[str]) -> tuple[str, ...]:
    """Say which of nandiag's own options stand after the script, where they are the script's."""
    ours = {option.flag for option in OPTIONS if not (option.torchs or option.shared or option.kind in {"flag", "off"})}
    until = tail.index("--") if "--" in tail else len(tail)
    left = [word for word in tail[:until] if word.partition("=")[0] in ours]
    if not left or "--" in head:
        return ()
    return (f"{', '.join(left)} stands after the script and was left to it; nandiag's options go before the script.",)


def _unknown(word: str, parser: _Parser) -> UsageError:
    name = word.partition("=")[0]
    known = sorted(flag for action in parser._actions for flag in action.option_strings)  # noqa: SLF001
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    guess = f"Did you mean {near[0]}? " if near else ""
    return UsageError(
        f"There is no option {name} of nandiag or torchrun.",
        todo=f"{guess}Options of the script go after the script.",
    )


def _not_started(torchrun: argparse.Namespace, parser: _Parser) -> UsageError:
    given = [_flag(action) for action in parser._actions if _is_given(action, torchrun)]  # noqa: SLF001
    which = ", ".join(given) or "an option"
    return UsageError(
        f"{which} is torchrun's, and --launcher none does not start torchrun.",
        todo="Leave it out, or leave out --launcher none.",
    )


def _is_given(action: argparse.Action, values: argparse.Namespace) -> bool:
    if not action.option_strings or action.dest == "log_dir" or action.default is argparse.SUPPRESS:
        return False
    return action.dest in vars(values) and getattr(values, action.dest) != action.default


def _flag(action: argparse.Action) -> str:
    return max(action.option_strings, key=len)


def changed(torchrun: argparse.Namespace) -> list[str]:
    """Return torchrun's values as the words that give them, leaving out those at their default; imports torch."""
    from torch.distributed.run import get_args_parser

    words: list[str] = []
    for action in get_args_parser()._actions:  # noqa: SLF001
        if not action.option_strings or action.dest not in vars(torchrun):
            continue
        value: Any = getattr(torchrun, action.dest)
        if value == action.default:
            continue
        if action.nargs == 0:
            words.append(_flag(action))
        else:
            words += [_flag(action), ",".join(value) if isinstance(value, list) else str(value)]
    return words


def _sentence(message: str) -> str:
    if "required: training_script" in message:
        return "No script was given."
    return message[:1].upper() + message[1:].rstrip(".") + "."
