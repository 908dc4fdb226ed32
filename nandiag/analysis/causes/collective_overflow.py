"""Gradients that were finite on each rank and not after their exchange (reader side)."""

from __future__ import annotations

import ast
import re

from nandiag.analysis.causes import overflow
from nandiag.analysis.causes.course import courses
from nandiag.analysis.causes.facts import HALF, LARGEST, LIKELY, POSSIBLE, PROVEN, Cause, Facts, dtype_of
from nandiag.analysis.causes.mends.scales import losses as loss_scales
from nandiag.analysis.causes.mends.script import fitting, parsing
from nandiag.analysis.explained.explanation import Explanation
from nandiag.analysis.report import Suggestion
from nandiag.analysis.ways.carried import reduction_of
from nandiag.events import Looked, words

EXPLAIN = Explanation(
    slug="collective_overflow",
    what="The gradients of each rank were finite, and what came out of their exchange was not. Sums over ranks and "
    "compression to half precision leave the range of a dtype that the local values still fit.",
    looks=(
        (
            "error[collective_overflow]: -Inf gradients at step 13: those of rank 1 were too large for their "
            "exchange (fp16_compress_hook)"
        ),
        "the local gradients of rank 1 go to 180161; float16 ends at 65504",
    ),
    fix=(
        Suggestion(
            "Compress to bfloat16, which has the range of float32.",
            "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
        ),
        Suggestion(
            "In an exchange of your own, reduce in float32, or divide by the number of ranks before the sum.",
        ),
        Suggestion(
            "Or leave compression out, and clip before the exchange.",
        ),
    ),
    pages=(
        "ddp_comm_hooks.html",
        "distributed.html",
    ),
)

_BF16 = re.compile(r"bf16|bfloat16", re.IGNORECASE)
_NARROW = re.compile(r"\.half(?=\(\))|\btorch\.(?:float16|half)\b|\bfp16(?=_compress)")
_WIDE = {".half": ".bfloat16", "fp16": "bf16"}
_BF16_HOOK = "bf16_compress_hook"
_NEEDS_NCCL = "DDP takes bf16_compress_hook, which would have the range, only where there are CUDA and NCCL."
_HALF = re.compile(r"fp16|float16|half", re.IGNORECASE)


def explain(facts: Facts) -> Cause | None:
    """Name the exchange of gradients as what left the range of its dtype, where their size allows it."""
    hook = facts.extra.get("comm_hook")
    if isinstance(hook, str) and any(dtype_of(one) in HALF for one in facts.origin.outputs if one.bad):
        return _in_hook(facts, hook)
    if (facts.op or "").startswith("fsdp.chunk_cat"):
        return _in_policy(facts)
    if facts.basis == "exchange" and facts.look is not None and facts.look.facts.get("given_finite") is True:
        return _by_own_call(facts, facts.look)
    if facts.basis != "exchange" or not facts.exchanged or not is_too_large(facts):
        return None
    name = exchange_of(facts)
    dtype = _dtype(facts)
    limit = LARGEST[dtype or "float16"]
    largest = max(facts.exchanged.values())
    sure = dtype is not None or largest > limit
    return Cause(
        slug="collective_overflow",
        evidence=(_text(facts, dtype, limit, largest),),
        suggestions=_advice(facts, name),
        strength=LIKELY if sure else POSSIBLE,
    )


