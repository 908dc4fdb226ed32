"""A division whose divisor holds zeros (reader side)."""

from __future__ import annotations

import re

from nandiag.analysis.causes import singular_gradient
from nandiag.analysis.causes.empty_reduction import divides_by_nothing
from nandiag.analysis.causes.facts import HALF, Cause, Facts, dtype_of, more, share
from nandiag.analysis.causes.mends import by_hand, densities
from nandiag.analysis.causes.mends.counts import kept, names, narrow, raised, received
from nandiag.analysis.causes.mends.divisors import (
    corrections,
    inverses,
    norms,
    own_eps,
    peaks,
    powers,
    roots,
    spreads,
    zero_weights,
)
from nandiag.analysis.causes.mends.exponentials import forms, scalings, scans, shares, temperatures
from nandiag.analysis.causes.mends.limits import bounded, quotient
from nandiag.analysis.causes.mends.logarithms import probabilities
from nandiag.analysis.causes.mends.scales import measured
from nandiag.analysis.causes.mends.script import bounding, fitting, parsing, quotients
from nandiag.analysis.causes.mends.script.guards import under_root
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

EXPLAIN = Explanation(
    slug="division_by_zero",
    what="A divisor is exactly zero: x/0 is Inf, and 0/0 is NaN. Norms of zero vectors, counts of empty groups, "
    "the spread of equal values, and numbers that half precision rounded to zero are the usual ones.",
    looks=(
        "error[division_by_zero]: NaN born on rank 0 at step 32 in the code of Fields",
        "the divisor of div holds 3 zeros in 144 values; 0/0 is NaN",
    ),
    fix=(
        Suggestion(
            "Keep the divisor away from zero, by more than the dtype rounds away.",
            "a / b.clamp_min(1e-6)",
        ),
        Suggestion(
            "Counts: at least one.",
            "total / max(count, 1)",
        ),
        Suggestion(
            "Norms: let torch do it, with its own eps.",
            "torch.nn.functional.normalize(x, dim=-1)",
        ),
        Suggestion(
            "A torch.where behind the division does not help its gradient: put it before.",
            "a / torch.where(b == 0, 1, b)",
        ),
    ),
    pages=(
        "generated/torch.nn.functional.normalize.html",
        "generated/torch.where.html",
        "generated/torch.clamp.html",
    ),
)

DIVISIONS = frozenset({"div", "true_divide", "divide", "remainder", "fmod"})
RECIPROCALS = {"reciprocal": "1/0", "rsqrt": "1/sqrt(0)"}
RATIOS = {"addcdiv": 2}
# In these nodes the user's own division is what is differentiated; in others it has a cause of its own.
NODES = ("Div", "Reciprocal")
_IN_ROOT = "Keep what is under the root away from zero: behind it the gradient would still be infinite there."
_BY_INF = "Make the quotients 0 where the divisor is: by a small number in its place what is not 0 would be huge."
_NOTHING_LEFT = "All of the divisor is 0: with 0 for the quotient nothing would be left of it. Keep it away from zero."
_CLAMPED = Suggestion("Or keep the divisor above the least that is of use, or clamp the quotient to the largest.")
_LARGE = "Keep the divisor away from zero: among weights that are divided by their sum, a huge one is nearly 1."
_LOGGED = "Keep the divisor away from zero: its logarithm is taken, for which a huge quotient is none, and 0 breaks it."
_KERNEL = "Keep the divisor away from zero: the exponential of what is far below 0 is 0, and that of 0 is 1."
_RATE = (
    "The learning rate is made of it: by a small number in the divisor's place it would be huge, and ruin the model. "
    "Bound what comes of it by the most that the rate is to be."
)
_KEPT = "y = a / torch.where(b != 0, b, torch.inf)"
_WHAT = "a scale, a variance or a count"
_KEEP = "Keep the divisor away from zero."


