"""What of a command line and an environment may be written down: nothing that looks like a secret (launcher)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

HIDDEN = "***"

_NAME = re.compile(r"(?P<name>-{0,2}\+{0,2}[A-Za-z_][\w.\-]*)(?P<sign>[=:])(?P<value>.+)", re.DOTALL)
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ALWAYS = frozenset({
    "password", "passwd", "passphrase", "pwd", "pw", "secret", "secrets", "credential", "credentials", "apikey",
    "authtoken", "accesskey", "secretkey", "privatekey", "bearer", "auth", "authorization", "cookie", "dsn", "pat",
})  # fmt: skip
# "token" and "key" are everyday words of training scripts too: tokens are counted and padded, data has keys.
_HARMLESS_TOKEN = frozenset(
    {"bos", "cls", "end", "eos", "image", "mask", "pad", "per", "sep", "special", "start", "unk"}
)
_KEYS = frozenset({
    "access", "account", "api", "auth", "comet", "deploy", "encryption", "license", "neptune", "private", "secret",
    "service", "signing", "ssh", "storage", "wandb",
})  # fmt: skip
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[\w\-]{16,}|hf_\w{16,}|gh[oprsu]_\w{20,}|github_pat_\w{20,}|glpat-[\w\-]{16,}|xox[a-z]-[\w\-]{10,}|npm_\w{20,}"
    r"|A[KS]IA[A-Z0-9]{12,}|AIza[\w\-]{30,}|ya29\.[\w\-]{20,}|eyJ[\w\-]{10,}\.[\w\-]{10,}(?:\.[\w\-]*)?"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*"
    r")",
    re.DOTALL,
)
_ADDRESS = re.compile(r"(?P<scheme>\b[A-Za-z][\w+.\-]*://)(?P<who>[^\s/@]+)@")
_QUERY = re.compile(r"(?P<name>[?&;][\w.\-]*(?:sig|signature|token|key|secret|password)=)[^&\s]+", re.IGNORECASE)
_HEADER = re.compile(r"\b(?P<kind>bearer|basic)\s+\S+", re.IGNORECASE)


def words(command: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command line; a value that looks like a secret is ``***``."""
    shown: list[str] = []
    hide = False
    for word in command:
        # The value of an option like --password stands behind it, unless another option does.
        shown.append(HIDDEN if hide and not _is_option(word) else text(word))
        hide = _is_option(word) and "=" not in word and is_secret(word)
    return tuple(shown)


def text(word: str) -> str:
    """Return one word with what looks like a secret in it hidden."""
    match = _NAME.fullmatch(word)
    if match is not None and is_secret(match["name"]) and not match["value"].startswith("//"):
        return f"{match['name']}{match['sign']}{HIDDEN}"
    word = _ADDRESS.sub(rf"\g<scheme>{HIDDEN}@", word)
    word = _QUERY.sub(rf"\g<name>{HIDDEN}", word)
    return _SHAPES.sub(HIDDEN, _HEADER.sub(rf"\g<kind> {HIDDEN}", word))


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables that are chosen to be written down, with what looks like a secret among them hidden."""
    return {name: HIDDEN if is_secret(name) else text(value) for name, value in variables.items()}


def is_secret(name: str) -> bool:
    """Whether what goes by this name is one: ``--wandb-key``, ``HF_TOKEN``, ``db.password``; not ``--pad-token``."""
    parts = [part.lower() for part in _PARTS.findall(name)]
    if not parts:
        return False
    *before, last = parts
    if _ALWAYS & set(parts):
        return True
    if last == "token":
        return not _HARMLESS_TOKEN & set(before)
    return last in {"key", "keys"} and (not before or bool(_KEYS & set(before)))


def _is_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not word[1:2].isdigit()
