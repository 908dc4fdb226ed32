"""The verdict: the one sentence, the cause, the evidence, and the step to resume from (reader side)."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace

from nandiag.analysis.causes import Cause, Explain, Facts, explain
from nandiag.analysis.causes.facts import LIKELY, dtype_of, is_again, is_whole
from nandiag.analysis.causes.mends.digits.lost import loss_of
from nandiag.analysis.causes.mends.scales.reduced import of_least
from nandiag.analysis.causes.mends.script import bounding, parsing, quotients
from nandiag.analysis.origin import Claim
from nandiag.analysis.report import Origin, Suggestion, Verdict
from nandiag.analysis.skips import before
from nandiag.analysis.timeline import Seen, Timeline, shown_again
from nandiag.analysis.verdict.evidence import evidence
from nandiag.analysis.verdict.fitted.imported import in_names_of_file
from nandiag.analysis.verdict.fitted.libraries import in_own_lines
from nandiag.analysis.verdict.further import beside, is_told, next_looks, with_next
from nandiag.analysis.verdict.rates import uneven
from nandiag.analysis.verdict.steady import healthy, held_bad, last_finite, spoiled_between
from nandiag.analysis.verdict.summary import other_kind, summary
from nandiag.analysis.verdict.unlooked import silent
from nandiag.analysis.ways.spread import spread_of
from nandiag.events import Alike, Compared, History, Looked, TensorFact, Warned, words

__all__ = ["Background", "healthy", "held_bad", "last_finite", "of_claim", "spoiled_between"]


@dataclass(frozen=True, slots=True)
class Background:
    """What the claim does not hold: the history of its rank, causes beside the catalogue's, and each rank's rate.

    ``shared``: the ranks take the same gradients.
    """

    history: History | None = None
    causes: tuple[Explain, ...] = ()
    rates: dict[int, float] = field(default_factory=dict)
    shared: bool = False


# What goes wrong at an op where a bound on its input is too small, or 0.
_BOUNDED = frozenset({"overflow", "division_by_zero"})


def of_claim(claim: Claim, origin: Origin, timeline: Timeline, background: Background) -> Verdict:
    """Return the verdict on a run that was harmed; ``last_finite_step`` is left to :func:`last_finite`."""
    facts = _facts(claim, origin, timeline, background)
    story, mechanism = explain(facts, background.causes)
    named = [cause for cause in (mechanism, story) if cause is not None]
    chosen = _chosen(story, mechanism)
    advice, after = _advice(facts, mechanism, _suggestions(chosen, named), next_looks(claim, timeline))
    advice = (*of_least(facts), *advice) if mechanism is not None and mechanism.slug in _BOUNDED else advice
    apart = uneven(background.rates, chosen.slug if chosen else None)
    why = [*(text for cause in named for text in cause.evidence), *apart, *after]
    return Verdict(
        anomaly=True,
        summary=summary(claim, origin, before(claim, timeline), background.history, other_kind(claim, timeline)),
        confidence=claim.confidence,
        reproduced=_reproduced(claim, timeline),
        cause=chosen.slug if chosen else None,
        mechanism=mechanism.slug if mechanism and mechanism.strength else None,
        origin=origin,
        evidence=(*why, *evidence(claim, origin, timeline, story.slug if story is not None else None)),
        reasons=len(why),
        suggestions=in_own_lines(facts, in_names_of_file(facts, advice)),
        spread=spread_of(claim, timeline),
    )


def _facts(claim: Claim, origin: Origin, timeline: Timeline, background: Background) -> Facts:
    """Return what causes are found by."""
    look = claim.look.event if claim.look and claim.later is None else claim.shown
    unchecked = _unchecked(claim, timeline)
    weight, warned = _weight(look, origin), _warned(claim, origin, timeline)
    return Facts(
        origin=_on_one_line(
            replace(origin, outputs=tuple(fact for fact in origin.outputs if fact is not weight)), look
        ),
        basis=claim.basis if claim.later is None else "look",
        harm=claim.harm.event if claim.harm else None,
        look=look,
        born_bad=weight,
        skip=claim.skip.event if claim.skip else None,
        history=background.history,
        received=claim.received,
        known=claim.known,
        world=claim.world,
        exchanged=claim.exchanged,
        silent=silent(claim, timeline),
        warned=tuple(one.event for one in warned),
        warned_by=tuple(one.rank for one in warned if len(claim.ranks) > 1),
        strikes=_strikes(claim, timeline),
        trained=_trained(claim, timeline),
        compared=_compared(claim, timeline),
        unharmed=unchecked is not None,
        rates=background.rates,
        shared=background.shared,
    )


def _unchecked(claim: Claim, timeline: Timeline) -> Looked | None:
    """Return how a rank that torch's own NaN check ended ran its step again without the check, where it was finite."""
    of = (one.event for one in timeline.looks if one.attempt == claim.attempt and one.rank in claim.ranks)
    return next((one for one in of if one.step == claim.step and one.facts.get("unchecked") is True), None)


