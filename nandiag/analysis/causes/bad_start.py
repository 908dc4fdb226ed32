"""Weights that were bad before their first step: checkpoint, memory never written, or initialisation (reader side)."""

from __future__ import annotations

import ast
import re
from math import prod

from nandiag.analysis.causes.facts import LIKELY, POSSIBLE, Cause, Facts
from nandiag.analysis.causes.log_of_zero import LOGS
from nandiag.analysis.causes.mends import numpys, unwritten
from nandiag.analysis.causes.mends.digits import loaded
from nandiag.analysis.causes.mends.script import fitting
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.events import TensorFact

# What is saved holds dicts within dicts, as that of a model beside that of its optimizer, and lists.
_WALK = """\
parts = [("state", state)]
for name, part in parts:
    inner = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, (list, tuple)) else ()
    parts += [(f"{name}[{key!r}]", one) for key, one in inner]
bad = [name for name, part in parts if torch.is_tensor(part) and not part.isfinite().all()]"""
EXPLAIN = (
    Explanation(
        slug="checkpoint_corruption",
        what="A resumed run began with a weight, a buffer or optimizer state that is not finite. It was saved bad, "
        "cut short while it was written, or changed between loading and the first step (a cast to float16, "
        "for example).",
        looks=(
            "error[checkpoint_corruption]: NaN in parameter 2.weight on rank 0 before the first step",
            "The run was resumed, and the tensor was bad before its first step here.",
        ),
        fix=(
            Suggestion(
                "Resume from an older checkpoint.",
            ),
            Suggestion(
                "Check the file as it lies on disk, before anything else touches it.",
                f'state = torch.load("step.pt", map_location="cpu", weights_only=True)\n{_WALK}',
            ),
            Suggestion(
                "Write checkpoints to a temporary file and rename it, and never while a loss is not finite.",
            ),
        ),
        pages=(
            "notes/serialization.html",
            "generated/torch.load.html",
        ),
    ),
    Explanation(
        slug="uninitialised_memory",
        what="A tensor holds what happened to lie in memory: torch.empty, to_empty or empty_like made it, and "
        "nothing wrote all of it. The report says what points to that: magnitudes or bit patterns that no "
        "arithmetic makes, or torch's own filling of unwritten memory in deterministic mode.",
        looks=(
            "error[uninitialised_memory]: NaN in parameter 1.gain on rank 0 before the first step",
            (
                "It is NaN throughout, and nothing wrote to it since it was made: so is what torch.empty hands out "
                "in the deterministic mode of this run. In another mode it holds what lay in memory."
            ),
        ),
        fix=(
            Suggestion(
                "Write every element: initialise the tensor after torch.empty, to_empty or a resize.",
                "torch.nn.init.normal_(p, std=0.02)",
            ),
            Suggestion(
                "After model.to_empty(device=...), call reset_parameters() on every module, and fill buffers too.",
            ),
            Suggestion(
                "To make such faults show each time, let torch fill unwritten memory with NaN.",
                "torch.use_deterministic_algorithms(True)\ntorch.utils.deterministic.fill_uninitialized_memory = True",
            ),
        ),
        pages=(
            "generated/torch.empty.html",
            "generated/torch.nn.Module.html",
            "deterministic.html",
            "nn.init.html",
        ),
    ),
    Explanation(
        slug="init_nonfinite",
        what="A weight or a buffer was not finite before its first update. No step of this run made it so: its "
        "initialiser did, the file it was loaded from, a cast, or code between two steps that writes to it.",
        looks=(
            "error[init_nonfinite]: NaN in parameter items.weight on ranks 0-1 before the first step",
            "No step of this run made it so: it was bad before the first one.",
        ),
        fix=(
            Suggestion(
                "Look at what fills the tensor that the report names, and check it right after.",
                "assert all(p.isfinite().all() for p in model.parameters())",
            ),
            Suggestion(
                "An initialiser that divides by a fan of 0, or takes the root of a negative number, is the usual one.",
            ),
            Suggestion(
                "Where memory was never written: nandiag explain uninitialised_memory.",
            ),
        ),
        pages=(
            "nn.init.html",
            "generated/torch.empty.html",
        ),
    ),
)