def explain(facts: Facts) -> Cause | None:
    """Name the zero divisor of a division, in forward or in backward: a tensor, a number, or 0 to a negative power."""
    written = own_eps.by_zero(facts)
    if written is not None:
        return written
    if singular_gradient.tangent_of(facts) is not None:
        return None
    if not facts.finite_inputs or (facts.node is not None and not facts.node.startswith(NODES)):
        return None
    if (facts.op or "").startswith("_weight_norm"):
        return _of_weight_norm(facts)
    if facts.op in DIVISIONS and facts.number("arg1") == 0:
        return Cause("division_by_zero", (f"the divisor of {facts.op} is the number 0",), _by_number(facts))
    return powers.of_zero(facts) or _of_norm(facts) or _by_tensor(facts)


def _of_norm(facts: Facts) -> Cause | None:
    """A normalisation divides by the root of a variance and an eps, which are both 0."""
    mend = own_eps.of_norm(facts)
    if mend is None:
        return None
    name = facts.origin.module_class or words.op(facts.origin.op or "")
    seen = f"the eps of {name} is 0, and so is a variance in it; 0/0 is NaN"
    return Cause("division_by_zero", (seen,), (mend,))


def _of_weight_norm(facts: Facts) -> Cause | None:
    """Weight normalisation divides each row of its direction by the row's length, and a layer may begin at zero."""
    direction = facts.origin.inputs[0]
    if not (facts.outputs_nan and direction.zeros):
        return None
    return Cause(
        slug="division_by_zero",
        evidence=(f"weight_norm divides each row by its length, and holds {share(direction.zeros, direction)}",),
        suggestions=(zero_weights.of_direction(facts),),
    )


def is_called(facts: Facts) -> bool:
    """Whether the line shown only calls an optimizer of a library: no line of the script's divides."""
    return facts.in_update and ".step(" in (facts.origin.source or "")[slice(*(facts.origin.column or (0, 0)))]


def _by_number(facts: Facts) -> tuple[Suggestion, ...]:
    if is_called(facts):
        return ()
    begun = corrections.mended(facts, infinite=_is_infinite(facts)) or spreads.not_yet(facts) or raised.behind(facts)
    if begun is not None:
        return (begun,)
    if quotients.below(facts.origin) in {"0", "0.0"}:
        return (Suggestion("A 0 is written there: divide by something else."),)
    whole = type(facts.extra["arg1"]) is int  # a whole number is a count
    least = "1" if whole or _is_infinite(facts) else "1e-6"
    code = quotients.at_least(facts.origin, least, whole=whole) or f"a / max(n, {least})"
    if whole or not _is_infinite(facts):
        return (Suggestion(_KEEP, code),)
    return _of_one_number(facts, None, code)


def _is_infinite(facts: Facts) -> bool:
    """Whether more than 0 was divided: by 1e-6 instead it is finite and a million times too large, which breaks too."""
    return any(fact.posinf or fact.neginf for fact in facts.origin.outputs)


def _by_tensor(facts: Facts) -> Cause | None:
    divisor = _divisor(facts)
    if divisor is None or not divisor.zeros or divides_by_nothing(facts):
        return None
    held = share(divisor.zeros, divisor)
    result = "0/0 is NaN" if facts.outputs_nan else _result(facts) + more(facts.origin.outputs, divisor)
    what = "input" if facts.op == "rsqrt" else "divisor"
    seen = f"the {what} of {facts.op} {'is' if held == '0' else 'holds'} {held}"
    seen = seen if any(fact.guessed for fact in facts.origin.outputs) else f"{seen}; {result}"
    if "vanished" in facts.extra:
        return Cause("division_by_zero", (seen, shares.of_exponentials(facts, divisor)), shares.shifted(facts))
    if "rate_set_at" in facts.extra and _is_infinite(facts) and divisor.numel == 1:
        return Cause("division_by_zero", (seen,), (Suggestion(_RATE),))
    made = (*received.first(facts, divisor), *narrow.wrapped(facts, divisor))
    return Cause(
        slug="division_by_zero",
        evidence=(seen, *received.told(facts)),
        suggestions=(*made, *(_in_update if facts.in_update else _in_pass)(facts, divisor)),
    )


def _result(facts: Facts) -> str:
    """Return what came out, with its sign: of one over -0 it is -Inf."""
    inverse, below = RECIPROCALS.get(facts.op or ""), all(not one.posinf for one in facts.origin.outputs)
    shown = "x/0" if inverse is None else inverse.replace("0", "-0") if below else inverse
    return f"{shown} is {'-' if below else ''}Inf"


