"""Weights that are divided by 0: zeros themselves, all or in rows, or written over where they lie (reader side)."""

from __future__ import annotations

import ast
import re

from nandiag.analysis.causes.facts import Facts
from nandiag.analysis.causes.mends.script import fitting, naming, parsing, quotients
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact, words

_DIVISIONS = frozenset({"div", "true_divide", "divide"})
_IN_PLACE = re.compile(r"[\w.\[\]]+\.(?:mul|div)_\(")
_COPIED = re.compile(r"[\w.\[\]]+\.copy_\(|[\w.\[\]]+\.data\s*=[^=]")
_MERGED = re.compile(r"[\w.\[\]]+\.data(?:\s*/=|\.(?:true_)?div(?:ide)?_\()")
_OWN_NORM = re.compile(r"[\w.\[\]]*\.grad\.")
_ROWS = "for behind a small number in its place the gradient of these rows would be huge."


def of_zeros(facts: Facts) -> Suggestion | None:
    """A weight that is all zeros, divided by what is made of it: a guard makes its gradient huge instead of NaN."""
    weight, parsed = facts.origin.inputs[0], fitting.parsed(facts.origin)
    if facts.extra.get("of_weights") is False:
        return None  # a sum, or an average, that begins at zero
    if not weight.name or weight.zeros != weight.numel or weight.numel == 0 or parsed is None:
        return None
    node = parsed[1].left if isinstance(parsed[1], ast.BinOp) else None
    text = f"{weight.name} is all zeros, and has no direction: do not let it begin so."
    code = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else "weight"
    return Suggestion(text, f"torch.nn.init.normal_({code}, std=0.02)")


def rows_of(facts: Facts, divisor: TensorFact) -> Suggestion | None:
    """Some rows of a weight are zeros, as pruning leaves them: behind a guard their gradient would be huge."""
    weight = facts.origin.inputs[0]
    partly = 0 < weight.zeros < weight.numel and 0 < divisor.zeros < divisor.numel
    if not (weight.name and partly and facts.outputs_nan) or facts.node is not None:
        return None
    if quotients.rooted(facts.origin, str) is not None:
        return None  # behind a root that is left as it is the gradient would still be infinite there
    code = quotients.left_out(facts.origin)
    if facts.extra.get("of_weights") is False or facts.origin.phase == "optimizer" or code is None:
        return None
    return Suggestion(f"Rows of {weight.name} are zeros. Where the divisor is 0, give 0, {_ROWS}", code)


def written(facts: Facts, divisor: TensorFact) -> Suggestion | None:
    """Say to leave before weights are multiplied by 1/0 where they lie, or replaced by 0/0.

    By a small number in the divisor's place they would be huge, or 0. ``None`` where they are not written so.
    """
    text = quotients.below(facts.origin)
    line = (facts.origin.source or "").strip()
    divides = facts.op in _DIVISIONS
    inverts = facts.op == "reciprocal" and facts.origin.phase == "optimizer"
    weighs = divides and facts.outputs_nan and facts.origin.inputs[0].numel == 1
    replaced = divides and facts.outputs_nan and _COPIED.match(line)
    own = _MERGED.match(line) or _is_a_weight(facts) or (divides and facts.extra.get("began_bad"))
    merged = facts.outputs_nan and own and facts.origin.inputs[0].zeros == facts.origin.inputs[0].numel
    written = replaced or merged or ((inverts or weighs) and _IN_PLACE.match(line))
    if not written or divisor.numel != 1 or text is None or "(" in text or _are_gradients_of_zeros(facts):
        return None
    meaning = facts.meaning(text)
    made = "" if meaning is None else meaning.text
    if _OWN_NORM.match(line) and ("norm" in f"{line} {made}".lower() or ".grad" in made):
        return None  # gradients whose norm is 0 are 0, and stay so by any factor
    lacks = "nothing to write" if replaced else "no direction to go in" if "norm" in made else "nothing to average"
    told = f"Where {text} is zero there is {lacks}: leave before anything is written, on all ranks alike."
    return Suggestion(told, facts.left_if(parsing.written("{} == 0", text)))


def _is_a_weight(facts: Facts) -> bool:
    """Whether a weight itself is written where it lies: autograd lets no pass do so, but to what the pass made."""
    return facts.in_place and facts.of_weight and facts.origin.phase == "optimizer"