def _compared(claim: Claim, timeline: Timeline) -> Compared | None:
    """Return how the step of the origin compares with those before, on the first of its ranks that tells."""
    of = (one for one in timeline.compared if one.attempt == claim.attempt and one.rank in claim.ranks)
    return next((one.event for one in of if one.event.step >= claim.step), None)


def _on_one_line(origin: Origin, look: Looked | None) -> Origin:
    """Return the origin with its whole statement as the source where the expression takes several lines of it."""
    around = look.site.around if look is not None and look.site is not None else None
    if around is None or around.statement is None or look is None or look.site is None:
        return origin
    same = (look.site.file, look.site.line) == (origin.file, origin.line)
    return replace(origin, source=around.statement, column=around.column) if same else origin


def _weight(look: Looked | None, origin: Origin) -> TensorFact | None:
    """Return the facts on a weight that was bad from birth: they stand behind those on what its op gave out."""
    name = look.facts.get("weight") if look is not None else None
    return next((fact for fact in reversed(origin.outputs) if name is not None and fact.name == name), None)


def _strikes(claim: Claim, timeline: Timeline) -> tuple[int, ...]:
    """Return the steps in which the origin's one rank had a bad loss that was gone when it ran the step again."""
    bad = {one.event.step for one in timeline.harms if one.rank in claim.ranks and one.event.what == "loss"}
    again = (one for one in timeline.looks if one.rank in claim.ranks and one.attempt == claim.attempt)
    gone = {one.event.step for one in again if is_again(one.event) and is_whole(one.event)}
    return tuple(sorted(bad & gone)) if len(claim.ranks) == 1 else ()


def _trained(claim: Claim, timeline: Timeline) -> tuple[str, ...]:
    """Return the names of all parameters, where all of them went bad, none is a module's and no optimizer has them."""
    at = [one.event for one in timeline.harms if (one.attempt, one.event.step) == (claim.attempt, claim.step)]
    whole = (harm for harm in at if harm.what == "gradient" and len(harm.tensors) == harm.total)
    harm = next((harm for harm in whole if harm.optimizer is None), None)
    names = () if harm is None else tuple(fact.name or "" for fact in harm.tensors)
    return names if all(map(str.isidentifier, names)) else ()


def _warned(claim: Claim, origin: Origin, timeline: Timeline) -> tuple[Seen[Warned], ...]:
    return tuple(
        one
        for one in timeline.warned
        if one.rank in claim.ranks and one.attempt == claim.attempt and one.event.step <= origin.step
    )


def _chosen(story: Cause | None, mechanism: Cause | None) -> Cause | None:
    """Return the cause to change: the story, unless it is a guess and the mechanism is none."""
    if story is not None and (story.strength >= LIKELY or mechanism is None or mechanism.strength <= story.strength):
        return story
    return mechanism


def _suggestions(chosen: Cause | None, named: list[Cause]) -> tuple[Suggestion, ...]:
    rest = [cause for cause in named if cause is not chosen and cause.strength > 0]
    every = [cause for cause in ([chosen] if chosen else []) + rest if cause.suggestions]
    every.sort(key=lambda cause: cause.follows - cause.leads)
    telling = [cause for cause in every if not cause.general] or every
    return tuple(one for cause in telling for one in cause.suggestions)


def _advice(
    facts: Facts, mechanism: Cause | None, told: tuple[Suggestion, ...], looks: list[Looked]
) -> tuple[tuple[Suggestion, ...], tuple[str, ...]]:
    """Return what was ``told`` with other lines that are to be mended beside the op's own, and why these are.

    Where digits were lost before the op, it is not in its own line that it is mended, nor did what stood in for its
    result show what comes next.
    """
    if loss_of(facts) is not None:
        return told, ()
    own = mechanism.suggestions if mechanism is not None and mechanism.slug in _AT_THE_OP else ()
    first = next((place for place, one in enumerate(told) if one in own and one.code), None)
    advice, why = with_next(facts, first, told, looks)
    return _also_at(facts, first, advice), why


