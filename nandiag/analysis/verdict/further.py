"""The help for the places that go bad next once the origin is mended, beside that for the origin itself (reader side).

Whoever mends one line wants the run to train, not to break at the next one: what running the step again with finite
numbers in the place of the origin's result has shown is told with it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from nandiag.analysis.causes import Cause, Facts, explain
from nandiag.analysis.origin import Claim
from nandiag.analysis.report import Origin, Suggestion
from nandiag.analysis.timeline import Timeline
from nandiag.events import Looked, Site, TensorFact, words

_HUGE = 1e15
_TAG = re.compile(r"  # line (\d+)$")
_HEAD = re.compile(r"\s*(return\b|[\w.,\[\] *]+?[-+*/@|&]?=(?!=)|[\w.]+\()")
_NUMBERS = re.compile(r"\b1e-\d+\b")
_LINES, _NUMBER = re.compile(r"\b[Ll]ines? (\d+(?:(?:, | and )\d+)*)"), re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class _Place:
    """One of the next places, why it goes bad, and its whole line mended, where it is known how.

    ``beside``: it broke by itself in the very run that showed the origin, and nothing stood in for that.
    """

    origin: Origin
    cause: Cause | None
    line: str | None
    beside: bool = False


@dataclass(slots=True)
class Mend:
    """A suggestion that grows with the next places: ``lines`` are those of the origin's file as they are mended now."""

    own: Suggestion
    origin: Origin
    lines: dict[int, str]

    @classmethod
    def of(cls, own: Suggestion, origin: Origin) -> Mend:
        """Begin with the mend of the origin alone."""
        code = (own.code or "").splitlines()
        lines = {number: _TAG.sub("", code[at]) for number, at in _replaced(code, own, origin).items()}
        return cls(own, origin, lines)

    def is_mended(self, place: Origin) -> bool:
        """Whether the suggestion as it stands mends that place's expression, in its own line."""
        own = self.origin
        if (place.file, place.line, place.column) == (own.file, own.line, own.column):
            return True
        text = self.lines.get(place.line or 0) if place.file == own.file else None
        return text is not None and self.shown(place, text) is None

    def shown(self, place: Origin, text: str) -> Origin | None:
        """Return the place in its line as that is mended by now, or None where it stands there no more."""
        return _shifted(place, text) or _grown(place, self.origin, text)


def next_looks(claim: Claim, timeline: Timeline) -> list[Looked]:
    """Return what the rank of the claim saw next in the same step, in order."""
    if claim.basis != "look" or claim.look is None or claim.later is not None:
        return []
    look = claim.look
    of = (look.rank, look.attempt, look.event.step)
    found = [one for one in timeline.nexts if (one.rank, one.attempt, one.event.look.step) == of and one.seq > look.seq]
    looks = [
        one.event.look for one in found if not _hands_out(look.event) or one.event.look.facts.get("beside") is True
    ]
    return looks if not _had_grown(look.event) else [one for one in looks if not _had_grown(one)]


def _hands_out(look: Looked) -> bool:
    """Whether the op handed memory out that nothing wrote: what stood in for that is none of the script's numbers."""
    return look.site is not None and "empty" in words.op(look.site.op or "")


def _had_grown(look: Looked) -> bool:
    """Whether the op only multiplied or added what was huge by then: others that do so are no faults besides."""
    overflown = any(fact.posinf or fact.neginf for fact in look.outputs) and not any(fact.bad for fact in look.inputs)
    return overflown and max((fact.absmax or 0.0 for fact in look.inputs), default=0.0) >= _HUGE


def with_next(
    facts: Facts, first: int | None, told: tuple[Suggestion, ...], looks: list[Looked]
) -> tuple[tuple[Suggestion, ...], tuple[str, ...]]:
    """Return the suggestions that were ``told``, the ``first`` of the op's own with the next places, and why."""
    mend = Mend.of(told[first] if first is not None else Suggestion(""), facts.origin)
    stood_in = not all(one.facts.get("beside") is True for one in looks)
    places = list(_places(facts, mend, looks)) if not stood_in or _leaves_what_stood_in(facts, mend) else []
    if not places:
        return told, ()
    helped = mend.origin.file if first is not None else None
    why = tuple(_why([one for one in places if not _is_told(one, helped)], facts.origin))
    if first is None:
        return told, why
    rest = [one for one in told[first + 1 :] if not any(_mends_again(one, place) for place in places)]
    return (*told[:first], _together(mend, told[first], places), *rest), why


