"""How a look came by what it shows, in a sentence each (reader side)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nandiag.analysis.verdict.steady import loaded_behind
from nandiag.events import Looked, words


def look_facts(look: Looked | None) -> Iterable[str]:
    """Yield what is known beside the origin of how ``look`` came by it, and of where the values went or came from."""
    if look is None:
        return
    facts = look.facts
    yield from _how_seen(look)
    yield from _by_which_way(look)
    yield from _round_library(facts)
    yield from _elsewhere(facts)
    yield from _taken(look)
    yield from _heard_also(look)
    if isinstance(facts.get("came_in"), str):
        bad = sum(one.nan + one.posinf + one.neginf for one in look.inputs or look.outputs)
        yield f"{'It' if bad == 1 else 'They'} came into torch at {facts['came_in']}."
    if facts.get("recompute") is True:
        yield "It was seen in the recomputation of an activation checkpoint."
    if isinstance(kept := facts.get("kept_bad"), list) and kept:
        at = ", ".join(words.file_name(one) for one in kept)
        yield f"What is written at {at} stays from turn to turn, and is bad since: so is what later turns make of it."
    if isinstance(facts.get("written_in_place"), str):
        by = facts["written_in_place"]
        yield "The memory was given by .data = ..." if by == ".data" else f"The values were written in place by {by}."
    if isinstance(facts.get("came_as"), str):
        yield f"It came to this step as {facts['came_as']}."
    yield from _unsaid(facts)
    if look.source == "outside" and facts.get("complete", True) is False:
        yield "Not all of the script's code before that could be run again."


def _unsaid(facts: Mapping[str, object]) -> Iterable[str]:
    if isinstance(unsaid := facts.get("unsaid"), list) and unsaid:
        own = ", ".join(map(str, unsaid))
        yield f"It was read as the step left it: {own} ran in the step, and may have written it later than that line."


def _round_library(facts: Mapping[str, object]) -> Iterable[str]:
    if isinstance(facts.get("library"), str):
        yield f"The op runs inside a library, at {facts['library']}."
    if isinstance(facts.get("called_at"), str):
        yield f"The script comes to this line of a library from {facts['called_at']}."


def _elsewhere(facts: Mapping[str, object]) -> Iterable[str]:
    if facts.get("bad_elsewhere") is True:
        yield "What is not finite in the input shown lies at other indices: nothing bad came of it here."


def _taken(look: Looked) -> Iterable[str]:
    """Yield where, in a step before, something was made of it that was kept, and is bad since."""
    at, step, used = look.facts.get("taken_at"), look.facts.get("made_at_step"), look.step
    if isinstance(at, list) and isinstance(step, int) and step < used:
        took = f"{words.place(at)} took it in at step {step}"
        yield f"{took}, and what was kept of that is bad when it is used at step {used}."


def _heard_also(look: Looked) -> Iterable[str]:
    also, only = look.facts.get("heard_also"), look.facts.get("heard_only")
    if isinstance(also, list) and also:
        yield f"numpy complained of {', '.join(map(str, also))} as well: which of these made it is not known."
    if isinstance(only, list) and len(only) == len(("line", "said", "when")):
        why = "and the text leads from there to here" if look.facts.get("heard_led") is True else "and nowhere else"
        taken = look.site is not None and words.op(look.site.op or "") == "lift_fresh"
        what = "the number" if look.source == "op" and not taken else "they"
        yield f"numpy complained at {only[0]}, {only[2]} ({only[1]}), {why}: {what} may come from there."


def _recorded(look: Looked) -> Iterable[str]:
    facts = look.facts
    if isinstance(facts.get("saved_at"), str):
        yield from _saved(facts)
        return
    if loaded_behind(look) is not None:
        yield "Seen as it was loaded: what the script reads from files is looked at."
        return
    within = facts.get("thread") is True
    before = "any step of that rank" if "handed_on" in facts else "its first step"
    what = "another thread of the script made" if within else f"the script wrote before {before}"
    yield f"Seen as it ran: what {what} was looked at."
    if facts.get("stood_in") is True:
        yield "It wrote over its own input: where that is bad now, the input shown has numbers of its size instead."


def _saved(facts: Mapping[str, object]) -> Iterable[str]:
    """Tell which file it lay in, who saved that, and who loaded it."""
    step = facts.get("saved_step")
    when = f", behind the update of step {step - 1}" if isinstance(step, int) and step else ""
    yield f"It was bad already when {facts.get('file')} was saved at {facts['saved_at']}{when}."
    yield f"{facts.get('file')} was loaded at {facts.get('loaded_at')}."
    if facts.get("birth") == "op":
        yield "What was saved was made again, and showed it."


def _by_which_way(look: Looked) -> Iterable[str]:
    if look.facts.get("gave_before") is True:
        yield "It gave this to other ranks before in that step: that what it gave then came of it is inferred."
    if look.facts.get("only_way") is True:
        since = look.facts.get("only_since")
        when = f"in the {since} steps before" if isinstance(since, int) else "in this step"
        yield f"No other rank handed on anything bad {when}: that the harm came by this way is inferred."


def _how_seen(look: Looked) -> Iterable[str]:
    if look.method == "watch":
        yield from _watched(look)
    elif look.method == "record":
        yield from _recorded(look)
    elif look.method == "message":
        yield from _sent(look)
    elif look.method == "check":
        yield "torch's own NaN check (anomaly mode) stopped there: the first NaN of that backward on this rank."
    if look.facts.get("broken_off") is True:
        yield "It was run again as far as the model's first collective, for this rank alone ended in it."
    if look.facts.get("reconstructed") is True:
        yield from _reconstructed(look)
    elif look.method == "tape" and look.reason:
        yield f"Inferred: {look.reason}."


def _reconstructed(look: Looked) -> Iterable[str]:
    facts = look.facts
    if facts.get("forgot") is True:
        yield "Inferred: the step was run again without what the script had kept of it, and that was computed anew."
        return
    if facts.get("split") is True:
        yield "Inferred: the step was run on a copy of what the model keeps, which the script reaches otherwise too."
        return
    if facts.get("own_gradients") is True:
        yield "Inferred: it was run again on this rank's own gradients, in place of those that the ranks exchanged."
    else:
        what = "update was made" if facts.get("parameters") else "step was run"
        yield f"Inferred: the {what} again on reconstructed inputs, for it had overwritten the real ones."
    if facts.get("without_peers") == "zeros":
        yield "It was made by this rank alone, and breaks so only where what other ranks put in is 0 as well."
    elif facts.get("without_peers") == "any":
        yield "It was made by this rank alone, and breaks so whatever other ranks put into its collectives."
    yield from _on_what(look)


def _on_what(look: Looked) -> Iterable[str]:
    """Yield what stands there for the weights, or for what the optimizer kept, in an update that was made again."""
    facts = look.facts
    zeros = facts.get("began_of_zeros")
    if isinstance(zeros, list) and zeros:
        yield f"What the optimizer kept as {words.few(list(map(str, zeros)), most=4)} held zeros before that update."
    if facts.get("of_zeros") is True:
        yield "It fails so where the weights were 0 before; on other values it was finite."
    if facts.get("gradients_of_zeros") is True:
        yield "It left its own gradients bad, and fails so where they were 0 before; on what is left it is finite."
    if facts.get("gradients_unknown") is True:
        yield "It left its own gradients bad; what they held before is not known."
    if isinstance(facts.get("made_up"), float) and look.inputs:
        guess = words.number(words.as_number(facts["made_up"]))
        yield f"No finite weight was left to make it again from: {guess} was taken for each."


_FINITE = "run again, the step is finite on this rank; "


def _sent(look: Looked) -> Iterable[str]:
    finite, _, rest = (look.reason or "").partition(_FINITE)
    why = f" could not be run again: {look.reason}" if look.reason else " was not run again"
    if not finite and rest:
        why = f" was not among what was run again: {rest}"
    yield f"Seen when it was sent; what made it{why}."
    if look.facts.get("by_object") is True:
        yield "That this number is the one that did harm is inferred."


def _watched(look: Looked) -> Iterable[str]:
    """Yield that it was seen as it happened, and where the bad values went from there."""
    after = look.facts.get("bad_modules")
    if isinstance(after, list) and after:
        names = [str(name) or "the root module" for name in after]
        yield f"From there they went through {words.few(names, most=4)}."
    if look.facts.get("level") == "module":
        yield "Seen as it happened, between modules: which op of this module did it was not watched."
    else:
        yield "Seen as it happened: every op was watched."
