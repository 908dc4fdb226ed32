"""Choosing the origin: which rank, step and phase first did harm, and how surely that is known (reader side).

At the earliest harmful step a rank that found the place by a second look comes first, then a weight or buffer that was
bad before any loss or gradient, then a loss that is bad on some ranks, then gradients. In data-parallel training the
gradients of every rank are bad after the all-reduce, so that gradients alone never single out a rank. Where each
rank's own gradients are finite when the step is run again and an exchange lies between them and the update, that is it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from nandiag.analysis.causes.collective_overflow import limit_of
from nandiag.analysis.causes.facts import is_again, is_whole
from nandiag.analysis.report import RankState
from nandiag.analysis.timeline import (
    STARTS,
    STATE,
    Seen,
    Timeline,
    confidence_of,
    harm_moment,
    look_moment,
    phase_of,
)
from nandiag.analysis.ways.begun import are_sent_by_all, is_held_too, is_sent_too
from nandiag.analysis.ways.carried import came_before, carried, is_at, number_of, of_finite, of_halves, sent_through
from nandiag.events import Harm, Looked, Skipped, words

_GIVEN = frozenset({"arg0", "arg1", "arg2", "arg3", "value", "alpha", "other", "min", "max"})


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim that the origin is here. ``basis``: look, state, loss, exchange, gradient or scale.

    ``known`` is false where the ranks are all those that show the harm, and which of them made it cannot be told.
    ``received`` are ranks whose own run of the step was finite. ``world`` counts the ranks of the step; ``exchanged``
    are the largest local gradients, by rank, where the exchange of gradients is the origin. ``later`` is what was seen
    live when harm came again, where the step itself could not be explained. ``alike`` are the looks of all its ranks,
    where they found the same place. ``unseen`` are the ranks that did not look where an exchange is the origin.
    """

    basis: str
    ranks: tuple[int, ...]
    attempt: int
    step: int
    confidence: str
    known: bool = True
    harm: Seen[Harm] | None = None
    look: Seen[Looked] | None = None
    skip: Seen[Skipped] | None = None
    received: tuple[int, ...] = ()
    others: tuple[Seen[Looked], ...] = ()
    world: int = 1
    exchanged: dict[int, float] = field(default_factory=dict)
    later: Seen[Looked] | None = None
    alike: tuple[Seen[Looked], ...] = ()
    unseen: tuple[int, ...] = ()

    @property
    def shown(self) -> Looked | None:
        """The look that shows the place: that of this step, or of a later one where ops were watched by then."""
        if self.later is not None:
            return self.later.event
        if self.look is None:
            return None
        # Of a loss that could not be run again the line is known on which the script asked of it.
        asked = self.basis == "loss" and self.harm is not None and self.harm.rank == self.look.rank
        return self.look.event if self.basis in {"look", "exchange"} or (asked and self.look.event.site) else None


@dataclass(frozen=True, slots=True)
class Scene:
    """What was seen in the earliest harmful step. ``present`` ranks took part in it, ``absent`` ones left no word."""

    attempt: int
    step: int
    harms: tuple[Seen[Harm], ...]
    looks: tuple[Seen[Looked], ...]
    present: frozenset[int]
    absent: frozenset[int]

    @property
    def received(self) -> frozenset[int]:
        """Ranks whose own run of the step was finite, and whose own loss was too.

        A look at modules alone does not see backward: it counts only where another rank is known to have a fault.
        """
        bad_loss = {one.rank for one in self.harms if one.event.what == "loss"}
        fault = bool(bad_loss) or any(one.event.outcome == "found" for one in self.looks)
        clean = {
            one.rank
            for one in self.looks
            if is_again(one.event) and one.rank not in bad_loss
            if fault or (one.event.method != "modules" and is_whole(one.event))
        }
        own = any(_is_own(one.event) for one in self.looks)
        return frozenset(clean | {one.rank for one in self.looks if _is_received(one.event, own=own)})


def _is_own(look: Looked) -> bool:
    """Whether a look found an origin, and not with infinities that another rank had sent (``fed``).

    Nor one that may be there for want of what other ranks had put into the gradients, or only where that was 0.
    """
    facts = look.facts
    hangs = facts.get("fed") or facts.get("own_gradients") is True or facts.get("without_peers") == "zeros"
    return look.outcome == "found" and look.source != "received" and not hangs


def _is_received(look: Looked, *, own: bool) -> bool:
    """Whether a rank only went on with what it was sent; ``own``: some rank has an origin of its own."""
    return look.source == "received" or (own and look.outcome == "found" and look.facts.get("fed") is True)


