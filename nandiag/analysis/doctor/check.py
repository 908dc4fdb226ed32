"""One check of ``nandiag doctor`` and all of them together (launcher; pure)."""

from __future__ import annotations

from dataclasses import dataclass, field

from nandiag.store.doctor import SelfTest

OK, WARNING, WRONG, SKIPPED = "ok", "warning", "wrong", "skipped"
STATES = (OK, WARNING, WRONG, SKIPPED)


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, what was seen, and the mend: one sentence, ``None`` where there is nothing to mend.

    ``state`` is ok, warning (works, but not as it could), wrong, or skipped (``seen`` says why).
    """

    name: str
    state: str
    seen: str
    mend: str | None = None


@dataclass(frozen=True, slots=True)
class Doctor:
    """All checks. ``facts`` are short lines on the installation, for a bug report; ``hosts`` those of the self-test.

    ``selftest`` is what each rank measured, ``None`` where it did not come to an end.
    """

    checks: tuple[Check, ...]
    facts: dict[str, str] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    selftest: SelfTest | None = None

    @property
    def wrong(self) -> bool:
        """Whether anything is wrong."""
        return any(check.state == WRONG for check in self.checks)
