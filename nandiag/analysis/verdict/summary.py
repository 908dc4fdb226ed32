"""The verdict in one sentence: what, on which rank, at which step, in which place (reader side)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nandiag.analysis.origin import Claim
from nandiag.analysis.report import Origin
from nandiag.analysis.timeline import STATE, Timeline, name_of_own
from nandiag.analysis.verdict.steady import handed_at, loaded_behind, made_behind
from nandiag.analysis.ways.carried import reduction_of
from nandiag.analysis.ways.messages import given_of
from nandiag.events import History, Looked, TensorFact, words


def summary(
    claim: Claim, origin: Origin, skipped: int = 0, history: History | None = None, apart: str | None = None
) -> str:
    """Return the verdict in one sentence, without a full stop: what, rank, step, phase, place.

    ``skipped`` updates before were left out, and the step does not count them. ``history`` shows who rests. ``apart``
    is :func:`other_kind`.
    """
    ranks, step = words.ranks(origin.ranks), _step_of_both(claim, origin, history) + _skipped(skipped)
    kind = _kind(claim, origin)
    if claim.basis == "scale":
        return f"The loss scale of GradScaler collapsed on {ranks} {step}"
    if claim.later is not None:
        again = f"and again at step {claim.later.event.step}: {_again(claim, origin)}"
        if apart is not None:
            again = f"where is not known; at step {claim.later.event.step} a loss of {apart}: {_again(claim, origin)}"
        return f"{_first_harm(claim)} on {ranks} {step}, {again}"
    if claim.basis == "loss":
        return f"{kind} {_lost(claim)} on {ranks} {step}"
    if claim.basis in {"exchange", "gradient"}:
        return (_exchange_summary if claim.basis == "exchange" else _gradient_summary)(claim, kind, step)
    look = claim.look.event if claim.look else None
    if claim.basis == "state" or (
        look is not None and (look.source in {"parameter", "buffer"} or "birth" in look.facts)
    ):
        return (_birth_summary(claim, origin) or _state_summary(claim, origin, kind)) + _skipped(skipped)
    ranks = _each_its_own(claim) or ranks
    return f"{kind} {_look_summary(look, origin, f'{ranks} {step}', claim, output=_is_output(claim))}"


def _each_its_own(claim: Claim) -> str | None:
    """Return the ranks of the place, those apart that made something else there; None where all made the same.

    What is over 0 is infinite on one rank, and 0/0 NaN on another.
    """
    made: dict[frozenset[str], list[int]] = {}
    for one in sorted(claim.alike, key=lambda one: (one is not claim.look, one.rank)):
        first = [fact for fact in one.event.outputs if fact.bad][:1]
        kinds = frozenset(kind for fact in first for kind in _KINDS if getattr(fact, _KINDS[kind]) and not fact.guessed)
        near = next((known for known in made if known & kinds or not kinds), kinds)
        made.setdefault(near, []).append(one.rank)
    if len(made) < 2 or frozenset() in made:
        return None
    (_, own), *others = made.items()
    told = ", ".join(f"{' and '.join(kind for kind in _KINDS if kind in kinds)} on {words.ranks(those)}"
                     for kinds, those in others)  # fmt: skip
    return f"{words.ranks(own)} ({told})"


_KINDS = {"NaN": "nan", "+Inf": "posinf", "-Inf": "neginf"}


def _birth_summary(claim: Claim, origin: Origin) -> str | None:
    """Return what was bad before any step used it: the kind is that of the weight itself where it is one."""
    look = claim.look.event if claim.look else None
    if look is None or "birth" not in look.facts:
        return None
    name = look.facts.get("weight")
    named = [fact for fact in origin.outputs if fact.name == name]
    if not isinstance(name, str):
        kind = words.bad_kind(origin.outputs) or "NaN"
        if "handed_on" in look.facts:
            return f"{kind} born on {words.ranks(origin.ranks)}, in {_given(look, claim)}, used at step {origin.step}"
        if look.facts.get("thread") is True:
            return f"{kind} born in another thread on {words.ranks(origin.ranks)}, used at step {origin.step}"
        handed = handed_at(look)
        used = f"{_taken(look, origin)}, used at step {origin.step}" if origin.step else ""
        when = f"at step {handed}" if handed is not None else "before the first step"
        return f"{kind} born on {words.ranks(origin.ranks)} {when}{used}"
    last = look.facts["birth"] == "last"
    held = f"{words.bad_kind(named) or 'NaN'} in {look.facts.get('weight_is') or 'parameter'} {name}"
    held = f"{held} on {words.ranks(origin.ranks)}"
    if (loaded := _when_loaded(look, origin)) is not None:
        return f"{held}{loaded}"
    when = "the first step" if origin.step == 0 or not last else f"step {origin.step}"
    used = f", used at step {origin.step}" if origin.step and not last else ""
    return f"{held} before {when}{used}"


def _taken(look: Looked, origin: Origin) -> str:
    """Return in which step before something was made of it that is bad in this one."""
    step = look.facts.get("made_at_step")
    return f", taken in at step {step}" if isinstance(step, int) and step < origin.step else ""


def _when_loaded(look: Looked, origin: Origin) -> str | None:
    """Return when a weight was loaded, or made, that was bad by then; None where that was before the first step."""
    if handed_at(look) is not None:
        return f" at step {origin.step}, of memory that was handed out at step {handed_at(look)}"
    if isinstance(look.facts.get("saved_at"), str):
        return f" at step {origin.step}, loaded from what this run saved"
    step = loaded_behind(look)
    return None if step is None else f", loaded behind the update of step {step}, used at step {origin.step}"


def _is_output(claim: Claim) -> bool:
    """Whether what is bad is what a model gave out, of which no loss was made."""
    return claim.harm is not None and claim.harm.event.what == "output"


def _look_summary(look: Looked | None, origin: Origin, where: str, claim: Claim, *, output: bool = False) -> str:
    facts = look.facts if look is not None else {}
    if look is not None and look.source == "input":
        writer = facts.get("written_in_place")
        if writer is not None:
            return f"written in place on {where} by {words.op(str(writer))}"
        name = next((fact.name for fact in origin.inputs if fact.bad and fact.name), None)
        known = "" if name is None else name if name.partition(" ")[0] == "input" else f"input {name}"
        return f"in the data of {where}" + (f": {known}" if known else "")
    if look is not None and look.method == "message":
        return f"first seen on {where} in {_given(look, claim)}"
    # A mask's -Inf may go in where NaN is born: what the look calls an op is one.
    finite = bool(origin.inputs) and not any(fact.bad for fact in origin.inputs)
    made = look is not None and look.source == "op" and bool(origin.outputs) and facts.get("brought") is not True
    born = "born" if finite or made else "first seen"
    updated = facts.get("parameters")
    if isinstance(updated, list) and updated:
        return f"{born} on {where} in the update of {words.few([str(name) for name in updated], most=1)}"
    before = facts.get("made_at_step")
    if isinstance(before, int) and before < origin.step:
        at, used = replace(origin, step=before), f"used at step {origin.step}"
        return f"{born} on {words.ranks(origin.ranks)} at step {before} in {_code(facts, at) or _place(at)}, {used}"
    place = _behind_the_model(origin) if output and (origin.module, origin.phase) == (None, "loss") else None
    follows = look is not None and facts.get("follows") is True and (origin.phase, origin.micro_step) == ("data", 0)
    if look is not None and (follows or made_behind(claim, look)) and origin.module is None:
        place = f"{_whose(origin)} between steps {origin.step} and {origin.step + 1}"
    if look is not None and "handed_on" in facts and (origin.module, origin.phase) == (None, "loss"):
        # No loss is known to be made on this rank: between forward and backward it hands something on.
        place = f"{_whose(origin)} in {_given(look, claim)}"
    return f"{born} on {where} in {_code(facts, origin) or place or _place(origin, look)}"


def _given(look: Looked, claim: Claim) -> str:
    return given_of(look, [one.event for one in claim.alike] if len(claim.ranks) > 1 else ())


def _behind_the_model(origin: Origin) -> str:
    own = (origin.function or "").isidentifier()
    return f"{origin.function}(), behind the model's call" if own else "code behind the model's call"


_PLAIN = frozenset({"list", "tuple", "dict", "range"})


def _code(facts: Mapping[str, object], origin: Origin) -> str | None:
    """Return whose code it was where that is no module's."""
    if facts.get("heard") is True:
        return "arithmetic of numpy's"
    if "dataset" in facts:
        # A list has no code of its own: what made a batch of its samples has.
        others = facts["dataset"] in _PLAIN or facts.get("together") is True
        plain = others and (origin.function or "").isidentifier()
        return f"{origin.function}(), as the batch was made" if plain else f"the code of {facts['dataset']}"
    if "comm_hook" in facts:
        return f"the communication hook {facts['comm_hook']}"
    ahead = facts.get("began_bad") and (origin.module, origin.phase) == (None, "optimizer") and origin.step
    return _between(origin) if ahead else None  # ahead of the forward, which met what it left in the weights


