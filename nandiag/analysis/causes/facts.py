"""What a cause is told and what it answers (reader side)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace

from nandiag.analysis.report import Origin, Suggestion
from nandiag.events import (
    Around,
    Carried,
    Compared,
    Harm,
    History,
    Looked,
    Meaning,
    Skipped,
    TensorFact,
    Trainer,
    Warned,
    words,
)

POSSIBLE, LIKELY, PROVEN = 1, 2, 3

LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2fnuz": 57344.0,
}
HALF = ("float16", "bfloat16")
# Half the distance from 1 to the next number below it, up to which it is rounded to 1.
NEAR_ONE = {"float16": 2.0**-12, "bfloat16": 2.0**-9}
_LOADED = re.compile(r"([A-Za-z_][\w.]*)\.load_state_dict\(")
_ENGINE_CALLS = ("backward(", "autograd.grad(")


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known about one origin. ``basis``: look, state, loss, exchange, gradient or scale.

    ``exchanged`` are the largest local gradients of ranks, by rank, where the origin is their exchange; ``silent`` are
    the ranks that did not look there, and of which no harm was seen in that step.
    ``strikes`` are the steps in which the origin's device made what did not show when it was run again.
    ``warned`` are the early warnings of the origin's ranks up to its step, ``warned_by`` the ranks that gave them, one
    each, where the origin has several.
    ``born_bad`` are facts on the weight that was bad from birth: those of ``origin`` are on the op that made it so.
    ``compared`` says how the step compares with those before.
    ``unharmed``: without torch's own NaN check the step was finite.
    ``rates`` are the learning rates of the ranks at one and the same step; ``shared``: their gradients were the same.
    ``trained`` are the variables that a script without an optimizer updates by hand, where all are known.
    """

    origin: Origin
    basis: str
    harm: Harm | None = None
    look: Looked | None = None
    skip: Skipped | None = None
    history: History | None = None
    received: tuple[int, ...] = ()
    known: bool = True
    world: int = 1
    exchanged: dict[int, float] = field(default_factory=dict)
    silent: tuple[int, ...] = ()
    warned: tuple[Warned, ...] = ()
    warned_by: tuple[int, ...] = ()
    strikes: tuple[int, ...] = ()
    trained: tuple[str, ...] = ()
    born_bad: TensorFact | None = None
    compared: Compared | None = None
    unharmed: bool = False
    rates: dict[int, float] = field(default_factory=dict)
    shared: bool = False

    @property
    def node(self) -> str | None:
        """The autograd node whose own formula the origin's op belongs to.

        ``None`` in forward, and in backward where the user's own code ran (a tensor hook, a ``Function.backward``):
        its ops are explained like those of forward.
        """
        return None if self.by_user else self.origin.node

    @property
    def by_user(self) -> bool:
        """Whether the op ran in Python code of the user's inside backward: no forward op answers for it."""
        origin = self.origin
        if origin.node is None or origin.forward_op is not None or origin.file is None:
            return False
        shown = (origin.source or "")[slice(*(origin.column or (None, None)))]
        return not any(word in shown for word in _ENGINE_CALLS)

    @property
    def source(self) -> str | None:
        """What the second look says the origin is: op, parameter, buffer, input or outside; ``None`` without one."""
        return self.look.source if self.basis == "look" and self.look is not None else None

    @property
    def extra(self) -> dict[str, object]:
        """What the second look noted besides: scalar arguments (``arg1``), the op's result in float64, the library."""
        return self.look.facts if self.source is not None and self.look is not None else {}

    @property
    def scale_alone(self) -> float | None:
        """The scale of a GradScaler without which the step was finite when it was run again."""
        return self.number("scale_alone")

    def read_from(self, name: str | None = None) -> str | None:
        """Say where the script read a weight or a buffer, or a state, that went into the op: the first without a name.

        It is told only in which file and line; what has written there since, an optimizer say, is not known.
        """
        known = self.extra.get("read_from")
        found = known.get(name or next(iter(known), "")) if isinstance(known, dict) else None
        if not isinstance(found, list) or len(found) != len(("path", "key", "file", "line")):
            return None
        path, key, file, line = map(words.file_name, found)
        of = "a file" if found[0] is None else path
        return f"read from {of} (there {key}) at {file}:{line}" if found[2] is not None else f"read from {of}"

    def on_rank(self, warned: Warned) -> str:
        """Return " on rank 1" where the origin's ranks are several, and not all of them gave such a warning."""
        pairs = list(zip(self.warned, self.warned_by, strict=False))
        same = [(one, rank) for one, rank in pairs if (one.slug, one.step) == (warned.slug, warned.step)]
        ranks = {rank for one, rank in same if one.facts == warned.facts}
        return f" on {words.ranks(ranks)}" if ranks and ranks != set(self.origin.ranks) else ""

    def meaning(self, name: str) -> Meaning | None:
        """Return what a name in the underlined expression stands for, by the script's own text."""
        names = self.around.names if self.around is not None else ()
        return next((one for one in names if one.name == name), None)

    def made(self, name: str) -> Meaning | None:
        """Return what made what a name stands for, or stood for once."""
        kinds = self.around.kinds if self.around is not None else ()
        return self.meaning(name) or next((one for one in kinds if one.name == name), None)

    def kind(self, name: str) -> str:
        """Return the text that made what a name stands for, or stood for once; empty where it is not known."""
        known = self.made(name)
        return "" if known is None else known.text

    def written(self, name: str) -> tuple[int, ...]:
        """Return the lines of the origin's file that write ``name``, where all of them are known."""
        found = self.around.written if self.around is not None else ()
        return next((one.lines for one in found if one.name == name), ())

    def scaled(self, name: str) -> tuple[int, ...]:
        """Return those of the lines that write ``name`` which multiply or divide what it was."""
        found = self.around.written if self.around is not None else ()
        return next((one.scaled for one in found if one.name == name), ())

    def alias(self, name: str) -> str:
        """Return the attribute (``self.temp.t``) that ``name`` only is another name for; empty where it is none."""
        text = known.text if (known := self.meaning(name)) is not None else ""
        return text if "." in text and self.written(text) else ""

    @property
    def uses(self) -> tuple[str, ...]:
        """Statements behind the underlined one that use what it is assigned to."""
        return self.around.uses if self.around is not None else ()

    @property
    def again(self) -> tuple[int, ...]:
        """Other lines of the underlined expression's function that compute the like."""
        return self.around.again if self.around is not None else ()

    @property
    def carried(self) -> tuple[Carried, ...]:
        """What loops up to the underlined expression multiply from step to step."""
        return self.around.carried if self.around is not None else ()

    @property
    def looped(self) -> str | None:
        """Where the loop made, of what the model gave in this step, what the model was given next and broke by."""
        at = self.extra.get("looped_at")
        return words.place(at) if isinstance(at, list) else None

    @property
    def around(self) -> Around | None:
        """What the script's text says around the underlined expression."""
        site = self.look.site if self.source is not None and self.look is not None else None
        return site.around if site is not None else None

    def without_text(self) -> Facts:
        """Return the same without the underlined line, and without what the script says around it."""
        site = self.look.site if self.look is not None else None
        bare = None if site is None else replace(site, around=None)
        look = None if self.look is None else replace(self.look, site=bare)
        return replace(self, origin=replace(self.origin, source=None, column=None), look=look)

    def left_if(self, condition: str) -> str | None:
        """Return the line that leaves the origin's function early, where it is known what that hands back."""
        ends = self.around.ends if self.around is not None else None
        return None if ends is None else f"if {condition}: return {ends}".rstrip()

    @property
    def op(self) -> str | None:
        """The short name of the origin's op (``exp``), in place or not, on one tensor or on lists of them."""
        return None if self.origin.op is None else words.op(self.origin.op).removeprefix("_foreach_").rstrip("_")

    @property
    def forward_op(self) -> str | None:
        """The short name of the forward op whose gradient the origin is."""
        return None if self.origin.forward_op is None else words.op(self.origin.forward_op).rstrip("_")

    @property
    def in_update(self) -> bool:
        """Whether the op belongs to an optimizer's update that was made again, of the parameters that are named."""
        return self.extra.get("reconstructed") is True and bool(self.extra.get("parameters"))

    @property
    def in_place(self) -> bool:
        """Whether the op writes into what it is given first."""
        return self.origin.op is not None and words.op(self.origin.op).endswith("_")

    @property
    def of_weight(self) -> bool:
        """Whether a weight itself was given first: a leaf that is trained, which no autograd node made."""
        return self.extra.get("of_weights") is True and self.extra.get("made_by") == []

    @property
    def divides_zeros(self) -> bool:
        """Whether zeros alone are divided: a gradient of zeros has a norm of 0, and nothing was rounded there."""
        divided, *by = self.origin.inputs or (None,)
        return self.op == "div" and bool(by) and divided is not None and divided.zeros == divided.numel > 1

    def number(self, name: str) -> float | None:
        """Return a number among the op's arguments (``arg1``, ``correction``); written as a word where not finite."""
        return words.as_number(self.extra.get(name))

    @property
    def bad_numbers(self) -> tuple[float, ...]:
        """The numbers among the op's arguments that are not finite themselves."""
        given = (self.number(name) for name in self.extra if not name.startswith(("float64", "dtype")))
        return tuple(value for value in given if value is not None and not math.isfinite(value))

    @property
    def clip(self) -> float | None:
        """The norm to which the script clips the gradients of every optimizer, as last seen; None where it does not."""
        if self.history is None or not self.history.clip:
            return None
        whose = self.history.optimizer or (0,) * len(self.history.clip)
        last = list(dict(zip(whose, self.history.clip, strict=False)).values())
        return None if None in last else max(one for one in last if one is not None)

    def clipped(self, own: Trainer | None = None) -> str | None:
        """Return the line that clips the gradients, in the script's own names; None where it has none for them.

        ``own`` is the optimizer whose gradients grew, of several.
        """
        if self.extra.get("gradients_asked") is True:
            return None  # what autograd.grad returned lies in no .grad
        # Of several optimizers it need not be the one with the harm whose gradients grew.
        several = self.history is not None and len(set(self.history.optimizer)) > 1
        names = self.harm.names if self.harm is not None and not several else {}
        if several and own is not None:
            names = {key: name for key, name in (("model", own.model), ("optimizer", own.name)) if name is not None}
        trained = f"{names.get('model', 'model')}.parameters()"
        if "model" not in names and "optimizer" in names:
            trained = f'[p for group in {names["optimizer"]}.param_groups for p in group["params"]]'
        elif "model" not in names and self.harm is not None and self.harm.optimizer is None:
            if not self.trained:
                return None
            trained = f"[{', '.join(self.trained)}]"
        return f"torch.nn.utils.clip_grad_norm_({trained}, 1.0)"

    def called(self, *what: str) -> str:
        """Return what the script calls its ``optimizer``, or its ``model``, where it steps; else the last such word."""
        names = self.harm.names if self.harm is not None else {}
        return next((names[one] for one in what if one in names), what[-1])

    def checked_state(self) -> str | None:
        """Return the line that checks what is bad, weights, buffers or optimizer state, in the script's own names.

        None where it is not known what the script calls the module that holds it.
        """
        if self.harm is not None and self.harm.what == "optimizer_state":
            of = f"for s in {self.called('optimizer')}.state.values() for v in s.values()"
            return f"assert all(v.isfinite().all() {of} if torch.is_tensor(v))"
        # The model that is trained need not be the one that holds a buffer, or a weight that nobody trains.
        own = self.weight is None or self.extra.get("weight_is") == "parameter"
        model = self._loaded() or self.holder or (self.called("model") if own else None)
        if model is None:
            return None
        kinds = {self.source, self.extra.get("weight_is"), self.harm.what if self.harm is not None else None}
        if "buffer" in kinds:
            return f"assert all(v.isfinite().all() for v in {model}.state_dict().values())"
        return f"assert all(p.isfinite().all() for p in {model}.parameters())"

    @property
    def holder(self) -> str | None:
        """What the script calls the module that holds the weight or buffer, where it is not what it trains."""
        name = self.extra.get("held_by")
        return name if isinstance(name, str) and name != self.called("model") else None

    def _loaded(self) -> str | None:
        """Return the x of ``x.load_state_dict(...)`` where that is the line shown."""
        found = _LOADED.search(self.origin.source or "")
        return found[1] if found else None

    @property
    def weight(self) -> str | None:
        """The weight that was bad before its first step, where it is known by what call it became so."""
        name = self.extra.get("weight")
        return name if isinstance(name, str) else None

    @property
    def is_by_the_model(self) -> bool:
        """Whether it is known to be what the model makes that is large: a loss is given that first, beside a target.

        What is made of both, a difference say, does not tell.
        """
        sizes = [fact.absmax or 0.0 for fact in self.origin.inputs]
        first = len(sizes) > 1 and sizes[0] > max(sizes[1:])
        return self.origin.phase == "forward" or (self.origin.phase == "loss" and first)

    @property
    def overgrown(self) -> str | None:
        """The weight or buffer that went into the op, finite and far larger than weights are."""
        name = self.extra.get("overgrown")
        return name if isinstance(name, str) else None

    @property
    def finite_inputs(self) -> bool:
        """Whether facts on the inputs are there and all are finite, at the indices at least where the op broke."""
        elsewhere = self.extra.get("bad_elsewhere") is True
        return bool(self.origin.inputs) and (elsewhere or not any(fact.bad for fact in self.origin.inputs))

    @property
    def outputs_nan(self) -> bool:
        """Whether NaN came out of the op."""
        return any(fact.nan for fact in self.origin.outputs)

    @property
    def bad_state(self) -> TensorFact | None:
        """The parameter, buffer or optimizer state that is the origin, if it is one."""
        if self.weight is not None:
            return self.born_bad if self.born_bad is not None and self.born_bad.bad else None
        state = self.source in {"parameter", "buffer"} or self.basis == "state"
        return next((fact for fact in self.origin.inputs if fact.bad), None) if state else None