def _by_own_call(facts: Facts, look: Looked) -> Cause:
    """What each rank put into the script's own reduction was seen to be finite."""
    name, product = exchange_of(facts), look.facts.get("reduce") == "product"
    dtype = next((dtype_of(one) for one in facts.origin.outputs if one.bad), None) or "float32"
    does, result = ("multiplies", "product") if product else ("adds up", "sum")
    end = f"ends at {words.number(LARGEST[dtype])}" if dtype in LARGEST else "has an end"
    text = f"{reduction_of(look)[len(name) + 2 : -1]}"
    text = f"{name} {does} what {facts.world} ranks give ({text}): the {result} left {dtype}, which {end}"
    line = (facts.origin.source or "").strip()
    called = _called(facts, name)
    given, module = ("", "dist") if called is None else called[1:]
    if dtype in HALF and not product:
        return Cause("collective_overflow", (text,), _in_one_exchange(facts, name), LIKELY)
    again = "A value that is reduced again and again grows each time"
    if product and called is not None and "PRODUCT" in line:
        mean = f"{line.replace('PRODUCT', 'SUM')}\n{given} /= {module}.get_world_size()"
        help_ = Suggestion(f"Where a mean is meant, add up and divide. {again}: PRODUCT squares it on two ranks.", mean)
        return Cause("collective_overflow", (text,), (help_,), LIKELY)
    # A mean adds up first, and divides what has left the range by then.
    code = None if called is None or product else f"{given} /= {module}.get_world_size()\n{line.replace('AVG', 'SUM')}"
    how = "Where a mean is meant, add up and divide" if product else "Divide before the sum, not after it"
    return Cause("collective_overflow", (text,), (Suggestion(f"{how}. {again}.", code),), LIKELY)


def _in_hook(facts: Facts, hook: str) -> Cause | None:
    """A communication hook was run again, and an op of it left the range of a half dtype."""
    op = overflow.explain(facts)
    if op is None or facts.source != "op":
        return None
    line = (facts.origin.source or "").strip()
    mended = _NARROW.sub(lambda found: _WIDE.get(found[0], "torch.bfloat16"), line)
    code = mended if mended != line else "default_hooks.bf16_compress_hook"
    wide = Suggestion("Exchange in bfloat16, which has the range of float32.", code)
    if _BF16_HOOK in code and _on_cpu(facts):
        wide = Suggestion(f"Leave {hook} out. {_NEEDS_NCCL}", f"# {line}" if _BF16_HOOK in mended else None)
    low = Suggestion(f"Or bring the gradients to scale before {hook}, and back after it.")
    text = f"{hook} exchanges gradients in {dtype_of(facts.origin.outputs[0])}"
    grew = _grown_by_itself(facts)
    if grew is not None:
        kept = Suggestion(_FED_BACK.format(hook))
        hides = Suggestion(f"A wider dtype only puts it off. {wide.text}", wide.code)
        return Cause("collective_overflow", (text, grew), (kept, hides), op.strength, story=True)
    return Cause("collective_overflow", (text,), (wide, low), op.strength, story=True)


_FED_BACK = (
    "Where {} keeps something from step to step and adds it to the next gradients (an error that is fed back), look "
    "at that first: it may be no more than what was left out."
)
# So many times in so many steps at least, in each of them by the first, while the loss does no more than that.
_EACH, _GREW, _STEPS, _AS_IT_WAS = 1.5, 10.0, 4, 3.0


def _grown_by_itself(facts: Facts) -> str | None:
    """Say that the gradients which the hook gave back grew in each step, where the loss did not: it feeds itself."""
    course = next(iter(courses(facts.history, facts.origin.step)), None)
    rows = [] if course is None else [row for row in course.rows if row.norm and row.loss is not None]
    at = len(rows) - 1
    while at > 0 and (rows[at].norm or 0.0) >= _EACH * (rows[at - 1].norm or 0.0):
        at -= 1
    if len(rows) - at < _STEPS:
        return None
    first, last = rows[at], rows[-1]
    grew, loss = (last.norm or 0.0) / (first.norm or 1.0), abs(last.loss or 0.0)
    if grew < _GREW or loss > _AS_IT_WAS * abs(first.loss or 0.0):
        return None
    norms = f"{words.number(first.norm)} to {words.number(last.norm)}"
    losses = f"{words.number(first.loss)} to {words.number(last.loss)}"
    return f"from step {first.step} to step {last.step} the gradient norm went from {norms}, the loss from {losses}"


def _on_cpu(facts: Facts) -> bool:
    return (facts.origin.device or "").startswith("cpu")