def _first_harm(claim: Claim) -> str:
    """Return what was bad at the first harm: the place that the origin shows was seen at a later one."""
    harm = claim.harm.event if claim.harm else None
    kind = (words.bad_kind(harm.tensors) if harm else None) or "NaN"
    return f"{kind} {_lost(claim) if claim.basis == 'loss' else 'gradients'}"


def other_kind(claim: Claim, timeline: Timeline) -> str | None:
    """Return what the loss was when harm was seen live, where it had been of another kind at the first harm.

    An infinite loss that comes to be NaN need not have broken in the place that made it NaN.
    """
    first, later = claim.harm, claim.later
    if first is None or later is None or claim.basis != "loss":
        return None
    of = [one.event for one in timeline.harms if (one.rank, one.attempt) == (later.rank, later.attempt)]
    kinds = {one.step: words.bad_kind(one.tensors) for one in reversed(of) if one.what == "loss"}
    then, kind = kinds.get(claim.step, words.bad_kind(first.event.tensors)), kinds.get(later.event.step)
    return None if kind == then else kind


def _again(claim: Claim, origin: Origin) -> str:
    """Return what was seen live when harm came again."""
    facts = [fact for fact in origin.outputs if fact.bad][:1] or [fact for fact in origin.inputs if fact.bad]
    return f"{words.bad_kind(facts) or 'NaN'} {_look_summary(claim.shown, origin, 'that rank', claim)}"


