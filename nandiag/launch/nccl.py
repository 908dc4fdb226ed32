"""The debug environment of NCCL and c10d as presets that never override what the user set (launcher)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

_LIGHT = {"NCCL_DEBUG": "WARN", "NCCL_WARN_ENABLE_DEBUG_INFO": "1"}
_FULL = {
    "NCCL_DEBUG": "INFO",
    "NCCL_WARN_ENABLE_DEBUG_INFO": "1",
    "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET,GRAPH",
    "TORCH_NCCL_DESYNC_DEBUG": "1",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
}
_DUMP = "TORCH_FR_DUMP_TEMP_FILE"
_DUMP_BEFORE_2_9 = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
_NAN_CHECK = "TORCH_DIST_NAN_CHECK"
_NAN_CHECK_OF_NCCL = "TORCH_NCCL_NAN_CHECK"
_ALIASES = {_DUMP: (_DUMP_BEFORE_2_9,), _DUMP_BEFORE_2_9: (_DUMP,), "TORCH_NCCL_DESYNC_DEBUG": ("NCCL_DESYNC_DEBUG",)}
_FILES = ("~/.nccl.conf", "/etc/nccl.conf")
_DEVICES = Path("/dev")


def any_gpu() -> bool:
    """Whether the kernel shows a GPU that NCCL or its twin for AMD could use; nothing is loaded to find out."""
    return any(any(_DEVICES.glob(pattern)) for pattern in ("nvidia[0-9]*", "dxg", "kfd"))


def preset(name: str, folder: Path, environ: Mapping[str, str], torch: str | None) -> dict[str, str]:
    """Return the variables that preset ``name`` (off, light or full) adds; its files go into ``folder``.

    ``environ`` is the user's environment, ``torch`` the version of torch, None when it is not known.
    """
    if name == "off":
        return {}
    known = set(environ) | _in_files(environ)
    wanted = dict(_LIGHT if name == "light" else _FULL)
    if "NCCL_DEBUG" not in known:
        # Where the user asked NCCL to speak, it speaks where he expects it: on stdout.
        wanted["NCCL_DEBUG_FILE"] = str(folder / "%h.%p.log")
    wanted[_dump_variable(torch)] = str(folder / "flight_recorder_rank_")
    return {key: value for key, value in wanted.items() if known.isdisjoint({key, *_ALIASES.get(key, ())})}


def nan_check(choice: str, environ: Mapping[str, str], torch: str | None) -> dict[str, str]:
    """Return the variables that have torch check what collectives send for NaN; none unless the user asked for it.

    Since 2.14 one variable serves every backend (by hooks of the process group); before, NCCL alone has a check.
    """
    name = _NAN_CHECK if _at_least(torch, (2, 14)) else _NAN_CHECK_OF_NCCL
    known = {_NAN_CHECK, _NAN_CHECK_OF_NCCL} & set(environ)
    return {} if choice == "off" or known else {name: "1"}


def torch_version() -> str | None:
    """Return the version of the installed torch without importing it."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _dump_variable(torch: str | None) -> str:
    """Return the name this torch reads; newer ones warn about the old name."""
    return _DUMP if _at_least(torch, (2, 9)) else _DUMP_BEFORE_2_9


def _at_least(torch: str | None, version: tuple[int, int]) -> bool:
    """Whether torch is of this version or newer, as one whose version is not known is taken to be."""
    try:
        major, minor = (int(part) for part in (torch or "").split(".")[:2])
    except ValueError:
        return True
    return (major, minor) >= version


def _in_files(environ: Mapping[str, str]) -> set[str]:
    """Return the names that NCCL's own configuration files set; the environment would win over these."""
    places = [environ["NCCL_CONF_FILE"]] if environ.get("NCCL_CONF_FILE") else list(_FILES)
    found: set[str] = set()
    for place in places:
        try:
            text = Path(place).expanduser().read_text(encoding="utf-8", errors="replace")
        except (OSError, RuntimeError):
            continue
        found |= {line.partition("=")[0].strip() for line in text.splitlines() if "=" in line and line[0] != "#"}
    return found