def choose(timeline: Timeline, states: dict[int, RankState]) -> Claim | None:
    """Return the best founded claim at the earliest harmful step, or ``None`` when no harm was seen."""
    scene = _scene(timeline, states)
    fallen = timeline.collapse()
    if fallen is not None and (scene is None or (fallen.attempt, fallen.event.step) < (scene.attempt, scene.step)):
        return _by_scale(fallen, timeline)
    if scene is None:
        return None
    rules: tuple[Callable[[Scene], Claim | None], ...]
    rules = (_by_halves, _by_look, _by_state, _by_reduction, _by_loss, _by_exchange, _by_gradient)
    claim = next((claim for rule in rules if (claim := rule(scene)) is not None), None)
    return None if claim is None else _with_later(claim, timeline)


def _with_later(claim: Claim, timeline: Timeline) -> Claim:
    """Add what was seen live at the next harm, where running the first harmful step again showed nothing."""
    if claim.basis not in {"loss", "gradient"}:
        return claim
    looks = (one for one in timeline.looks if _is_later(claim, one))
    later = next((one for one in looks if not _is_consequence(claim, one, timeline)), None)
    if later is None or claim.known:
        return replace(claim, later=later)
    return replace(claim, later=later, ranks=(later.rank,), known=True, confidence="inferred")


def _is_later(claim: Claim, one: Seen[Looked]) -> bool:
    live = (one.event.method, one.event.outcome) == ("watch", "found") and one.event.source != "received"
    return live and one.rank in claim.ranks and (one.attempt, one.event.step) > (claim.attempt, claim.step)


def _is_consequence(claim: Claim, one: Seen[Looked], timeline: Timeline) -> bool:
    """Whether a look shows weights that went bad in the step of the claim, or since: they tell nothing of its cause."""
    spoilt = (
        harm for harm in timeline.harms
        if harm.event.what == "parameter" and (harm.rank, harm.attempt) == (one.rank, claim.attempt)
    )  # fmt: skip
    return one.event.source == "parameter" and any(harm.event.step >= claim.step for harm in spoilt)


def _scene(timeline: Timeline, states: dict[int, RankState]) -> Scene | None:
    found = [look_moment(one) for one in timeline.looks if one.event.outcome == "found"]
    moments = [harm_moment(one) for one in timeline.harms] + found
    if not moments:
        return None
    attempt, step = min(moments)[:2]
    harms = tuple(one for one in timeline.harms if (one.attempt, one.event.step) == (attempt, step))
    looks = tuple(one for one in timeline.looks if (one.attempt, one.event.step) == (attempt, step))
    spoke = {one.rank for one in harms} | {one.rank for one in looks}
    present = spoke | {rank for rank, state in states.items() if _reached(state, attempt, step)}
    return Scene(attempt, step, harms, looks, frozenset(present), frozenset(states) - present)


def _reached(state: RankState, attempt: int, step: int) -> bool:
    return state.attached and (state.attempt, -1 if state.last_step is None else state.last_step) >= (attempt, step)


def _by_look(scene: Scene) -> Claim | None:
    found = [one for one in scene.looks if one.event.outcome == "found" and one.event.source != "received"]
    found = [one for one in found if _is_own(one.event)] or found
    if not are_sent_by_all(found, scene.looks):
        found = [one for one in found if not one.event.facts.get("sent") or _was_received(one, scene)]
    found = [one for one in found if not (is_held_too(one, scene.looks) or is_sent_too(one, scene.looks))]
    found = [one for one in found if not _is_shown_better(one, scene.looks)]
    if not found:
        return None
    able = [one for one in found if not is_given(one.event)] or found
    best = min(able, key=lambda one: (look_moment(one), one.rank))
    same = [one for one in found if _place(one) == _place(best) and look_moment(one) == look_moment(best)]
    ranks = tuple(sorted({one.rank for one in same}))
    return Claim(
        basis="look",
        ranks=ranks,
        attempt=scene.attempt,
        step=scene.step,
        confidence=confidence_of(best.event),
        harm=_harm_of(scene, best),
        look=best,
        received=tuple(sorted(scene.received - set(ranks))),
        world=len(scene.present | scene.absent),
        others=tuple(one for one in found if one.rank not in ranks),
        alike=tuple(same),
    )


def is_given(look: Looked) -> bool:
    """Whether the op was given a number that is bad, of which nothing shows where it was made."""
    numbers = (words.as_number(fact) for name, fact in look.facts.items() if name in _GIVEN)
    given = any(one is not None and not math.isfinite(one) for one in numbers)
    return given and look.facts.get("number") is not True and not is_laid(look)