def _lost(claim: Claim) -> str:
    """Return what is bad: a loss, or in a script that trains nothing what a model gave out."""
    harm = claim.harm.event if claim.harm else None
    if harm is None or not _is_output(claim):
        return "loss"
    return f"in the {next((fact.name for fact in harm.tensors if fact.name), 'output')}"


def _kind(claim: Claim, origin: Origin) -> str:
    harm = claim.harm.event if claim.harm else None
    outputs: Sequence[TensorFact] = origin.outputs
    if claim.basis == "look":
        outputs = [fact for fact in outputs if fact.bad][:1]
    if claim.basis == "look" and claim.shown is not None and origin.outputs_are != "output":
        return _kind_by_numpy(words.by_numpy(claim.shown.facts, outputs), words.bad_kind(outputs))
    # What came from another rank is shown with the line that used it, and need not be what became of the loss.
    guessed = any(fact.guessed for fact in origin.outputs)  # then what the update left is all that was seen
    lost = words.bad_kind(harm.tensors) if harm is not None and (claim.basis == "loss" or guessed) else None
    seen = (
        lost
        or words.made_kind(outputs, origin.inputs)
        or words.bad_kind(origin.inputs)
        or words.bad_value(harm.loss if harm else None)
    )
    return seen or ("Inf" if origin.kind == "inf" else "NaN")