def _divisor(facts: Facts) -> TensorFact | None:
    inputs, op = facts.origin.inputs, facts.op or ""
    place = 1 if op in DIVISIONS else RATIOS.get(op, 0 if op in RECIPROCALS else None)
    return inputs[place] if place is not None and len(inputs) > place else None


def _in_pass(facts: Facts, divisor: TensorFact) -> tuple[Suggestion, ...]:
    """What the divisor is made of in another line, or out of, may tell more than the division itself."""
    made = (
        scalings.in_logarithms(facts, divisor)
        or quotient.at_zero(facts)
        or scans.of_product(facts)
        or spreads.not_yet(facts)
        or corrections.not_begun(facts)
        or corrections.in_line(facts)
        or raised.behind(facts)
        or powers.counted(facts)
        or measured.divided(facts, divisor)
        or peaks.instead(facts)
        or norms.correlated(facts)
        or shares.softmax(facts)
        or shares.drawn_by(facts)
        or by_hand.scale(facts)
        or inverses.left_out(facts, divisor)
        or roots.above(facts, divisor)
        or zero_weights.rows_of(facts, divisor)
    )
    return _suggestions(facts, divisor) if made is None else (made,)


def _suggestions(facts: Facts, divisor: TensorFact) -> tuple[Suggestion, ...]:
    rooted = _in_root(facts, divisor)
    found = [Suggestion(_keep(facts, divisor), kept.guarded(facts, divisor))] if rooted is None else list(rooted)
    found[:0] = kept.where_made(facts, divisor) if rooted is None else ()
    elsewhere = _elsewhere(facts, divisor, in_root=rooted is not None)
    if elsewhere:
        return elsewhere
    empty = zero_weights.of_zeros(facts) or norms.without_direction(facts, divisor)
    if empty is not None:
        found.insert(0, empty)
    if rooted is None and _is_infinite(facts) and "int" not in dtype_of(divisor):
        found = list(_out_of_reach(facts, divisor)) or found
    elif rooted is None and quotients.divides_again(facts.origin):
        twice = quotients.left_out(facts.origin)
        found = found if twice is None else [Suggestion(_BY_INF, twice)]
    share = forms.share(facts.origin)
    if share is not None and _may_be_exponential(facts):
        text = "Where what is divided by its own sum is the exponential of a score, it is a softmax: let torch do it."
        found.append(Suggestion(text, share))
    found += norms.next_of(facts)
    normal = quotients.normalised(facts.origin)
    if normal is not None:
        found.append(Suggestion("Or let torch do it, with its own eps.", normal))
    if dtype_of(divisor) in HALF and not names.is_one(facts, divisor) and not facts.divides_zeros:
        dtype = dtype_of(divisor)
        text = (
            f"If it is no true zero, {dtype} rounded it to zero: compute the divisor in float32, and keep in float32 "
        )
        text += "what it is computed from: what is rounded already no cast brings back."
        # What has lost its digits cannot be clamped back: where one number is the divisor that is the likelier mend.
        found.insert(0 if divisor.numel == 1 else 1, Suggestion(text))
    return tuple(found)


def _in_root(facts: Facts, divisor: TensorFact) -> tuple[Suggestion, ...] | None:
    """Return what is to be done where a root stands below the line in its own text, ``None`` where none does."""
    within = f"1e{under_root(divisor)}"
    rooted = quotients.rooted(facts.origin, lambda text: f"{text}.clamp_min({within})")
    if rooted is None or (quotients.may_have_a_number_s_root(facts.origin) and not roots.is_in(facts)):
        return None
    huge = _is_infinite(facts) and divisor.numel > 1 and facts.origin.phase != "optimizer" and not _may_be_huge(facts)
    passes = facts.extra.get("of_weights") is not False
    left = quotients.left_out_of_root(facts.origin, within if passes else None) if huge else None
    if left is not None:
        return (Suggestion(_left_out(facts), left), _CLAMPED)
    # No gradient goes through an update, nor back from data, nor to a buffer: then it is not said.
    says = facts.origin.phase != "optimizer" and _learns_divisor(facts)
    return (Suggestion(_IN_ROOT if says else _KEEP, rooted),)