def is_laid(look: Looked) -> bool:
    """Whether the op only wrote down a number that is not finite, as the script has it."""
    return look.site is not None and words.laid(look.site.op or "", look.inputs, look.facts) is not None


def _is_shown_better(one: Seen[Looked], looks: tuple[Seen[Looked], ...]) -> bool:
    """Whether torch's own NaN check stopped a rank whose step, run again, shows where that came from."""
    again = (other for other in looks if other.rank == one.rank and other.event.outcome == "found")
    return one.event.method == "check" and any(other.event.method == "replay" for other in again)


def _was_received(sent: Seen[Looked], scene: Scene) -> bool:
    """Whether another rank's harm came through a collective into which this rank put bad values."""
    through = sent_through(sent.event)
    return any(
        one.rank != sent.rank and one.event.source == "received" and carried(one.event) in through
        for one in scene.looks
    )


def _place(one: Seen[Looked]) -> tuple[object, ...]:
    site, names = one.event.site, tuple(fact.name for fact in one.event.inputs if fact.bad)
    where = () if site is None else (site.module, site.op, site.node, site.file, site.line)
    return one.event.source, *where, names if one.event.source in STATE else ()


def _harm_of(scene: Scene, look: Seen[Looked]) -> Seen[Harm] | None:
    """Return the harm that the look explains: of the same tensor where it names one, else the rank's first."""
    if look.event.method == "check":
        return None
    names = {fact.name for fact in (*look.event.inputs, *look.event.outputs) if fact.bad and fact.name}
    own = [one for one in scene.harms if one.rank == look.rank]
    if look.event.source in STATE or "weight" in look.event.facts:
        own = [one for one in own if one.event.what in STATE and names & _names(one)] or own
    return own[0] if own else None


def _names(one: Seen[Harm]) -> set[str | None]:
    return {fact.name for fact in one.event.tensors}


def _by_state(scene: Scene) -> Claim | None:
    """A bad weight is the origin where it was bad before the step began, or where nothing else is bad in the step.

    Buffers that turn bad in the same forward as the loss only show what flowed through them.
    """
    held = [one for one in scene.harms if one.event.what in STATE]
    if len(held) < len(scene.harms):
        held = [one for one in held if phase_of(one.event) in STARTS]
    if not held:
        return None
    best = held[0]
    same = {one.rank for one in held if harm_moment(one) == harm_moment(best) and one.event.what == best.event.what}
    return _claim(scene, "state", (same - scene.received) or same, best)


def _by_loss(scene: Scene) -> Claim | None:
    losses = [one for one in scene.harms if one.event.what in {"loss", "output"}]
    if not losses:
        return None
    best = losses[0]
    ranks = {one.rank for one in losses if harm_moment(one)[:3] == harm_moment(best)[:3]}
    # That a rank asked of its loss, and left, says nothing of those that did not.
    deduced = len(scene.present | scene.absent) > len(ranks) and not best.event.left_on
    return replace(_claim(scene, "loss", ranks, best), confidence="inferred" if deduced else "observed")


def _by_reduction(scene: Scene) -> Claim | None:
    """All ranks ran the step again together, and every rank of a collective got harm out of it that none put in."""
    if any(one.event.outcome == "found" and one.event.source != "received" for one in scene.looks):
        return None
    # Of a reduce-scatter only some ranks get what is bad; the others were in the same replay, and found nothing.
    joint = (one for one in scene.looks if is_again(one.event) and one.event.facts.get("joint") is True)
    whole = {one.rank for one in joint if is_whole(one.event)}
    through: dict[tuple[object, ...], list[Seen[Looked]]] = {}
    for one in scene.looks:
        which = carried(one.event) if one.event.source == "received" else None
        if which is not None:
            through.setdefault(which, []).append(one)
    for (_, ranks, _), looks in through.items():
        sizes = {one.rank: size for one in looks if (size := number_of(one.event, "sent_absmax")) is not None}
        if isinstance(ranks, tuple) and len(ranks) > 1 and set(ranks) <= {*sizes, *whole}:
            harm = next((one for one in scene.harms if one.rank in sizes), None)
            return Claim(
                basis="exchange", ranks=ranks, attempt=scene.attempt, step=scene.step, confidence="reproduced",
                harm=harm, look=looks[0], exchanged=sizes, world=len(ranks),
                received=tuple(sorted(scene.present - set(ranks))),
            )  # fmt: skip
    return _by_own_reduction(scene)


