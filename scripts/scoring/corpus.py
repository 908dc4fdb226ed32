"""The samples and what an expert would say of each.

Beside ``NAME.py`` lies ``NAME.expected.yaml``. A list in it holds the readings that experts may differ in: any one of
them is right (``ranks`` is the exception: all of these ranks). ``says`` are words that the report must contain, ``fix``
words of which the advice must contain one, ``warnings`` the early warnings (all of these, none where it is left
out), ``seen_in`` a public report of the same mechanism (or ``none found``),
``untraced`` why the independent tracer cannot follow the script, ``needs`` the frameworks without which it is skipped,
``options`` what is given to ``nandiag run``, ``fast: true`` that the tests run it by default, as they do those that lie
in no folder.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import yaml

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
EXPECTED = sorted(SAMPLES.rglob("*.expected.yaml"))
NONE_FOUND = "none found"

Truth = dict[str, Any]

ALWAYS: dict[str, tuple[type, ...]] = {"nproc": (int,), "exit_code": (int,), "anomaly": (bool,)}
OF_A_FAULT: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "rank": (int,),
    "ranks": (int,),
    "step": (int,),
    "phase": (str,),
    "module": (str, type(None)),
    "op": (str, type(None)),
    "file": (str, type(None)),
    "line": (int, type(None)),
    "function": (str, type(None)),
    "source": (str, type(None)),
    "cause": (str,),
    "seen_in": (str,),
}
SOMETIMES: dict[str, tuple[type, ...]] = {
    "module_class": (str, type(None)),
    "mechanism": (str, type(None)),
    "micro_step": (int,),
    "node": (str,),
    "parameter": (str,),
    "reproduced": (bool,),
    "fix": (str,),
    "says": (str,),
    "fast": (bool,),
    "needs": (str,),
    "untraced": (str,),
    "skips": (bool,),
    "options": (str,),
    "warnings": (str,),
}
PHASES = {"data", "init", "forward", "loss", "backward", "collective", "optimizer", "checkpoint"}


def name_of(path: Path) -> str:
    """Return the sample's name: folder and stem."""
    return path.relative_to(SAMPLES).as_posix().removesuffix(".expected.yaml")


@functools.cache
def truth_of(path: Path) -> Truth:
    """Read an expected file; it is shared, so leave it as it is."""
    truth: Truth = yaml.safe_load(path.read_text(encoding="utf-8"))
    return truth


def script_of(path: Path) -> Path:
    """Return the script beside an expected file."""
    return path.with_name(path.name.removesuffix(".expected.yaml") + ".py")


def is_fast(path: Path) -> bool:
    """Tell whether the tests run this sample by default."""
    return path.parent == SAMPLES or truth_of(path).get("fast", False)


def readings(truth: Truth, key: str) -> list[Any]:
    """Return the values of ``key`` that are right."""
    value = truth.get(key)
    return value if isinstance(value, list) and key != "ranks" else [value]


def missing(truth: Truth) -> list[str]:
    """Return the frameworks that the sample needs and that are not installed."""
    needs = readings(truth, "needs") if "needs" in truth else []
    return [name for name in needs if importlib.util.find_spec(name) is None]


def complaints(truth: Truth) -> list[str]:
    """Return what does not fit the schema of an expected file, a sentence each."""
    must = {**ALWAYS, **OF_A_FAULT} if truth.get("anomaly") else ALWAYS
    absent = [f"{key} is missing" for key in must if key not in truth]
    types = {**must, **SOMETIMES}
    foreign = [f"{key} is not a key here" for key in truth if key not in types]
    values = [(key, value) for key in types if key in truth for value in _flat(truth[key])]
    wrong = [f"{key} cannot be {value!r}" for key, value in values if not _is_one_of(value, types[key])]
    phases = [f"{phase} is no phase" for key, phase in values if key == "phase" and phase not in PHASES]
    links = [f"{link} is no address" for key, link in values if key == "seen_in" and not _is_link(link)]
    return absent + foreign + wrong + phases + links


def _flat(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_one_of(value: Any, types: tuple[type, ...]) -> bool:
    """Tell a bool from an int, which Python does not."""
    return isinstance(value, types) and (not isinstance(value, bool) or bool in types)


def _is_link(value: Any) -> bool:
    return value == NONE_FOUND or str(value).startswith("https://")