def _mends_again(one: Suggestion, place: _Place) -> bool:
    """Whether it is the line of a place that is mended beside the first already, with another small number."""
    if place.line is None or one.code is None:
        return False
    bare = [_NUMBERS.sub("", text.strip()) for text in (one.code, place.line)]
    return one.code != place.line and bare[0] == bare[1] and _NUMBERS.search(place.line) is not None


def _leaves_what_stood_in(facts: Facts, mend: Mend) -> bool:
    """Whether the mend leaves what stood in for the origin's result when the step was run again, as far as is known.

    It does not where it is made where the value is, nor where it is another function. For what is divided by 0 there
    stood 0, for a power of 0 a large number: a mend may leave the other.
    """
    line = mend.lines.get(facts.origin.line or 0)
    if line is None:
        return not mend.lines
    if any(one in (mend.own.code or "") and one not in (facts.origin.source or "") for one in _OTHER):
        return False
    infinite = any(fact.posinf or fact.neginf for fact in facts.origin.outputs)
    if not infinite or facts.op not in _POLES or facts.origin.node is not None:
        return True
    return (_NOTHING in line) == _POLES[facts.op]


# What these leave has little to do with what stood in.
_OTHER = ("softmax(", "tanh(")
# Whether 0 stood for what these are at their pole, and how a line is mended that is to give 0 there.
_POLES = {"div": True, "true_divide": True, "divide": True, "reciprocal": True, "pow": False, "float_power": False}
_NOTHING = "torch.inf)"


def is_told(line: int, suggestion: Suggestion) -> bool:
    """Whether a suggestion names a line, or has it mended in its code."""
    said = {number for text in _LINES.findall(suggestion.text) for number in _NUMBER.findall(text)}
    return str(line) in said | {tag for text in (suggestion.code or "").splitlines() for tag in _TAG.findall(text)}


def beside(facts: Facts, own: Suggestion, lines: list[int]) -> str | None:
    """Return the code of the mend of the origin's own line with those of the ``lines`` that do the very same."""
    site = facts.look.site if facts.look is not None else None
    around = site.around if site is not None else None
    code = (own.code or "").splitlines()
    if around is None or facts.look is None or not code or _head(code[0]) != _head(facts.origin.source or ""):
        return own.code
    bare = replace(facts.look, site=replace(site, around=None) if site is not None else None)
    for one in around.alike:
        origin = replace(facts.origin, line=one.line, source=one.text, column=one.column)
        _, cause = explain(replace(facts, origin=origin, look=bare)) if one.line in lines else (None, None)
        line = None if cause is None else _mended(origin, cause.suggestions)
        code += [] if line is None else [f"{line}  # line {one.line}"]
    return "\n".join(code)


_WIDER = "dtype=torch.bfloat16)"


def _places(facts: Facts, mend: Mend, looks: list[Looked]) -> Iterable[_Place]:
    """Yield the next places that the mend, as it stands by then, does not mend already."""
    for look in looks:
        if look.outcome != "found" or look.site is None or look.site.file is None:
            return
        origin = _origin(facts.origin, look)
        if mend.is_mended(origin) or _was_sent(look) or _is_its_gradient(origin, facts) or _of_its(origin, facts):
            continue
        same = origin.file == mend.origin.file
        text = mend.lines.get(origin.line or 0) if same else None
        shown = origin if text is None else mend.shown(origin, text) or origin
        _, cause = explain(replace(facts, origin=shown, look=look))
        if cause is not None and _WIDER in (mend.own.code or "") and mend.own in cause.suggestions:
            continue  # one dtype for all of the step mends it as well
        line = None if cause is None else _mended(shown, cause.suggestions)
        if line is None and same and origin.line in facts.again:
            line = _alike(facts, shown, look)
        if line is not None and same and origin.line is not None:
            mend.lines[origin.line] = line
        yield _Place(origin, cause, line, look.facts.get("beside") is True)


def _alike(facts: Facts, place: Origin, look: Looked) -> str | None:
    """Return the mend of a line that computes the like, by itself: what goes for both stands at neither of them."""
    site = look.site if look.site is None else replace(look.site, around=None)
    _, cause = explain(replace(facts, origin=place, look=replace(look, site=site)))
    return None if cause is None else _mended(place, cause.suggestions)


def _was_sent(look: Looked) -> bool:
    """Whether it broke by what ranks had sent before anything was mended: nobody has sent that anew."""
    return look.facts.get("fed") is True and look.facts.get("beside") is not True