_STARTS = {"init", "checkpoint"}
_HUGE, _TINY = 1e30, 1e-30
_ODD = "Magnitudes like these are those of memory that nobody wrote (torch.empty)."
_FILLED = (
    "It is NaN throughout, and nothing wrote to it since it was made: so is what torch.empty hands out in the "
    "deterministic mode of this run. In another mode it holds what lay in memory."
)
# Modules of torch's with a ``reset_parameters`` of their own.
_RESETS_ITSELF = frozenset(
    {"Linear", "Bilinear", "Embedding", "EmbeddingBag", "LayerNorm", "RMSNorm", "GroupNorm", "PReLU"}
    | {"BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "InstanceNorm1d", "InstanceNorm2d"}
    | {"Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"}
    | {"RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"}
)
_EMPTIED = re.compile(r"([A-Za-z_][\w.]*)\.to_empty\(")
_OUTSIDE = "It was bad when it was first looked at, before step {}: it was written outside of a step."
_WRITE = Suggestion(
    "Write every element after torch.empty or to_empty: initialise the tensor.",
    "torch.nn.init.normal_(p, std=0.02)",
)

_AGAIN = (
    "Compute {0} again behind this line, as {1} does: to_empty leaves buffers unwritten too, and one that is not "
    "persistent is in no state_dict, so that no checkpoint fills it."
)


def explain(facts: Facts) -> Cause | None:
    """Tell a bad checkpoint, unwritten memory and a bad initialisation apart, as far as the values do."""
    if facts.source == "op" and facts.op in unwritten.HANDED_OUT:
        return unwritten.left(facts, facts.op)
    if "as_filled" in facts.extra or _is_left(facts):
        return unwritten.left(facts, str(facts.extra.get("call")))
    bad = facts.bad_state
    if bad is None or facts.origin.phase not in _STARTS:
        return None
    return _as_seen(facts) if facts.weight is not None else _by_values(facts, bad)


def _is_left(facts: Facts) -> bool:
    """Whether it is memory that was handed out, and that none but torch's own calls were given to write into."""
    return facts.weight is None and facts.extra.get("birth") == "unwritten" and not facts.extra.get("exposed")


def _by_values(facts: Facts, bad: TensorFact) -> Cause:
    if facts.origin.phase == "checkpoint" or (facts.origin.global_step or 0) > facts.origin.step:
        return _checkpoint(facts)
    if facts.harm is not None and bad.name is not None and bad.name in facts.harm.untouched:
        return _unwritten(facts, _FILLED)
    if _looks_unwritten(bad):
        return _unwritten(facts, _ODD)
    if facts.origin.step:
        return _written_later(facts)
    return _initialisation(facts, None if _all_bad(facts) else _unwritten_rows(bad))


def _as_seen(facts: Facts) -> Cause:
    """The call by which it became bad was seen."""
    how, call = facts.extra.get("birth"), facts.extra.get("call")
    if "saved_at" in facts.extra:
        return _saved(facts)
    if how == "unwritten" and facts.extra.get("exposed"):
        return _exposed(facts, f"{call} handed out memory here, which was given to others than torch since (numpy).")
    if how == "unwritten":
        used = "it was used" if "handed_at_step" in facts.extra else "its first step"
        return _unwritten(facts, f"{call} handed out memory here, and nothing wrote all of it before {used}.")
    if how == "file" or "key" in facts.extra:
        return _from_file(facts)
    check = _check(facts)
    above = _above_zero(facts)
    step = facts.origin.step
    seen = "No step of this run made it so: it was bad before the first one."
    if step and how == "last":
        seen = _OUTSIDE.format(step)
    found = (check,) if above is None else (above, check)
    said = facts.extra.get("numpy")
    if isinstance(said, str):
        told = (f"numpy says: {said}", seen)
        return Cause("init_nonfinite", told, (numpys.guard(facts, said), check), POSSIBLE, story=True)
    return Cause("init_nonfinite", (seen,), found, POSSIBLE, story=True, general=True)


def _exposed(facts: Facts, given: str) -> Cause:
    """What others wrote there was not seen: whether anybody wrote all of it is not known, but by its values."""
    if facts.bad_state is not None and _looks_unwritten(facts.bad_state):
        return _unwritten(facts, _ODD)
    told = f"{given} What they wrote there was not seen, nor whether they wrote all of it."
    return Cause("init_nonfinite", (told,), (_check(facts),), POSSIBLE, story=True, general=True)


def _check(facts: Facts) -> Suggestion:
    """In ``__init__`` of a module of the script's own there is no model yet, but the module's own weight."""
    name = (facts.weight or "").rpartition(".")[2]
    if facts.origin.function == "__init__" and name.isidentifier():
        return Suggestion("Check it where this module is made, at the end.", f"assert self.{name}.isfinite().all()")
    text = "Check it right after this line, before training."
    if facts.holder is not None and facts.holder not in (facts.origin.source or ""):
        text = f"Check it where {facts.holder} is made, before training."
    return Suggestion(text, facts.checked_state())


def _above_zero(facts: Facts) -> Suggestion | None:
    """An infinity of an expression in which there is one logarithm: no other part of it has a place where it is one."""
    found, bad = fitting.parsed(facts.origin), facts.bad_state
    if found is None or bad is None or bad.nan:
        return None
    nodes = [node for node in ast.walk(found[1]) if isinstance(node, ast.expr)]
    parts = [part for node in nodes for op in LOGS if (part := fitting.target(node, op)) is not None]
    if len(parts) != 1 or any(isinstance(node, ast.Div | ast.Pow) for node in ast.walk(found[1])):
        return None
    code = fitting.line_of(facts.origin, found[0], parts[0], lambda text: f"{text}.clamp_min(1e-6)")
    text = "By the line it is infinite where the logarithm is that of 0: keep what goes into it above 0."
    return Suggestion(text, code)


def _saved(facts: Facts) -> Cause:
    """This run itself saved it bad, and loaded it again."""
    check = Suggestion(
        "Check what is saved before it is: a bad file takes the place of a good one.",
        f"{_WALK}\nassert not bad, bad",
    )
    return Cause("checkpoint_corruption", (), (check,), POSSIBLE, story=True, general=facts.extra.get("birth") == "op")


def _from_file(facts: Facts) -> Cause:
    key, file = facts.extra.get("key"), facts.extra.get("file")
    held = f"{key} of {file}" if file else f"{key} of what was read from a file"
    sure = facts.extra.get("birth") == "file"
    seen = f"It was bad already in {held}." if sure else f"It was last written from {held}."
    steps = (
        Suggestion("Resume from an older checkpoint, and check that the file is whole."),
        Suggestion("Check what was loaded, before it is used.", facts.checked_state()),
    )
    return Cause("checkpoint_corruption", (seen,), steps, LIKELY if sure else POSSIBLE, story=True)


def _looks_unwritten(bad: TensorFact) -> bool:
    """Whether the finite part has magnitudes that memory never written shows and no initialisation does."""
    return bad.bad < bad.numel and bad.absmax is not None and (bad.absmax > _HUGE or 0 < bad.absmax < _TINY)


def _unwritten_rows(bad: TensorFact) -> str | None:
    """Return a sentence where NaN fills the tensor, or its last rows, and nothing else: perhaps nobody wrote them.

    In deterministic mode, and only there, torch fills memory that it hands out unwritten with NaN.
    """
    if bad.nan != bad.bad or not bad.nan:
        return None
    fills = "so looks memory that nobody wrote in deterministic mode, and what a failed initialiser filled"
    if bad.bad == bad.numel:
        return f"It is NaN throughout, and other tensors are not: {fills}."
    first, row = bad.first_bad, prod(bad.shape[1:])
    if not first or len(first) < 2 or any(first[1:]) or bad.nan != (bad.shape[0] - first[0]) * row:
        return None
    return f"All rows from {first[0]} on are NaN, and none before: {fills}."


def _all_bad(facts: Facts) -> bool:
    return facts.harm is not None and facts.harm.total > 1 and facts.harm.bad == facts.harm.total


def _checkpoint(facts: Facts) -> Cause:
    return Cause(
        slug="checkpoint_corruption",
        evidence=("The run was resumed, and the tensor was bad before its first step here.",),
        suggestions=(
            Suggestion("Resume from an older checkpoint, and check that the file is whole."),
            Suggestion("Check what was loaded, before it is used.", facts.checked_state()),
        ),
        strength=LIKELY,
        story=True,
    )


def _unwritten(facts: Facts, text: str) -> Cause:
    passed = _passed_over(facts)
    told = (text,) if passed is None else (text, passed[0])
    mends = () if passed is None else (passed[1],)
    return Cause("uninitialised_memory", told, (*mends, *_reset(facts), _write(facts)), LIKELY, story=True)


def _passed_over(facts: Facts) -> tuple[str, Suggestion] | None:
    """Tell of the load that was to fill it, from a checkpoint that holds nothing by its name."""
    key, file, at = (facts.extra.get(name) for name in ("missing_key", "missing_in", "passed_over_at"))
    if not isinstance(key, str) or not isinstance(file, str):
        return None
    where = f", which line {at[1]} loads," if isinstance(at, list) and at[:1] == [facts.origin.file] else ""
    mend = f"Look at what {file} has in the place of {key}, under a name of before say, and load that; a planner with "
    return (
        f"{file}{where} holds no {key}: a partial load passes over it, and says nothing.",
        Suggestion(f"{mend}allow_partial_load=False raises where a key is missing."),
    )


def _reset(facts: Facts) -> list[Suggestion]:
    """Tell what fills modules of torch's own again: a script that writes ``reset_parameters`` leaves some out."""
    emptied = _EMPTIED.search(facts.origin.source or "")
    if emptied is None or facts.origin.module_class not in _RESETS_ITSELF:
        return []
    code = f"[m.reset_parameters() for m in {emptied[1]}.modules() if hasattr(m, 'reset_parameters')]"
    text = "Have each module fill its parameters behind this line; what a module resets does not reset its submodules."
    return [Suggestion(text, code)]


def _write(facts: Facts) -> Suggestion:
    """Name the tensor as its own module does."""
    state, owner = facts.bad_state, facts.origin.module_class
    name = facts.weight or (state.name if state is not None else None) or ""
    last = name.rpartition(".")[2]
    if facts.extra.get("weight_is") == "buffer" and _EMPTIED.search(facts.origin.source or ""):
        return Suggestion(_AGAIN.format(last, f"the __init__ of {owner}" if owner else "its module's __init__"))
    if (filled := unwritten.filled(facts)) is not None:
        return filled
    if not owner or not last.isidentifier():
        return _WRITE
    fill = _filled_as(str(facts.extra.get("made_as") or ""), f"self.{last}")
    if _EMPTIED.search(facts.origin.source or ""):  # on meta an __init__ fills nothing
        text = f"Initialise every element behind to_empty: give {owner} a reset_parameters, and call it there."
        return Suggestion(text, f"def reset_parameters(self):\n    {fill}")
    return Suggestion(f"Write every element after torch.empty or to_empty: initialise it in {owner}.", fill)


def _filled_as(made: str, name: str) -> str:
    """Return the call that gives a tensor what its class ``made`` it of, where that shows the value."""
    filled = re.search(r"\btorch\.(ones|zeros)(?:_like)?\(", made)
    return f"torch.nn.init.{filled[1]}_({name})" if filled else f"torch.nn.init.normal_({name}, std=0.02)"


def _written_later(facts: Facts) -> Cause:
    """A tensor that was first looked at in the middle of the run: another optimizer, or written since the last step."""
    step = facts.origin.step
    if facts.basis == "look":
        seen = f"It was bad when step {step} first used it, and no update that was watched made it so."
    else:
        seen = _OUTSIDE.format(step)
    half = loaded.of_half(facts)
    return Cause(
        slug="init_nonfinite",
        evidence=(loaded.seen(facts) or seen, *half),
        suggestions=(
            _given(facts)
            or loaded.look(facts, half=bool(half))
            or Suggestion(
                f"Check what writes it between steps {step - 1} and {step}: load_state_dict, a copy in half precision, "
                "an average of weights, an initialiser.",
                facts.checked_state(),
            ),
        ),
        strength=POSSIBLE,
        story=True,
    )


def _given(facts: Facts) -> Suggestion | None:
    """Say what a buffer was made of where the line calls its module, and the script gave it that as it made it."""
    found, name = fitting.parsed(facts.origin), facts.bad_state.name if facts.bad_state is not None else None
    call = None if found is None else found[1]
    known = facts.meaning(call.func.id) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else None
    nodes = [] if known is None else fitting.nodes_of(known.text)
    words = [node for node in nodes if isinstance(node, ast.keyword) and node.arg is not None and node.arg == name]
    if (
        facts.source != "buffer"
        or known is None
        or len(words) != 1
        or f"{facts.origin.module_class}(" not in known.text
    ):
        return None
    text = f"It is what {known.name} was given in line {known.line}, {ast.unparse(words[0])}: look at how that is made"
    count = ". Of a class without a sample it divides by 0, as a rule." if name in {"weight", "pos_weight"} else "."
    return Suggestion(f"{text}{count}", f"assert {known.name}.{name}.isfinite().all()")


def _initialisation(facts: Facts, rows: str | None) -> Cause:
    check = Suggestion(
        "Check what fills this tensor before training: its initialiser, the file it is loaded from, or memory that "
        "torch.empty left unwritten."
    )
    if facts.harm is not None and facts.harm.what == "optimizer_state":
        text = "Check the optimizer's state before training: the file that it is loaded from, and what fills it."
        check, rows = Suggestion(text, facts.checked_state()), None
    return Cause(
        slug="init_nonfinite",
        evidence=("No step of this run made it so: it was bad before the first one.", *([rows] if rows else [])),
        suggestions=(check, _WRITE) if rows else (check,),
        strength=POSSIBLE,
        story=True,
    )