def _in_policy(facts: Facts) -> Cause | None:
    """FSDP2 lays the gradients together in the dtype that they are reduced in."""
    narrow = next((dtype_of(one) for one in facts.origin.outputs if one.bad and dtype_of(one) in HALF), None)
    if narrow is None or not facts.finite_inputs:
        return None
    largest = max((fact.absmax or 0.0 for fact in facts.origin.inputs), default=0.0)
    end = f"{narrow} ends at {words.number(LARGEST[narrow])}"
    text = f"FSDP2 reduces gradients in {narrow}: they go to {words.number(largest)}, and {end}"
    wide = Suggestion("Reduce in float32, by the policy.", "MixedPrecisionPolicy(reduce_dtype=torch.float32)")
    low = Suggestion("Or bring the loss to scale: a mean in the place of a sum, targets of ordinary size.")
    return Cause("collective_overflow", (text,), (wide, low), PROVEN, story=True)


def is_too_large(facts: Facts) -> bool:
    """Whether what the ranks put in may leave, added up, the dtype in which it was exchanged."""
    return max(facts.exchanged.values(), default=0.0) * facts.world > LARGEST[_dtype(facts) or "float16"]


def _dtype(facts: Facts) -> str | None:
    """Return the dtype of the exchange: as seen in a replay of it, else as its name tells."""
    known = facts.look.facts if facts.look is not None else {}
    seen = known.get("sent_dtype") or known.get("exchanged_dtype")
    return seen if isinstance(seen, str) and seen in LARGEST else dtype_in(exchange_of(facts))


def exchange_of(facts: Facts) -> str:
    """Return the name of the collective, or of the communication hook."""
    known = facts.look.facts if facts.look is not None else {}
    return str(known.get("collective") or known.get("carried_by") or "exchange")


def dtype_in(name: str) -> str | None:
    """Return the half dtype that a hook's name tells, or ``None``."""
    return "bfloat16" if _BF16.search(name) else "float16" if _HALF.search(name) else None


def limit_of(name: str) -> float:
    """Return the largest number that an exchange of this name can hold; float16's where no dtype is told."""
    return LARGEST[dtype_in(name) or "float16"]


def _by_script(facts: Facts) -> bool:
    return facts.look is not None and facts.look.facts.get("by") == "script"


def _text(facts: Facts, dtype: str | None, limit: float, largest: float) -> str:
    end = f"{dtype or 'float16'} ends at {words.number(limit)}"
    alone = [rank for rank, size in facts.exchanged.items() if size > limit]
    if alone:
        if dtype is None:
            end += ", if that is what it was exchanged in"
        return f"the local gradients of {words.ranks(alone)} go to {words.number(largest)}; {end}"
    unsure = "" if dtype else ", if they were added in it"
    return f"local gradients go to {words.number(largest)}, and {facts.world} ranks add theirs up; {end}{unsure}"


def _own_cast(facts: Facts) -> Suggestion | None:
    """Return the script's own cast of what it exchanges, to bfloat16, where its text shows one."""
    site = facts.look.site if facts.look is not None else None
    names = site.around.names if site is not None and site.around is not None else ()
    for one in names:
        mended = _NARROW.sub(lambda found: _WIDE.get(found[0], "torch.bfloat16"), one.text)
        if one.inside and mended != one.text:
            text = f"Exchange in bfloat16, which has the range of float32: {one.name} is made in line {one.line}."
            return Suggestion(text, f"{one.name} = {mended}")
    return None


def _called(facts: Facts, name: str, *, gradients: bool = False) -> tuple[str, str, str] | None:
    """Return the script's line that calls the exchange by its ``name``, the variable in it, and torch's module."""
    found = fitting.parsed(facts.origin)
    node = None if found is None else found[1]
    given = node.args[0] if isinstance(node, ast.Call) and node.args else None
    # A gradient of a weight in half precision cannot be of another dtype.
    bound = isinstance(given, ast.Name) or (
        isinstance(given, ast.Attribute) and (given.attr == "grad" if gradients else given.attr not in {"grad", "data"})
    )
    if not isinstance(node, ast.Call) or given is None or not bound:
        return None
    line, (module, _, called) = (facts.origin.source or "").strip(), ast.unparse(node.func).rpartition(".")
    own = called == name and module not in {"", "self"} and parsing.statement(line) is not None
    return (line, ast.unparse(given), module) if own else None