def _also_at(facts: Facts, first: int | None, told: tuple[Suggestion, ...]) -> tuple[Suggestion, ...]:
    """Name the other lines of the function that are to be mended alike beside the line that mends the op's own.

    ``first`` is the place of that one's suggestion, which may have told them already.
    """
    held = _held(facts) | (set() if first is None else _made_good(facts, told[first]))
    again = [] if first is None else [one for one in facts.again if one not in held and not is_told(one, told[first])]
    if first is None or not again:
        return told
    compute = "computes" if len(again) == 1 else "compute"
    where = words.lines(again).capitalize()
    text = f"{told[first].text} {where} {compute} the like: mend that too."
    mend = Suggestion(text, beside(facts, told[first], again))
    return (*told[:first], mend, *told[first + 1 :])


def _held(facts: Facts) -> set[int]:
    """Return the lines that compute the like, and are guarded where the origin's own is not."""
    infinite = all(fact.posinf == fact.bad for fact in facts.origin.outputs)  # no Inf comes through a bound from above
    op, half = facts.forward_op or facts.op or "", any(dtype_of(one) == "float16" for one in facts.origin.inputs)
    least = _LEAST_OF_HALF if half else 0.0
    shown = (facts.origin.source or "")[slice(*(facts.origin.column or (0, 0)))]
    bare = not bounding.has_eps(shown, op, least)
    return {
        one.line
        for one in (facts.around.alike if facts.around is not None else ())
        if ((infinite or _is_of_a_setting(one)) and bounding.is_bounded_above(one.text, one.column))
        or _is_of_its_result(facts, one)
        or (bare and bounding.has_eps(one.text, op, least))
    }


def _made_good(facts: Facts, own: Suggestion) -> set[int]:
    """Return the lines that divide by the very name that a mend gives another value, where that is made."""
    name, code = quotients.below(facts.origin) or "", own.code or ""
    if not code.startswith(f"{name} = ") or not name.isidentifier():
        return set()
    found = facts.around.alike if facts.around is not None else ()
    return {one.line for one in found if name in _divisors(one)}


def _divisors(other: Alike) -> set[str]:
    node = parsing.expression(other.text[slice(*other.column)])
    below = None if node is None else quotients.divided_by(node)
    return set() if below is None else {ast.unparse(below)}


def _is_of_a_setting(other: Alike) -> bool:
    """Whether it divides a number that is written there, or a setting: that is not 0, and by 0 it is no NaN."""
    node = parsing.expression(other.text[slice(*other.column)])
    above = node.left if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else None
    if isinstance(above, ast.Constant):
        return bool(above.value)
    return isinstance(above, ast.Attribute) and _SETTING.search(above.attr) is not None


_SETTING = re.compile(r"(?:^|_)(?:max|limit|clip|bound|cap)(?:_|$)|_(?:norm|max|limit)$")


def _is_of_its_result(facts: Facts, other: Alike) -> bool:
    """Whether an empty input was reduced, and ``other`` reduces what came of that, which has elements."""
    reduced = any(one.numel == 0 for one in facts.origin.inputs) and all(one.numel for one in facts.origin.outputs)
    line = parsing.statement((facts.origin.source or "").strip())
    target = line.targets[0] if reduced and isinstance(line, ast.Assign) else None
    given = parsing.expression(other.text[slice(*other.column)])
    named = () if given is None else (one.id for one in ast.walk(given) if isinstance(one, ast.Name))
    return isinstance(target, ast.Name) and target.id in named


_LEAST_OF_HALF = 3e-8


_AT_THE_OP = frozenset(
    {
        "division_by_zero",
        "log_of_zero",
        "domain_error",
        "masked_infinity",
        "singular_gradient",
        "attention_fully_masked",
        "empty_reduction",
    }
    | {"overflow"}
)


def _reproduced(claim: Claim, timeline: Timeline) -> bool | None:
    """Return whether running the step again showed it; a look at modules alone cannot deny what it does not cover."""
    if claim.basis == "look":
        return True if claim.look is not None and shown_again(claim.look.event) else None
    if claim.basis == "exchange" and claim.confidence == "reproduced":
        return True
    if claim.basis not in {"loss", "gradient"}:
        return None
    looks = [one.event for one in timeline.looks if (one.attempt, one.event.step) == (claim.attempt, claim.step)]
    whole = [look for look in looks if is_again(look) and is_whole(look)]
    return False if any(look.method == "replay" for look in whole) else None