def _learns_divisor(facts: Facts) -> bool:
    """Whether a gradient is known to go back into what divides."""
    by = facts.extra.get("below_by", facts.extra.get("made_by") or True)
    return facts.extra.get("of_weights") is True and bool(by)


def _may_be_huge(facts: Facts) -> bool:
    """Whether the quotient is a weight among others, or its logarithm or an exponential of it is taken."""
    return shares.is_shared(facts) or probabilities.is_taken(facts) or forms.of_quotient(facts.origin)


def _may_be_exponential(facts: Facts) -> bool:
    """Whether what is divided was made by an exponential, or nobody knows by what."""
    made = facts.extra.get("made_by")
    return not isinstance(made, list) or any(str(node).startswith("Exp") for node in made)


def _elsewhere(facts: Facts, divisor: TensorFact, *, in_root: bool) -> tuple[Suggestion, ...]:
    """Return what is to be done where no number in the divisor's place mends it: at another line, or before this."""
    callee = quotients.called_alone(facts.origin) if facts.origin.phase != "optimizer" else None
    own = own_eps.mended(facts, divisor) or own_eps.of_hook(facts) if callee is not None else ()
    if own:
        return own
    made = roots.forward(facts) or roots.of_length(facts) or densities.of_scale(facts) if callee is not None else None
    if made is not None:
        return (made,)
    if callee is not None and callee.rpartition(".")[2].endswith(("Categorical", "Multinomial")):
        return (shares.floored(facts),)
    if callee is not None:
        text = f"The division is in {callee}: keep what that divides by above zero where it is made, {_WHAT}."
        return (Suggestion(text, "torch.nn.functional.softplus(z) + 1e-6"),)
    nothing = zero_weights.written(facts, divisor)
    if nothing is not None:
        return (nothing,)
    # Before training no gradient goes through it: the quotient by a small number is finite, and far too large.
    begins = in_root and "birth" in facts.extra and _is_infinite(facts) and divisor.numel == 1
    return _of_one_number(facts, None, None) if begins else ()


def _in_update(facts: Facts, divisor: TensorFact) -> tuple[Suggestion, ...]:
    """No gradient flows through an update: an eps outside of the root is enough."""
    if is_called(facts):
        return ()  # optimizer_division has what can be set
    made = norms.ratio(facts) or corrections.mended(facts, infinite=_is_infinite(facts)) or raised.behind(facts)
    made = made or powers.counted(facts)
    if made is not None:
        return (made,)
    eps = "1e-4" if dtype_of(divisor) == "float16" else "1e-8"
    code = quotients.divisor(facts.origin, lambda text: parsing.written(f"({{}} + {eps})", fitting.unbracketed(text)))
    if code is None or quotients.rooted(facts.origin, str) is None:
        return _suggestions(facts, divisor)
    return (Suggestion("Add a small number to the divisor, as the eps of torch's optimizers is.", code),)


def _out_of_reach(facts: Facts, divisor: TensorFact) -> tuple[Suggestion, ...]:
    """What is left where no small number in the divisor's place mends it."""
    logged = probabilities.of_ratio(facts)
    if logged is not None:
        return (logged,)
    kernel = forms.of_quotient(facts.origin)
    if kernel and divisor.min == 0.0 and (facts.origin.inputs[0].max or 0.0) <= 0.0 and facts.node is None:
        return (Suggestion(_KERNEL, kept.guarded(facts, divisor)),)
    inverted = facts.op == "reciprocal" and not names.is_one(facts, divisor)
    if divisor.numel > 1 and (inverted or facts.op in DIVISIONS):
        huge = _LARGE if shares.is_shared(facts) else _LOGGED if probabilities.is_taken(facts) else None
        if huge is not None:
            return (Suggestion(huge, kept.guarded(facts, divisor)),)
        return _in_places(facts, divisor)
    # Of one over a length in an update nobody knows what it is multiplied by: gradients that are 0 themselves, say.
    alone = len(facts.origin.inputs) == 1 and facts.origin.phase == "optimizer"
    if divisor.numel > 1 or facts.op == "rsqrt" or alone:
        return ()
    code = quotients.divisor(facts.origin, lambda text: f"{text}.clamp_min(1)")
    return _of_one_number(facts, divisor.name, code or "total / count.clamp_min(1)")