@dataclass(frozen=True, slots=True)
class Cause:
    """A named explanation. ``story`` is true for what happened to the run, false for what happened at the op.

    ``strength``: PROVEN (the facts leave nothing else), LIKELY or POSSIBLE. The first of ``evidence`` is short: it
    stands beside the source line. ``general``: its suggestions fit many faults, and give way to those of another
    cause. ``leads``: its suggestions stand first, whichever cause is named; ``follows``: last, for those of another fit
    the line. ``alone``: it is what made the gradients grow as well, where they did.
    """

    slug: str
    evidence: tuple[str, ...]
    suggestions: tuple[Suggestion, ...] = ()
    strength: int = PROVEN
    story: bool = False
    general: bool = False
    leads: bool = False
    follows: bool = False
    alone: bool = False


def dtype_of(fact: TensorFact) -> str:
    """Return the dtype without its prefix: ``float16``."""
    return fact.dtype.removeprefix("torch.")


def is_again(look: Looked) -> bool:
    """Whether a look ran the step again, or a part of it, and all was finite.

    An update that is made again alone, of gradients as they came, says nothing of what made them.
    """
    return look.outcome == "finite" and look.phase != "optimizer"


def is_whole(look: Looked) -> bool:
    """Whether a look that found nothing left nothing out and ran on what the step had run on."""
    return look.facts.get("complete", True) is not False and look.facts.get("reconstructed") is not True


def share(count: int, fact: TensorFact, noun: str = "zero") -> str:
    """Return ``3 zeros in 16 values``; ``0`` for a tensor of one element."""
    return "0" if fact.numel == 1 else f"{words.count(count, noun)} in {fact.numel:,} values"


def more(made: tuple[TensorFact, ...], divisor: TensorFact) -> str:
    """Return ``, and 3 more come of tiny divisors`` where more infinite quotients came out than 0 divides."""
    quotient = made[0] if made else None
    if quotient is None or quotient.numel != divisor.numel:  # then one zero may divide many
        return ""
    count = quotient.posinf + quotient.neginf - divisor.zeros
    return f", and {count} more {'come' if count > 1 else 'comes'} of tiny divisors" if count > 0 else ""