def _is_its_gradient(place: Origin, facts: Facts) -> bool:
    """Whether a place is the gradient of the origin's own op, of the same values, whose line is not known.

    Of what is written in place autograd is asked too late for that: there stands the call of backward.
    """
    own = f"{facts.op}backward"
    if place.forward_op is not None or (place.node or "").lower().rstrip("0123456789") != own:
        return False
    return bool({_values(one) for one in place.inputs} & {_values(one) for one in facts.origin.inputs if one.zeros})


def _of_its(place: Origin, facts: Facts) -> bool:
    """Whether a place in backward was handed an infinite gradient, as the origin's own infinity makes it.

    A finite number stood for what the origin's op gave; its backward multiplied by the infinity that the op was given,
    which a mend takes away.
    """
    own = [fact for fact in facts.origin.inputs if (fact.posinf or fact.neginf) and not fact.nan]
    if not own or place.node is None or facts.origin.node is not None or len(place.inputs) < 2:
        return False
    gradient = place.inputs[0]
    infinite = bool(gradient.posinf or gradient.neginf) and not gradient.nan
    return infinite and _values(gradient) not in map(_values, own)


def _values(fact: TensorFact) -> tuple[object, ...]:
    return fact.shape, fact.zeros, fact.min, fact.max, fact.bad


def _origin(origin: Origin, look: Looked) -> Origin:
    site = look.site or Site()
    here = {field.name: getattr(site, field.name) for field in fields(Site) if field.name not in {"around", "owner"}}
    kinds = {fact.kind for fact in look.outputs} - {None}
    kind = "inf" if kinds == {"inf"} else "nan"
    placed = replace(origin, **here, kind=kind, phase=look.phase, inputs=look.inputs, outputs=look.outputs)
    if site.around is not None and site.around.statement is not None:
        return replace(placed, source=site.around.statement, column=site.around.column)
    return placed


def _shifted(place: Origin, text: str) -> Origin | None:
    """Return the place with its line as it is mended by now, where what is underlined stands there still, once.

    Where it goes on otherwise than it did, its last part is mended: ``a / b`` is no part of ``a / b.clamp_min(1e-6)``.
    """
    source, (start, stop) = place.source or "", place.column or (0, 0)
    shown = source[start:stop]
    if not shown or text.count(shown) != 1:
        return None
    first = text.index(shown)
    after = text[first + len(shown) :][:1]
    if after != source[stop : stop + 1] and (after.isidentifier() or after in {".", "[", "("}):
        return None
    return replace(place, source=text, column=(first, first + len(shown)))


def _grown(place: Origin, within: Origin, text: str) -> Origin | None:
    """Return the place with the line in which nothing but what is ``within`` its expression has been mended."""
    source, (first, end), (start, stop) = place.source or "", place.column or (0, 0), within.column or (0, 0)
    if source.strip() != (within.source or "").strip() or not first <= start < stop <= end:
        return None
    indent = len(source) - len(source.lstrip())
    if not text.startswith(source[indent:start]) or not text.endswith(source[stop:].rstrip()):
        return None
    return replace(place, source=text, column=(first - indent, end - indent + len(text) - len(source.strip())))


def _mended(origin: Origin, suggestions: tuple[Suggestion, ...]) -> str | None:
    """Return the first of the suggestions that is the whole line of the place as it is to be."""
    fitted = (one.code for one in suggestions if one.code and _head(one.code) == _head(origin.source or ""))
    return next((code for code in fitted if "\n" not in code), None)


def _head(line: str) -> str | None:
    found = _HEAD.match(line)
    return None if found is None else found[1].strip()


def _replaced(code: list[str], own: Suggestion, origin: Origin) -> dict[int, int]:
    """Return which of the lines of code, by its place, is to replace which line of the origin's file.

    Of several for one line it is the statement as it was, with the others around it, else the last.
    """
    found: dict[int, int] = {}
    for at, text in enumerate(code):
        tag = _TAG.search(text)
        number = int(tag[1]) if tag else _line_of(text, own, origin)
        as_it_was = number in found and code[found[number]] == (origin.source or "").strip()
        if number is not None and not as_it_was:
            found[number] = at
    return found


def _line_of(text: str, own: Suggestion, origin: Origin) -> int | None:
    """Return the line that a line of code is to replace: the origin's, or the one that the text names."""
    if _head(text) is not None and _head(text) == _head(origin.source or ""):
        return origin.line
    said = {int(number) for text in _LINES.findall(own.text) for number in _NUMBER.findall(text)}
    return said.pop() if len(said) == 1 else None