def _called_beside(facts: Facts, name: str) -> str | None:
    """Return the script's own call with a division before it, where it shares its line with something else."""
    found = fitting.parsed(facts.origin)
    node = None if found is None else found[1]
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != name:
        return None
    given, module = node.args[0] if node.args else None, ast.unparse(node.func.value)
    if not isinstance(given, ast.Name) or module == "self":
        return None
    return f"{given.id} /= {module}.get_world_size()\n{ast.unparse(node)}"


def _in_its_line(name: str, called: tuple[str, str, str]) -> tuple[Suggestion, ...]:
    """Say what to do ahead of the script's own call."""
    line, given, module = called
    wide = Suggestion(f"Make the {name} in float32, by a cast before it.", f"{given} = {given}.float()\n{line}")
    divided = f"{given} /= {module}.get_world_size()\n{line}"
    return wide, Suggestion("Or divide before the sum, not after it, and clip what goes in.", divided)


def _in_one_exchange(facts: Facts, name: str) -> tuple[Suggestion, ...]:
    """Say what to do where it is known what each rank put into it."""
    divide = Suggestion("Or divide before the sum, not after it, and clip what goes in.")
    own, called = _own_cast(facts), _called(facts, name)
    if own is not None:
        return own, divide
    if called is not None:
        return _in_its_line(name, called)
    if (called := _called(facts, name, gradients=True)) is not None:
        line, given, module = called
        wide = f"Or make the {name} in float32: of a copy in float32, which is copied back behind it."
        copied = f"total = {given}.float()\n{line.replace(given, 'total', 1)}\n{given}.copy_(total)"
        divided = Suggestion("Divide before the sum, not after it.", f"{given} /= {module}.get_world_size()\n{line}")
        return divided, Suggestion(wide, copied)
    if facts.origin.file is not None and facts.look is not None and "comm_hook" in facts.look.facts:
        return Suggestion(f"Make the {name} in float32, or in bfloat16: by another cast before it."), divide
    if (beside := _called_beside(facts, name)) is not None:
        wide = f"Or make the {name} in float32: of what it is given as that, before it is called."
        return Suggestion("Divide before the sum, not after it, and clip what goes in.", beside), Suggestion(wide)
    cast = f"Make the {name} in float32: under FSDP2 by the policy, elsewhere by a cast before it."
    return Suggestion(cast, "MixedPrecisionPolicy(reduce_dtype=torch.float32)"), divide


def _advice(facts: Facts, name: str) -> tuple[Suggestion, ...]:
    if facts.look is not None and "sent_dtype" in facts.look.facts:
        return _in_one_exchange(facts, name)
    called = _called(facts, name) if _by_script(facts) else None
    if not _by_script(facts):
        wide = Suggestion("Exchange in bfloat16, which has the range of float32.", "default_hooks.bf16_compress_hook")
        if _on_cpu(facts):
            low = Suggestion("Bring the loss down: its gradients are larger than float16 holds.")
            return (Suggestion(f"Leave {name} out. {_NEEDS_NCCL}"), low)
        return (
            wide,
            Suggestion(f"Or leave {name} out, or bring the loss down: its gradients are larger than float16 holds."),
        )
    scale = loss_scales.too_high(facts, max(facts.exchanged.values(), default=0.0) * facts.world)
    scaled = () if scale is None else (Suggestion(scale),)
    if called is not None:
        return (*scaled, *_in_its_line(name, called))
    return (
        *scaled,
        Suggestion("Reduce in float32, or in bfloat16 where the links are slow.", "gradient = p.grad.float()"),
        Suggestion("Or divide before the sum, not after it.", "gradient = p.grad.half() / dist.get_world_size()"),
    )