def _step(claim: Claim, origin: Origin) -> str:
    harm = claim.harm.event if claim.harm is not None else None
    several = harm is not None and harm.what == "loss" and harm.total > 1  # of one alone there is no more to say
    micro = f", micro-step {origin.micro_step}" if origin.micro_step or (several and origin.micro_step == 0) else ""
    # An update that was made counts in the optimizer's own state already.
    resumed = origin.global_step is not None and origin.global_step > origin.step + 1
    return f"at step {origin.step}" + (f" (global step {origin.global_step})" if resumed else "") + micro


_RESTS = 8


def _step_of_both(claim: Claim, origin: Origin, history: History | None) -> str:
    """Return the step, and which it is by the count of the optimizer itself, where another one counts.

    Its own is told first where the other one has made no step for long: it was of a phase before.
    """
    step, own = _step(claim, origin), own_of(claim)
    if own is None:
        return step
    newest = () if history is None else tuple(zip(history.step, history.optimizer, strict=False))[-_RESTS:]
    if len(newest) == _RESTS and set(newest) == {(origin.step, newest[-1][1])}:
        at = f"at step {origin.step}"
        return step.replace(at, f"at step {own[1]} of {own[0]} (step {origin.step} of the run)", 1)
    return f"{step} (step {own[1]} of {own[0]})"


def own_of(claim: Claim) -> tuple[str, int] | None:
    """Return what the optimizer of the harm is called, and how many updates it had made, where another is ahead."""
    harm = claim.harm.event if claim.harm is not None else None
    name = None if harm is None else name_of_own(harm)
    return None if harm is None or harm.own_step is None or name is None else (name, harm.own_step)


def _skipped(amount: int) -> str:
    were = "was" if amount == 1 else "were"
    return f" ({words.count(amount, 'update')} {were} skipped before)" if amount > 0 else ""


def _place(origin: Origin, look: Looked | None = None) -> str:
    phase = origin.phase or "forward"
    if origin.module is None and origin.op is None and origin.node is not None:
        return f"{phase}, {origin.node}"
    if origin.module is None and phase == "backward":
        return _in_backward(origin)
    if origin.module is None:
        return _outside(origin, phase, look.site.owner if look and look.site else None)
    name = words.module(origin.module, origin.module_class)
    return f"{phase} of {name or origin.module_class or 'the root module'}"


def _outside(origin: Origin, phase: str, owner: str | None) -> str:
    """Return the script's own function and when it ran, where no module was at work."""
    if phase == "loss":
        return "the loss code"
    if phase == "init" and origin.micro_step:  # it wrote weights behind a backward, and no optimizer had stepped
        return f"{_whose(origin)} before the model's call"
    if phase not in {"data", "optimizer"}:
        return f"{phase}, {f'in {origin.function}() of {owner}' if owner else 'outside all modules'}"
    whose = _whose(origin)
    if phase == "optimizer":
        return f"{whose} around the optimizer's step"
    if origin.step == 0 or origin.micro_step:
        return f"{whose} before the model's call"
    return _between(origin)


def _between(origin: Origin) -> str:
    return f"{_whose(origin)} between steps {origin.step - 1} and {origin.step}"


def _whose(origin: Origin) -> str:
    return f"{origin.function}()," if (origin.function or "").isidentifier() else "code"


def _in_backward(origin: Origin) -> str:
    if origin.node is None and "backward(" in (origin.source or "")[slice(*(origin.column or (0, 0)))]:
        return "what follows on the gradients at the end of backward()"
    if origin.node is None:
        return "code between backward() and the step"
    if origin.node == words.HOOK:
        return "a full backward hook"
    own = words.own_function(origin.node)
    return f"the backward of {own}" if own is not None else "backward, outside all modules"