def _by_halves(scene: Scene) -> Claim | None:
    """A sum in float16 is bad, what each rank put in was seen to be finite, and nothing tells where else harm began."""
    found = of_halves(scene.looks)
    if found is None or _began_elsewhere(scene) or any(came_before(one.event, found[1].event) for one in scene.looks):
        return None
    harm = next((one for one in scene.harms if one.rank in found[0]), None)
    shown = _by_reduction(scene)
    if harm is None or (shown is not None and shown.look is not None and not is_at(shown.look, found[1])):
        return None  # ranks that were in no such sum, or another one by which a run of the step again shows it came
    claim = _claim(scene, "exchange", set(found[0]), harm)
    return replace(claim, look=found[1], exchanged=found[0], world=len(found[0]))


def _began_elsewhere(scene: Scene) -> bool:
    """Whether a rank has an origin of its own that is known, or harm that was there before gradients are summed."""
    own = any(_is_own(one.event) and one.event.source != "outside" for one in scene.looks)
    own = own or any(one.event.facts.get("by_others") is True for one in scene.looks)  # than torch: numpy, say
    return own or any(one.event.what == "loss" or phase_of(one.event) in STARTS for one in scene.harms)


def _by_own_reduction(scene: Scene) -> Claim | None:
    """What all ranks got of a reduction by the script's own call is bad, and what each of them put in was finite."""
    looks = of_finite(scene.looks)
    harm = next((one for one in scene.harms if one.event.what not in STATE), None)
    if not looks or harm is None:
        return None
    claim = _claim(scene, "exchange", {one.rank for one in looks}, harm)
    return replace(claim, look=looks[0])


def _by_exchange(scene: Scene) -> Claim | None:
    """Each rank that looked had finite gradients of its own: what the replay left out made them bad, an exchange.

    A rank whose own gradients are larger than half precision holds is the culprit; else all ranks add their share.
    """
    harms = [one for one in scene.harms if one.event.what not in STATE]
    # Where the run went on, the update was made again as well: what it makes of bad gradients says nothing of them.
    # A rank that only received in a hook that was called again has no gradients of its own to show.
    before = [
        one
        for one in scene.looks
        if one.event.outcome != "finite" or is_again(one.event)
        if one.event.source != "received" or "comm_hook" not in one.event.facts
    ]
    looks = [one for one in before if one.event.outcome == "finite" and one.event.facts.get("collective")]
    if not harms or not looks or len(looks) < len(before):
        return None
    sizes = {one.rank: size for one in looks if (size := number_of(one.event, "local_gradient_absmax")) is not None}
    limit = limit_of(str(looks[0].event.facts["collective"]))
    ranks = {rank for rank, size in sizes.items() if size > limit} or set(scene.present)
    claim = _claim(scene, "exchange", ranks, next((one for one in harms if one.rank in ranks), harms[0]))
    look = claim.look or looks[0]
    received = tuple(sorted(scene.present - ranks))
    unseen = tuple(sorted((scene.present | scene.absent) - scene.received - {one.rank for one in looks}))
    return replace(claim, confidence="inferred", look=look, received=received, exchanged=sizes, unseen=unseen)


def _by_gradient(scene: Scene) -> Claim | None:
    """Gradients are shared, or their shards summed: without more they never tell which rank made them bad."""
    harms = [one for one in scene.harms if one.event.what not in STATE]
    if not harms:
        return None
    harmed = {one.rank for one in harms}
    everyone = scene.present | scene.absent
    left = everyone - scene.received
    if scene.received and left:
        own = next((one for one in harms if one.rank in left), harms[0])
        return replace(_claim(scene, "gradient", set(left), own), confidence="inferred")
    flowed = {one.rank for one in scene.harms if one.event.what in STATE}
    if flowed and flowed < harmed:
        own = next(one for one in harms if one.rank in flowed)
        return replace(_claim(scene, "gradient", flowed, own), confidence="inferred")
    return replace(_claim(scene, "gradient", harmed, harms[0]), known=len(everyone) == 1)


def _claim(scene: Scene, basis: str, ranks: set[int], harm: Seen[Harm]) -> Claim:
    return Claim(
        basis=basis,
        ranks=tuple(sorted(ranks)),
        attempt=scene.attempt,
        step=scene.step,
        confidence="observed",
        harm=harm,
        look=next((one for one in scene.looks if one.rank in ranks), None),
        received=tuple(sorted(scene.received - ranks)),
        world=len(scene.present | scene.absent),
    )


def _by_scale(fallen: Seen[Skipped], timeline: Timeline) -> Claim:
    ranks = {one.rank for one in timeline.skips if one.event.collapsed and one.attempt == fallen.attempt}
    return Claim(
        basis="scale",
        ranks=tuple(sorted(ranks)),
        attempt=fallen.attempt,
        step=fallen.event.step,
        confidence="observed",
        skip=fallen,
    )
