"""Values that no arithmetic made: a fault that did not show again, or a sum that its summands cannot give (reader).

The same step on the same device and the same inputs gives the same bits, so that what does not come back was transient.
That leaves the hardware, a race, and memory that nobody wrote; only a second strike of the same device narrows it down.
"""

from __future__ import annotations

from nandiag.analysis.causes.collective_overflow import is_too_large
from nandiag.analysis.causes.facts import LIKELY, POSSIBLE, Cause, Facts, is_again, is_whole
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import words

_STATE = Suggestion(
    "State that a second run cannot put back (a counter or a generator of the script's own) looks the same: watch "
    "every op as it runs.",
    "nandiag run --level op",
)
_OF_GPU = Suggestion(
    "Check the memory of the device: ECC counts and remapped rows of a GPU, EDAC messages of a host.",
    "nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg | grep -i 'edac\\|mce\\|xid'",
)
_OF_HOST = Suggestion(
    "Check the memory of the host: what its kernel says of it, then a memory test.",
    "dmesg | grep -i 'edac\\|mce\\|hardware error'",
)
_RACE = Suggestion("A race, or memory that nobody wrote, looks the same where it is another device each time.")
EXPLAIN = Explanation(
    slug="hardware_corruption",
    what="Bad values that the same step, run again on the same device and inputs, did not make, or a sum over ranks "
    "that its finite summands cannot give. Memory and links lose bits now and then; a device that does so twice is "
    "ill.",
    fix=(Suggestion("Run the same job without the device that the report names."), _OF_GPU, _RACE),
    pages=("notes/randomness.html", "distributed.html"),
)


def explain(facts: Facts) -> Cause | None:
    """Name the device where running the step again was finite, or where finite values cannot add up to what came."""
    if facts.basis == "exchange":
        return _link(facts)
    look = facts.look
    if look is not None and "under_way" in look.facts:
        return None  # what was read while others still wrote there need not come again
    if facts.basis == "state":
        return _weight(facts)
    transient = look is not None and look.method == "replay" and is_again(look) and is_whole(look)
    if facts.basis not in {"loss", "gradient"} or not transient or not facts.known or len(facts.origin.ranks) > 1:
        return None
    place = f"{facts.origin.device or 'the device'} of {facts.origin.host or 'its host'}"
    again = len(facts.strikes) > 1
    text = f"it did not show a second time on the same device: {place}, {words.ranks(facts.origin.ranks)}"
    steps = ", ".join(str(step) for step in facts.strikes)
    return Cause(
        slug="hardware_corruption" if again else "unknown",  # once, a script's own state can do it as well
        evidence=(
            text,
            *((f"{place} struck {len(facts.strikes)} times in this run, at steps {steps}",) if again else ()),
        ),
        suggestions=(
            *(() if again else (_STATE,)),
            *_checks(facts, place),
        ),
        strength=LIKELY if again else POSSIBLE,
    )


def _weight(facts: Facts) -> Cause | None:
    """A weight of one rank of several that went bad after an update which, made again, is finite."""
    look, harm = facts.look, facts.harm
    again = look is not None and (look.outcome, look.method, look.phase) == ("finite", "replay", "optimizer")
    alone = len(facts.origin.ranks) == 1 and facts.world > 1
    if look is None or not (again and is_whole(look)) or not alone or harm is None or harm.since is None:
        return None
    place = f"{facts.origin.device or 'the device'} of {facts.origin.host or 'its host'}"
    return Cause(
        slug="hardware_corruption",
        evidence=(f"only {words.ranks(facts.origin.ranks)} has it, and its update, made again, is finite: {place}",),
        suggestions=_checks(facts, place),
        strength=POSSIBLE,
    )


def _link(facts: Facts) -> Cause | None:
    """A reduction that all ranks made again: what they put in is known, and in which dtype."""
    dtype = facts.look.facts.get("sent_dtype") if facts.look is not None else None
    if not isinstance(dtype, str) or len(facts.exchanged) < facts.world or is_too_large(facts):
        return None
    largest = words.number(max(facts.exchanged.values()))
    return Cause(
        slug="hardware_corruption",
        evidence=(f"{facts.world} ranks put in {dtype} of at most {largest}: that cannot add up to what came out",),
        suggestions=(
            Suggestion(f"Look at the devices and links of {words.ranks(facts.origin.ranks)}; run without them."),
            _OF_HOST if _is_cpu(facts) else _OF_GPU,
            _RACE,
        ),
        strength=LIKELY,
    )


def _checks(facts: Facts, place: str) -> tuple[Suggestion, ...]:
    """Say what to run without, and how to ask the device for errors of its memory."""
    if _is_cpu(facts):
        return Suggestion(f"Run the same job on another host: this was {place}."), _OF_HOST, _RACE
    return Suggestion(f"Run the same job without this device: {place}."), _OF_GPU, _RACE


def _is_cpu(facts: Facts) -> bool:
    return (facts.origin.device or "").partition(":")[0] == "cpu"