def _in_places(facts: Facts, divisor: TensorFact) -> tuple[Suggestion, ...]:
    """Where it is 0 in places the quotient is left out there; where it is all over, nothing would be left to train."""
    if divisor.zeros == divisor.numel and facts.node is None and facts.extra.get("of_weights") is True:
        return (Suggestion(_NOTHING_LEFT, kept.guarded(facts, divisor)),)
    ends = bounded.in_places(facts, divisor)
    if ends is not None:
        return (ends,)
    first = Suggestion(_left_out(facts), quotients.left_out(facts.origin) or _KEPT)
    return (first,) if facts.origin.node is not None else (first, _CLAMPED)


def _left_out(facts: Facts) -> str:
    zero = "0 as gradient" if facts.origin.node is not None else "0"
    below = quotients.below(facts.origin) or "the divisor"
    return f"Where {below} is 0, give {zero}: a small number in its place would make the quotient huge."


def _of_one_number(facts: Facts, name: str | None, counted: str | None) -> tuple[Suggestion, ...]:
    """All is divided by it: nothing can be left out, and it was hardly meant to be 0."""
    text = quotients.below(facts.origin)
    begun = corrections.mended(facts, infinite=_is_infinite(facts)) or bounded.behind(facts)
    if begun is not None:
        return (begun,)
    made = _made_of(facts, text) if text is not None and "(" in text else _where_set(facts, text)
    divided = "and what it divides is not" if _is_infinite(facts) else "and so is what it divides, in places at least"
    why = f"{name or text or 'The divisor'} is 0, {divided}: look at {made}"
    if (tempered := temperatures.bounded(facts)) is not None and bounding.bound_at_zero(facts.origin) is None:
        return (tempered, Suggestion(f"{why}."))
    masked = names.masked(facts, text or "")
    counts = masked is not None or (names.is_called(text or name or "") and not names.is_size(facts, text or ""))
    stepped = names.is_stepped(facts, text or "")
    if not (counts or stepped) and not names.both(facts, text):
        return (_bound_raised(facts, text) or spreads.of_equals(facts) or norms.kept_above(facts, why),)
    if counted is None:
        return (Suggestion(f"{why}."),)
    if name and masked is None:  # what is kept from step to step: at least one is a wrong mean, and nobody would see it
        return (Suggestion(f"{why} (a buffer that was registered with persistent=False is in no checkpoint)."),)
    least = "It counts whole steps" if stepped else "If it is a count"
    least = least if masked is None else f"If {masked} is a mask of 0 and 1"
    told = Suggestion(f"{why}."), Suggestion(f"{least}: at least one.", counted)
    return told[::-1] if stepped or masked is not None or names.both(facts, text) else told


def _bound_raised(facts: Facts, text: str | None) -> Suggestion | None:
    raised = bounding.bound_at_zero(facts.origin)
    told = f"{text} is 0: raise its bound to the least that is of use."
    return None if raised is None else Suggestion(told, raised)


def _made_of(facts: Facts, text: str) -> str:
    """Name the lines that set the one thing that it is made of, where it is of one."""
    found = re.findall(r"^(?:torch\.\w+\()?([A-Za-z_][\w.]*?)(?:\.\w+\(\)|\))$", text)
    lines = facts.written(found[0]) if found else ()
    return f"what it is made of: {found[0]}, set in {words.lines(lines)}" if lines else "what it is made of"


def _where_set(facts: Facts, text: str | None) -> str:
    alias = facts.alias(text or "")
    if not (lines := facts.written(alias or text or "")):
        return "where it is set, updated or restored"
    return f"where it{f' ({alias})' if alias else ''} is set: {words.lines(lines)}"


def _keep(facts: Facts, divisor: TensorFact) -> str:
    small_is_zero = dtype_of(divisor) == "float16" and not names.is_one(facts, divisor)
    return _KEEP + (" A small constant like 1e-8 is itself 0 in float16." if small_is_zero else "")