def _exchange_summary(claim: Claim, kind: str, step: str) -> str:
    name = claim.look.event.facts.get("collective") if claim.look else None
    by = f" ({name})" if isinstance(name, str) and name else ""
    if claim.confidence == "reproduced" and claim.look is not None:
        kind_of = claim.look.event.facts.get("carried_by") or "a collective"
        return f"{kind} born in the {kind_of} of {words.ranks(claim.ranks)} {step}"
    if claim.confidence == "observed" and claim.look is not None:
        return (
            f"{kind} born in the {reduction_of(claim.look.event)} of {words.ranks(claim.ranks)} {_since(claim, step)}"
        )
    if claim.received:
        return f"{kind} gradients {step}: those of {words.ranks(claim.ranks)} were too large for their exchange{by}"
    looked = set(claim.ranks) - set(claim.unseen)
    there = "" if not claim.unseen else " there" if looked == set(claim.ranks) else f" on {words.ranks(looked)}"
    return f"{kind} gradients {step} on {words.ranks(claim.ranks)}, finite{there} before their exchange{by}"


def _since(claim: Claim, step: str) -> str:
    """Return the step of an exchange, and that of the harm where what it made was kept until then."""
    made = claim.look.event.facts.get("exchanged_at_step") if claim.look is not None else None
    return f"at step {made}, used {step}" if isinstance(made, int) and made < claim.step else step


def _gradient_summary(claim: Claim, kind: str, step: str) -> str:
    ranks = words.ranks(claim.ranks)
    if claim.known:
        deduced = claim.confidence == "inferred"
        return f"{kind} gradients {step} that came from {ranks}" if deduced else f"{kind} gradients on {ranks} {step}"
    return f"{kind} gradients on {ranks} {step}; which rank made them is not known"


def _state_summary(claim: Claim, origin: Origin, kind: str) -> str:
    harm = claim.harm.event if claim.harm else None
    source = claim.look.event.source if claim.look and claim.basis == "look" else None
    what = source or (harm.what if harm else "parameter")
    what = {"frozen": "untrained parameter", "optimizer_state": "optimizer state"}.get(what, what)
    bad = [fact.name for fact in origin.inputs if fact.bad and fact.name]
    total = max(len(bad), harm.bad if harm and harm.what in STATE else 0)
    name = f"{what} {bad[0]}" + (f" and {total - 1} more" if total > 1 else "") if bad else f"a {what}"
    ranks = words.ranks(origin.ranks)
    if origin.phase in {"init", "checkpoint"}:
        when = "before the first step" if origin.step == 0 else f"before step {origin.step}"
        return f"{kind} in {name} on {ranks} {when}"
    if origin.phase == "optimizer" and harm is not None and harm.behind and harm.replays:
        return (
            f"{kind} in {name} on {ranks}, behind the update of step {origin.step - 1}, when a CUDA graph was replayed"
        )
    if origin.phase == "optimizer" and harm is not None and harm.behind:
        return f"{kind} in {name} on {ranks}, written behind the update of step {origin.step - 1}"
    if origin.phase == "optimizer" and claim.look is not None and "between_evaluations" in claim.look.event.facts:
        return f"{kind} in {name} on {ranks} within the update of step {origin.step}"
    if origin.phase == "optimizer":
        return f"{kind} in {name} on {ranks} after the update of step {origin.step}"
    return f"{kind} in {name} on {ranks} {_step(claim, origin)}"


def _kind_by_numpy(made: str | None, came: str | None) -> str:
    """Return what numpy says that it made; where it does not know the sign, that of the infinity that came of it."""
    signed = made == "Inf" and came is not None and came.endswith("Inf") and "NaN" not in came
    return (came if signed else made) or came or "NaN"
