"""The options of ``nandiag run`` beside torchrun's: one table for the parser and for ``--help`` (launcher)."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, NoReturn

from nandiag.settings import CHOICES, LAUNCHERS, Settings, value_of

__all__ = ["DEFAULT_LOGS", "LAUNCHERS", "OPTIONS", "Option", "ShowText", "add_own", "names"]
DEFAULT_LOGS = "nandiag_logs"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its spelling, its choices (empty: free text) and what ``--help`` says of it.

    ``kind`` is ``choice``, ``number``, ``text``, ``many`` (may be given again), ``flag``, ``off`` (a flag that switches
    the value of that name off), or ``show`` (shows a text and does nothing else). ``torchs`` marks one that the parser
    takes from torchrun's table, ``shared`` one that many scripts have too: behind the script nobody means ours.
    """

    flag: str
    kind: str
    help: str
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    torchs: bool = False
    shared: bool = False

    @property
    def dest(self) -> str:
        """The name of its value."""
        name = self.flag.removeprefix("--no-") if self.kind == "off" else self.flag.removeprefix("--")
        return name.replace("-", "_")

    @property
    def shown(self) -> str | None:
        """What ``--help`` shows in place of the value; None for a flag."""
        return self.metavar or "|".join(self.choices) or None


OPTIONS = (
    Option(
        "--on-anomaly",
        "choice",
        "What to do when numbers go bad: auto goes on while the weights stay finite, stop ends the run before they "
        "change, continue only reports, skip leaves out that optimizer step on all ranks.",
        CHOICES["on_anomaly"],
    ),
    Option(
        "--nccl",
        "choice",
        "How much NCCL and c10d write into the run folder; values that you set yourself are never changed.",
        CHOICES["nccl"],
    ),
    Option(
        "--nan-check",
        "choice",
        "collectives: torch itself reads what each collective sends, and ends the rank that sends a NaN. Costs a "
        "pass over "
        "every buffer; on GPUs the end is a device assert, after which nothing more can be looked at.",
        CHOICES["nan_check"],
    ),
    Option(
        "--inject",
        "choice",
        "How nandiag gets into the workers: site (sitecustomize on PYTHONPATH) or exec (a small script runs yours).",
        CHOICES["inject"],
    ),
    Option(
        "--launcher",
        "choice",
        "none runs the words that follow as a command, for srun, mpirun, mp.spawn and other launchers.",
        LAUNCHERS,
    ),
    Option("--fail-on", "choice", "Exit with 3 when the run had an anomaly, or even a warning.", CHOICES["fail_on"]),
    Option(
        "--level",
        "choice",
        "What is watched all the time: step (losses, gradients and weights once a step), module (each module's "
        "inputs and outputs too) or op (every op: needed where nothing is trained).",
        CHOICES["level"],
    ),
    Option(
        "--sentinel-lag", "number", "1: read each step's look a step later, so that no step waits for the device; "
        "a harmful step can then not be run again.", metavar="N",
    ),
    Option("--max-replays", "number", "How many harmful steps may be run again to find the origin.", metavar="N"),
    Option(
        "--check-replicas", "number", "Compare the bits of replicated weights every N steps (-1: as often as costs "
        "0.2 % of the step time; 0: never).", metavar="N",
    ),
    Option("--no-warnings", "off", "Give no early warnings (see README: early warnings)."),
    Option(
        "--hang-timeout",
        "number",
        "End the run when no rank made progress for so many seconds, and say where each stands (0: never).",
        metavar="SECONDS",
    ),
    Option("--log-dir", "text", f"Where run folders go ({DEFAULT_LOGS} if not given).", metavar="DIR", torchs=True),
    Option("--json", "text", "Also write the report to this file.", metavar="FILE"),
    Option("--nproc", "text", "Workers per node, as torchrun's --nproc-per-node; may also stand after the script.",
           metavar="N", torchs=True),
    Option("--config", "text", "A YAML file of settings; `nandiag doctor --settings` lists them.", metavar="FILE",
           shared=True),
    Option("--set", "many", "Give one setting, by its name; may be repeated.", metavar="NAME=VALUE", shared=True),
    Option("--dry-run", "flag", "Show the command, the environment added and the run folder, and start nothing."),
    Option("--torchrun-help", "show", "Show the options of the installed torchrun; all of them work here."),
)  # fmt: skip


class ShowText(Exception):  # noqa: N818 - not an error: the user asked for a text, wherever the parser stood
    """Raised by ``--help`` and ``--torchrun-help``; ``args[0]`` is the name of the text."""


class _Show(argparse.Action):
    def __call__(self, *_args: Any) -> NoReturn:
        raise ShowText(self.dest)


_ACTIONS: dict[str, Any] = {"flag": "store_true", "off": "store_false", "show": _Show}


def add_own(parser: argparse.ArgumentParser, settings: Settings) -> None:
    """Add the options that torchrun does not have; defaults are those of ``settings``."""
    group = parser.add_argument_group("nandiag")
    group.add_argument("-h", "--help", action=_Show, nargs=0, dest="help")
    for option in OPTIONS:
        if option.torchs:
            continue
        if option.kind in _ACTIONS:
            action = _ACTIONS[option.kind]
            extra: dict[str, Any] = {"nargs": 0} if option.kind == "show" else {}
            if option.kind == "off":
                extra["default"] = _default(option, settings)
            group.add_argument(option.flag, action=action, dest=option.dest, **extra)
            continue
        group.add_argument(
            option.flag,
            dest=option.dest,
            **_reading(option),
            default=_default(option, settings),
        )


def _reading(option: Option) -> dict[str, Any]:
    if option.kind == "many":
        return {"action": "append"}
    return {"choices": option.choices or None, "type": int if option.kind == "number" else str}


def _default(option: Option, settings: Settings) -> object:
    return value_of(settings, option.dest) if hasattr(settings, option.dest) else None


def names() -> frozenset[str]:
    """Return the names of the values that are nandiag's alone, ``--help`` included."""
    return frozenset(option.dest for option in OPTIONS if not option.torchs) | {"help"}
