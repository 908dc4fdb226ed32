"""A CTC target that is longer than its input allows: no alignment exists, and the loss is infinite (reader side)."""

from __future__ import annotations

import ast

from nandiag.analysis.causes.facts import Cause, Facts
from nandiag.analysis.causes.mends.script import fitting
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import words

EXPLAIN = Explanation(
    slug="ctc_infeasible",
    what="A CTC target cannot be aligned with its input: it needs one frame for each symbol, and one more between "
    "two that are equal. No alignment exists, and the loss is infinite.",
    looks=(
        "error[ctc_infeasible]: +Inf born on rank 0 at step 13 in loss of CTCLoss",
        "1 of 8 targets cannot be aligned: longer than the input allows",
    ),
    fix=(
        Suggestion(
            "Drop samples whose input is too short for their target.",
            "repeats = torch.stack([(one[:n].diff() == 0).sum() for one, n in zip(targets, target_lengths)])\n"
            "input_lengths >= target_lengths + repeats",
        ),
        Suggestion(
            "Or let such samples count as zero.",
            "nn.CTCLoss(zero_infinity=True)",
        ),
        Suggestion(
            "Check that input_lengths count the frames behind any pooling or stride.",
        ),
    ),
    pages=(
        "generated/torch.nn.CTCLoss.html",
        "generated/torch.nn.functional.ctc_loss.html",
    ),
)

OPS = frozenset({"_ctc_loss", "_cudnn_ctc_loss", "ctc_loss"})


def explain(facts: Facts) -> Cause | None:
    """Name an infinite CTC loss of finite log-probabilities; the second output, alpha, holds -Inf by design."""
    if facts.op not in OPS or not facts.finite_inputs or not facts.origin.outputs:
        return None
    loss = facts.origin.outputs[0]
    if not loss.posinf:
        return None
    many = "the target is" if loss.numel == 1 else f"{loss.posinf} of {words.count(loss.numel, 'target')} cannot be"
    text = f"{many} aligned: longer than the input allows" if loss.numel > 1 else f"{many} longer than the input allows"
    needs = "A target needs one frame for each symbol, and one more between two that are equal."
    if _by_repeats(facts):
        needs += " No target has more symbols than its input has frames: it is the repeats that do not fit."
    fitted = _asked(facts) or _set(facts)
    return Cause(
        slug="ctc_infeasible",
        evidence=(text, needs),
        suggestions=(
            Suggestion("Let such samples count as zero.", fitted or "nn.CTCLoss(zero_infinity=True)"),
            Suggestion("Or check the lengths, and drop samples whose input is too short.", _fits(facts)),
        ),
    )


def _by_repeats(facts: Facts) -> bool:
    """Whether the longest target has no more symbols than the shortest input has frames."""
    frames, symbols = facts.origin.inputs[2:] if len(facts.origin.inputs) == len(_PARAMETERS) else (None, None)
    if frames is None or symbols is None or frames.min is None or symbols.max is None:
        return False
    return symbols.max <= frames.min


def _asked(facts: Facts) -> str | None:
    """Return the line that asks the function for it: the call of torch's, or of what the script made of that."""
    call = _call(facts)
    if call is None or _is_module(facts, call):
        return None
    return fitting.with_keyword(facts.origin, "zero_infinity=True")


def _set(facts: Facts) -> str | None:
    """Return the line that sets it on the module that is called here, behind the one that makes that."""
    call = _call(facts)
    if call is None or not _is_module(facts, call) or not isinstance(call.func, _NAMED):
        return None
    name = ast.unparse(call.func)
    lines = facts.written(name)
    return f"{name}.zero_infinity = True" + (f"  # behind {words.lines(lines)}" if lines else "")


def _is_module(facts: Facts, call: ast.Call) -> bool:
    return facts.origin.module_class == _MODULE or f"{_MODULE}(" in _made(facts, call)


def _made(facts: Facts, call: ast.Call) -> str:
    """Return the text that made what is called, also as one of several (``LOSSES["ctc"]``)."""
    name = call.func.value if isinstance(call.func, ast.Subscript) else call.func
    return facts.kind(ast.unparse(name))


def _fits(facts: Facts) -> str:
    """Return the condition in the names of the call; targets lie one behind the other, or each in a row of its own."""
    targets, frames, lengths = (_name(facts, place) for place in (1, 2, 3))
    # Lists of numbers, or tensors that torch made such of: there is one way to write it for both.
    are_tensors = _OF_TENSORS in (facts.origin.op or "")
    counted = lengths if are_tensors else f"torch.as_tensor({lengths})"
    given = facts.origin.inputs
    if len(given) > 1 and len(given[1].shape) == 1:
        many = f"{targets}.split({counted}.tolist())"
        each = f"(one.diff() == 0).sum() for one in {many}"
    else:
        each = f"(one[:n].diff() == 0).sum() for one, n in zip({targets}, {lengths})"
    frames = frames if are_tensors else f"torch.as_tensor({frames})"
    repeats = f"{_named(facts)}repeats = {counted}.new_tensor([{each}])"
    return f"{repeats}\nfits = {frames} >= {counted} + repeats  # keep these alone"


def _name(facts: Facts, place: int) -> str:
    """Return what the call is given there, where that is a name; else what torch calls it."""
    given = _given(facts, place)
    return ast.unparse(given) if isinstance(given, ast.Name | ast.Attribute) else _PARAMETERS[place]


def _named(facts: Facts) -> str:
    """Return the lines that give what is no name in the call the name that torch calls it by."""
    given = ((_PARAMETERS[place], _given(facts, place)) for place in (1, 2, 3))
    made = ((name, node) for name, node in given if not isinstance(node, ast.Name | ast.Attribute | None))
    return "".join(f"{name} = {ast.unparse(node)}\n" for name, node in made)


def _given(facts: Facts, place: int) -> ast.expr | None:
    call = _call(facts)
    if call is None or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    words_of = {one.arg: one.value for one in call.keywords}
    return call.args[place] if place < len(call.args) else words_of.get(_PARAMETERS[place])


def _call(facts: Facts) -> ast.Call | None:
    """Return the underlined call of the module, or of the function."""
    found = fitting.parsed(facts.origin)
    called = None if found is None else found[1]
    if not isinstance(called, ast.Call):
        return None
    is_own = ast.unparse(called.func).rpartition(".")[2] == _FUNCTION or facts.origin.module_class == _MODULE
    made = _made(facts, called)
    return called if is_own or _FUNCTION in made or f"{_MODULE}(" in made else None


_NAMED = (ast.Name, ast.Attribute, ast.Subscript)
_FUNCTION, _MODULE = "ctc_loss", "CTCLoss"
_PARAMETERS = ("log_probs", "targets", "input_lengths", "target_lengths")
_OF_TENSORS = ".Tensor"