def _together(mend: Mend, own: Suggestion, places: list[_Place]) -> Suggestion:
    """Return the suggestion with the lines of the next places below its own."""
    known = {number: text for number, text in mend.lines.items() if number != mend.origin.line}
    code = _now((own.code or "").splitlines(), mend, own)
    shown = {int(tag[1]) for text in code if (tag := _TAG.search(text))}
    shown |= {number for number in known if known[number] in code}
    for place in places:
        here = place.origin
        same = here.file == mend.origin.file
        if place.line is None or (same and (here.line == mend.origin.line or here.line in shown)):
            continue
        shown |= {here.line or 0} if same else set()
        text = known.get(here.line or 0, place.line) if same else place.line
        code.append(f"{text}  # {'' if same else posixpath.basename(here.file or '') + ', '}line {here.line}")
    return Suggestion(f"{own.text} {_also(mend, places)}".rstrip(), "\n".join(code))


def _now(code: list[str], mend: Mend, own: Suggestion) -> list[str]:
    """Return the suggestion's own code as the next places have left it."""
    now = list(code)
    for number, at in _replaced(code, own, mend.origin).items():
        tag = _TAG.search(code[at])
        now[at] = mend.lines.get(number, code[at]) + (tag[0] if tag else "")
    return now


def _also(mend: Mend, places: list[_Place]) -> str:
    own = mend.origin
    same = [one for one in places if one.origin.file == own.file]
    lines = sorted({one.origin.line or 0 for one in same} - {own.line or 0})
    others = sorted({_of_file(one.origin) for one in places if one.origin.file != own.file})
    # Of a place for which no mend is known nobody could say that the line shown does not mend it as well.
    # A mask of what is left out beforehand is no mend of one of them alone.
    masks = (mend.own.code or "").startswith("keep = ")
    here = not masks and any(one.origin.line == own.line and one.line is not None for one in same)
    beside = all(one.beside for one in places) or any(_ran_before(one.origin, own) for one in same)
    if not lines and not others and not here:
        return ""
    if not lines and not others:
        return f"The same line breaks in another place {'too' if beside else 'next'}: mend both."
    verb = "breaks" if len(lines) + len(others) == 1 else "break"
    again = ", and this one in another place" if here else ""
    when = "in the same step as well" if beside else "next in the same step"
    told = " and ".join([*([words.lines(lines)] if lines else []), *others])
    return _sentence(f"{told} {verb} {when}{again}: mend that too.")


def _ran_before(place: Origin, own: Origin) -> bool:
    """Whether it stands ahead of the origin in the same function, in forward: so it is no next one."""
    forward = place.node is None and own.node is None and place.phase == own.phase
    same = (place.file, place.function) == (own.file, own.function)
    return forward and same and 0 < (place.line or 0) < (own.line or 0)


def _of_file(place: Origin) -> str:
    return f"line {place.line} of {posixpath.basename(place.file or '')}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _is_told(place: _Place, file: str | None) -> bool:
    """Whether the help, for a line of ``file``, has the line of the place mended: then it says that it breaks next."""
    return file is not None and place.origin.file == file and place.line is not None and not place.beside


def _once(places: list[_Place]) -> Iterable[_Place]:
    """Yield the first place of each line, and of its gradient: to mend that mends what comes of it."""
    seen = set()
    for place in places:
        key = place.origin.file, place.origin.line, place.origin.node is None
        if key not in seen:
            seen.add(key)
            yield place


def _why(places: list[_Place], origin: Origin) -> Iterable[str]:
    """Yield what breaks next where no help says so."""
    for number, place in enumerate(_once(places)):
        bad = {"nan": "NaN", "inf": "Inf"}[place.origin.kind]
        how = "With finite numbers put in its place," if not number else "With those put there too,"
        by_itself = place.beside or _ran_before(place.origin, origin)
        how, next_ = ("", "of finite values as well") if by_itself else (f"{how} ", "next")
        seen = f": {place.cause.evidence[0]}" if place.cause is not None and place.cause.evidence else ""
        gradient = " in its gradient" if place.origin.node is not None else ""
        where = f"line {place.origin.line}" if place.origin.file == origin.file else _of_file(place.origin)
        yield _sentence(f"{how}{where} made {bad}{gradient} {next_}{seen}.")