def _are_gradients_of_zeros(facts: Facts) -> bool:
    """Whether gradients are written, which were 0: only 0 times 1/0 is NaN, and by any other factor they stay 0."""
    harm, origin = facts.harm, facts.origin
    if harm is None or harm.what != "gradient" or (harm.step, "optimizer") != (origin.step, origin.phase):
        return False  # weights that are bad make gradients so in a later step
    return not any(one.posinf or one.neginf for one in harm.tensors)


def of_direction(facts: Facts) -> Suggestion:
    """Say what to do about the zeros of a direction that weight normalisation divides by its length."""
    if facts.origin.step and not _is_as_made(facts):
        text = (
            "Rows of the direction were set to 0 since training began, by pruning, say, or where a new layer was made: "
        )
        code = _kept_pruned(facts)
        mend = "set their length to 0, and leave the direction as it was"
        behind = "" if code is None else ". Behind the line that sets them to 0, this does so with a new direction"
        return Suggestion(f"{text}{mend}{behind}.", code)
    direction, length = ((one.name or "") for one in (*facts.origin.inputs, *facts.origin.inputs)[:2])
    layer = direction.partition(_PARAMETRIZED)[0] if _PARAMETRIZED in direction else direction.rpartition(".")[0]
    text = f"Let the direction of {layer or 'the layer'} begin with numbers, and its length at 0 where the layer is to "
    text += "begin so"
    text, pruned = (f"If it is new, made of zeros: let{text[3:]}", _PRUNED) if facts.origin.step else (text, "")
    called, own = _called(facts), layer.rpartition(".")[2]
    if not layer or called.rpartition(".")[2] != own or not length.startswith(layer):
        return Suggestion(f"{text}, behind the line that makes it.{pruned}")
    lines = facts.written(called)
    where = f", behind {words.lines(lines)}" if lines else ", behind the line that makes it"
    tag = f"  # behind {words.lines(lines)}" if len(lines) == 1 else ""
    code = (
        f"torch.nn.init.normal_({called}{direction[len(layer) :]}, std=0.02); "
        f"torch.nn.init.zeros_({called}{length[len(layer) :]}){tag}"
    )
    return Suggestion(f"{text}{where}.{pruned}", code)


def _kept_pruned(facts: Facts) -> str | None:
    """Return the lines that lay a direction into rows of zeros and set their length to 0, all over the model.

    ``None`` where it is not known what the script calls that, or where it is no row that has a length.
    """
    direction, length = (*facts.origin.inputs, *facts.origin.inputs)[:2]
    model = facts.harm.names.get("model") if facts.harm is not None else None
    name, rows = direction.name or "", direction.shape
    end, other = next((pair for pair in _ENDS if name.endswith(pair[0])), ("", ""))
    if model is None or not end or len(rows) < len("rc") or length.shape != (rows[0], *(1 for _ in rows[1:])):
        return None
    of = naming.free(facts, _PREFIXES, begins=True)
    return (
        f"{of}_w = dict({model}.named_parameters())\n"
        f'for {of}_v in [one for one in {of}_w if one.endswith("{end}")]:\n'
        f"    {of}_rows = ({of}_w[{of}_v] == 0).flatten(1).all(1)\n"
        f'    {of}_w[{of}_v].data[{of}_rows], {of}_w[{of}_v[:-1] + "{other}"].data[{of}_rows] = 0.02, 0.0'
    )


# How names begin: the lines are put beside the script's own.
_PREFIXES = ("pruned", "zeroed", "emptied", "of_pruning")


# What weight_norm calls direction and length: a parametrization, and before that.
_ENDS = ((".original1", "0"), ("weight_v", "g"))


def _is_as_made(facts: Facts) -> bool:
    """Whether direction and length are zeros throughout: so are those that weight_norm makes of a weight of zeros."""
    parts = facts.origin.inputs[:2]
    return len(parts) > 1 and all(one.zeros == one.numel for one in parts)


_PRUNED = " If it was pruned: set its length to 0, and leave the direction as it was."
_PARAMETRIZED = ".parametrizations"


def _called(facts: Facts) -> str:
    """Return what the script calls the layer in the underlined expression, or nothing."""
    found = fitting.parsed(facts.origin)
    called = found[1].func if found is not None and isinstance(found[1], ast.Call) else None
    return ast.unparse(called) if isinstance(called, ast.Name | ast.Attribute) else ""
