"""What the script has made of a bad answer, by the lines that it ran since: names, and the ways that it took (worker).

A statement descends from the answer where it asks, or reads what was made of that, or is run only for a condition that
does. What good turns do as well does not: a count of turns, the next batch. Nothing is told apart but by the text.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from types import CodeType

from nandiag.runtime.frames import USER, kind_of
from nandiag.runtime.watch.told.ways.followed import RETURN, Call, Followed, Step, Turns
from nandiag.runtime.watch.told.ways.names import ANY, GROWN, HELD, may_be_of
from nandiag.runtime.watch.told.ways.own import Bound, Own, Packed, set_in, yielded
from nandiag.runtime.watch.told.ways.text import (
    BRANCHES,
    GIVEN,
    LOOPS,
    called,
    is_exit,
    is_flag,
    jumps,
    parts_read,
    text_of,
)
from nandiag.runtime.watch.told.ways.values import truth_of

# Where all of it has to hold for turns to go on, and where any of it leads out of them.
_LEADS_OUT: dict[type[ast.boolop], type[ast.AST]] = {ast.And: ast.While, ast.Or: ast.If}


class Descent:
    """Goes through the lines in the order in which they were run."""

    def __init__(self) -> None:
        self._made, self._maybe = set[str](), set[str]()
        self._conditions = dict[tuple[Followed, ast.AST], bool | None]()
        self._jumped = defaultdict[Followed, dict[ast.AST, ast.AST]](dict)  # and what is not run by it
        self._last = dict[Followed, Step]()
        self._known = dict[tuple[Followed, int], tuple[int, Step]]()
        self._of, self._version, self._given = dict[Followed, Own | None](), 0, Turns()
        # Of functions that were called since: whether they are run for the answer alone, by whom, what names stand for.
        self._done = dict[Followed, bool | None]()
        self._callers, self._inner = dict[Followed, Followed](), set[CodeType]()
        self._words, self._packed, self._set_by = dict[str, str](), dict[str, Packed](), dict[str, Followed]()
        self._again, self._anew = False, set[str]()  # once another answer is read, and what is made of that

    def steps(self, path: Iterable[tuple[Followed, int | Call]]) -> list[Step]:
        """Return a step for each line of those that ask, and of what gives these their turns."""
        found, at, path = list[Step](), dict[Followed, int](), list(path)
        self._inner = {one.code for one, _ in path if one.called}
        for one, line in path:
            if isinstance(line, Call):
                self._enters(one, line)
                continue
            self._again = self._again or (bool(found) and one is found[0].function and line == found[0].line)
            step = self._step(one, line)
            if not one.called:
                at[one] = len(found)
                found.append(step)
            elif step.ends and step.for_answer and (outer := self._raises(one)) in at:
                found[at[outer]] = self._last[outer] = found[at[outer]]._replace(for_answer=True)
        return found

    def _raises(self, one: Followed) -> Followed:
        """Return which of the functions that ask has called what raises an error for the answer."""
        seen = set[Followed]()
        while one in self._callers and one not in seen:
            seen.add(one)
            one = self._callers[one]
        return one

    def _step(self, one: Followed, line: int) -> Step:
        """Return what a line does; it is read anew where something was made since it was run before."""
        version, step = self._known.get((one, line), (-1, None))
        if step is None or version != self._version:
            before = self._version
            step = self._runs(one, line)
            if self._version == before:
                self._known[one, line] = before, step
        if line != RETURN:
            self._last[one] = step
        return step

    def _runs(self, one: Followed, line: int) -> Step:
        step, new, function = Step(one, line), one not in self._of, self._own(one)
        if new and one.asks is not None:
            self._given.asking.append(one)
            if function is not None:
                self._within(function, line)
        if function is None or line == RETURN or (one.called and one.code.co_name == "<lambda>"):
            return step
        for node in function.text.at.get(line, ()):
            step = self._runs_node(function, node, step)
        inner = self._given.newest_to(one) if new else None
        if inner is not None and (own := self._of[inner]) is not None:
            self._yields(own, self._given.found[inner])
        return step

    def _own(self, one: Followed) -> Own | None:
        if one not in self._of:
            text = text_of(one.code.co_filename)
            self._of[one] = None if text is None else Own(one, text)
        return self._of[one]

    def _within(self, own: Own, line: int) -> None:
        """A line asks that is run for an answer itself: by a condition on what it reads, asked before."""
        for node in own.text.at.get(line, ()):
            read = {name for part in parts_read(node) for name in own.names.reads(part)}
            for outer, _ in own.text.around(node):
                if isinstance(outer, ast.If) and own.names.reads(outer.test) & read:
                    self._conditions[own.function, outer] = True

    def _runs_node(self, own: Own, node: ast.AST, step: Step) -> Step:
        if isinstance(node, (*LOOPS, *BRANCHES, ast.Match)):
            found = self._head(own, node)
            return step._replace(for_answer=found, head=found if isinstance(node, LOOPS) else step.head)
        branch, for_answer = self._branch(own, node)
        heads = isinstance(node, ast.With | ast.AsyncWith)
        asks = any(own.asks(one.context_expr) for one in node.items) if heads else own.asks(node)  # type: ignore[attr-defined]
        if not heads:
            self._gives(own, node, branch)
            self._calls(own, node, branch)
        if (given := yielded(node)) is not None:
            self._yields(own, for_answer is True or (given.value is not None and self._descends(own, given.value)))
        last = self._last.get(own.function)
        if last is not None and own.is_on_the_way_out(node, last.line):
            return last
        if isinstance(node, ast.Assert):
            for_answer = for_answer or asks or self._reads(own, node.test)
        ends = isinstance(node, ast.Raise | ast.Assert) or is_exit(node)
        leaves = ends or isinstance(node, ast.Break | ast.Return)
        if not leaves and for_answer is False:
            for_answer = self._reads(own, node) or None  # an error that is raised there
        return step._replace(for_answer=asks or for_answer, ends=ends, jumps=leaves)

    # what heads and conditions are made of

    def _yields(self, own: Own, found: bool | None) -> None:  # noqa: FBT001 - as it was found
        """A generator that asks gives a turn: what the loop binds that goes through it is made of what it gives."""
        self._given.found[own.function] = found
        goes_through = self._given.goes_through(own.function)
        outer = None if goes_through is None else self._of[goes_through]
        for node in () if outer is None else outer.text.at.get(outer.function.line, ()):
            if isinstance(node, ast.For | ast.AsyncFor) and outer is not None:
                self._set(outer.names.given(node), found)

    def _head(self, own: Own, node: ast.AST) -> bool | None:
        """A condition is asked for, or the next turn of a loop; returns whether it descends from the answer."""
        if isinstance(node, LOOPS):
            self._turns(own, node)
        if isinstance(node, ast.For | ast.AsyncFor):
            self._give(own, own.names.targets(node), self._descends(own, node.iter))
            return False
        found = self._condition(own, node)
        if self._conditions.get((own.function, node), False) is not found:
            self._changed()
            self._conditions[own.function, node] = found
        if isinstance(node, ast.If) and found:
            self._jumps_over(own, node)
        return found

    def _turns(self, own: Own, loop: ast.AST) -> None:
        """What was jumped over in the turn before is not in the next."""
        for one in list(self._jumped[own.function]):
            if loop in {outer for outer, _ in own.text.around(one)}:
                self._changed()
                del self._jumped[own.function][one]

    def _condition(self, own: Own, node: ast.AST) -> bool | None:
        if isinstance(node, ast.ExceptHandler):
            last = self._last.get(own.function)
            return last is not None and last.for_answer is True
        if isinstance(node, ast.match_case):
            return self._conditions.get((own.function, next(own.text.around(node))[0]), False)
        test = node.subject if isinstance(node, ast.Match) else node.test  # type: ignore[attr-defined]
        found = self._descends(own, test, turns=isinstance(node, ast.While))
        if found and isinstance(test, ast.BoolOp) and isinstance(node, _LEADS_OUT[type(test.op)]):
            found = self._decides(own, test)
        self._calls(own, test, self._branch(own, node)[0])
        for given in (one for one in ast.walk(test) if isinstance(one, ast.NamedExpr)):
            self._give(own, own.names.targets(given), self._descends(own, given.value))
        return found

    def _decides(self, own: Own, test: ast.BoolOp) -> bool | None:
        """Whether a way out of turns was taken for the answer, and not for the count of these that it asks of as well.

        By what numbers its names stood for when the function ended; a count of bad answers may else be either.
        """
        ours = [one for one in test.values if self._descends(own, one, turns=True)]
        counts = [one for one in test.values if one not in ours and own.is_counted(one)]
        known = [truth_of(one, own.function.numbers) for one in counts]
        if isinstance(test.op, ast.Or) in known:
            return False
        either = None in known and all(isinstance(one, ast.Compare) for one in ours)
        return None if either else True

    def _jumps_over(self, own: Own, node: ast.If) -> None:
        """Where one way of a condition leads away, what stands behind it is run for the other."""
        jump = jumps(node.body) or jumps(node.orelse)
        if jump is not None and node not in self._jumped[own.function]:
            away = isinstance(jump, ast.Break | ast.Continue)
            self._changed()
            self._jumped[own.function][node] = own.text.loop(node) if away else own.text.scope(node)

    def _branch(self, own: Own, node: ast.AST) -> tuple[ast.AST | None, bool | None]:
        """Return the condition that descends from the answer which a statement is run for, and whether it is for it.

        What a condition within asks of, that each turn moves, may be what it is run for instead.
        """
        counted = False
        around = list(own.text.around(node))
        for outer, part in around:
            found = self._conditions.get((own.function, outer), False) if isinstance(outer, BRANCHES) else False
            if isinstance(outer, LOOPS) and part in outer.orelse:
                found = found or self._has_broken(own, outer)
            if found is not False:
                return outer, None if counted or found is None else True
            counted = counted or (isinstance(outer, ast.If) and own.is_counted(outer.test))
        inside = {id(outer) for outer, _ in around} | {id(own.text.scope(node))}
        for one, region in self._jumped[own.function].items():
            if own.is_behind(node, one) and id(region) in inside:
                return one, None if counted else True
        return None, False

    def _has_broken(self, own: Own, loop: ast.For | ast.AsyncFor | ast.While) -> bool:
        """Whether a break that was not run, for the answer, would have led round what stands behind the turns."""
        breaks = (one for one in ast.walk(loop) if isinstance(one, ast.If) and isinstance(jumps(one.body), ast.Break))
        return any(self._conditions.get((own.function, one)) is True for one in breaks)

    def _descends(self, own: Own, node: ast.AST, *, turns: bool = False) -> bool | None:
        return own.asks(node) or self._reads(own, node, turns=turns)

    def _reads(self, own: Own, node: ast.AST, *, turns: bool = False) -> bool | None:
        return self._is_made(own.names.reads(node, turns=turns)) if self._made or self._maybe else False

    def _is_made(self, names: set[str]) -> bool | None:
        maybe = ANY in self._maybe and any(one.startswith(".") for one in names)
        taken = names.union(*map(may_be_of, names))  # of what is held it is not known which
        return bool(names & self._made) or (None if maybe or taken & (self._made | self._maybe) else False)

    # what statements give a value

    def _gives(self, own: Own, node: ast.AST, branch: ast.AST | None) -> None:
        for given in ast.walk(node):
            if isinstance(given, ast.comprehension):
                self._give(own, own.names.targets(given), self._descends(own, given.iter))
            elif isinstance(given, GIVEN) and given.value is not None:
                found = self._value(own, given, branch)
                if found is not False or not isinstance(given, ast.AugAssign):
                    self._give(own, own.names.targets(given), found)
                self._keeps(own, given)

    def _value(self, own: Own, given: ast.AST, branch: ast.AST | None) -> bool | None:
        found = self._descends(own, given.value)  # type: ignore[attr-defined]
        if found or (branch is None and not own.function.called):
            return found
        only = self._only(own, given, branch)
        return None if own.function.called and only is False and found is None else only

    def _keeps(self, own: Own, given: ast.AST) -> None:
        """Keep what is packed into one value, and what is made of a newer answer."""
        names, value = own.names.targets(given), given.value  # type: ignore[attr-defined]
        if isinstance(value, ast.Tuple | ast.List):
            packed: Packed = [self._descends(own, one) for one in value.elts]
            self._packed |= dict.fromkeys(names, packed)
        if self._again and own.asks(value):
            self._anew |= names

    def _only(self, own: Own, node: ast.AST, branch: ast.AST | None) -> bool | None:
        """Whether a statement is run for the answer alone; None where it may be run in good turns too."""
        found = self._done.get(own.function, False)
        if branch is not None:
            as_well = own.is_done_as_well(node, branch)
            found = None if as_well is None else not as_well
        if not (own.function.called and found):
            return found
        perhaps = branch is not None and self._conditions.get((own.function, branch), True) is None
        moves = isinstance(node, GIVEN) and not is_flag(node)
        perhaps = perhaps or (moves and (own.is_counted_elsewhere(node) or self._is_shared(own)))
        return None if perhaps else found

    def _is_shared(self, own: Own) -> bool:
        """Whether a function that is run for the answer is called elsewhere too, or one that has called it is."""
        one, seen = own.function, set[Followed]()
        while self._done.get(one) and one not in seen:
            seen.add(one)
            if own.text.sites[one.code.co_name] > 1:
                return True
            one = self._callers[one]
        return False

    def _calls(self, own: Own, node: ast.AST, branch: ast.AST | None) -> None:
        """What is called for the answer may set anything of its own; what is given the answer only if it asks."""
        for call in (one for one in ast.walk(node) if isinstance(one, ast.Call)):
            words = [*call.args, *(word.value for word in call.keywords)]
            given = any(own.asks(one) or self._reads(own, one) is True for one in words)
            done = self._only(own, call, branch)
            found = given or done
            if found is False:
                continue
            codes = [code for line, code in own.function.calls if _is_of(code, call) and own.is_at(line, node)]
            for code in codes:
                if not (own.function.called and code in self._inner):  # its lines tell it
                    self._set(set_in(code, surely=done is True), found)
            by_name = own.names.set_by_name(call, self._words)
            self._set(by_name, None if ANY in by_name else found)
            name = own.names.receiver(call)
            if name is not None and not any(kind_of(code.co_filename) == USER for code in codes):
                self._set({name if done is not False else name.removesuffix(GROWN) + HELD}, found)

    def _give(self, own: Own, names: set[str], found: bool | None) -> None:  # noqa: FBT001 - as it was found
        """A statement gives ``names`` a value; of a function that was called another object's may have that name."""
        if own.function.called:
            if found is False:
                names = {one for one in names if own.names.is_own(one) or self._set_by.get(one) is own.function}
            self._set_by |= dict.fromkeys(names, own.function)
        self._set(names, found)

    # what is called since

    def _enters(self, one: Followed, call: Call) -> None:
        """A function is called: what it is given, and whether for the answer."""
        own, inner = self._own(call.caller), self._own(one)
        self._callers[one] = call.caller
        self._jumped.pop(one, None)
        if own is None or inner is None:
            return
        node = own.called_at(call.at, call.line)
        done = self._is_done(own, node, call.line)
        given = Bound(one.code, call.given.bad)
        if node is not None:
            given.gives(
                node, lambda part: self._told(own, part), lambda part: self._packed.get(own.names.name(part) or "")
            )
        if not call.direct and given.is_not_known():
            done = done or None
        if self._done.get(one, False) is not done:
            self._done[one] = done
            self._changed()
        self._stands_for(inner, given, call)
        if one.cut and (done is not False or set(given.found.values()) != {False}):
            self._set(set_in(one.code, surely=done is not False), None)
        if one.code.co_name == "<lambda>" and len(texts := inner.text.lambdas[one.code.co_firstlineno]) == 1:
            self._calls(inner, texts[0].body, None)

    def _stands_for(self, inner: Own, given: Bound, call: Call) -> None:
        """Take what the arguments of a function that is called stand for."""
        for name, found in given.found.items():
            known = inner.names.variable(name)
            if found is not False or inner.names.is_own(known):
                self._set({known}, found)
            self._words.pop(known, None)
        self._words |= {inner.names.variable(name): text for name, text in call.given.words.items()}
        for rest, packed in ((given.rest, given.packed), (given.words, given.packed_words)):
            if rest is not None:
                self._packed[inner.names.variable(rest)] = packed

    def _is_done(self, own: Own, node: ast.Call | None, line: int) -> bool | None:
        """Whether a call is made for the answer alone; None where it may be for a count as well."""
        at = node or next(iter(reversed(own.text.at.get(line, []))), None)
        branch, for_answer = (None, False) if at is None else self._branch(own, at)
        if node is not None and any(self._told(own, one) for one in own.asked_before(node)):
            return True
        if branch is None:
            return self._done.get(own.function, False)
        if self._again and not self._told(own, getattr(branch, "test", ast.Pass())):
            return False
        only = for_answer if node is None else self._only(own, node, branch)
        return None if only and for_answer is None else only

    def _told(self, own: Own, node: ast.AST) -> bool | None:
        """Whether it descends from the answer that is followed, and not from a newer one."""
        return self._is_made(own.names.reads(node) - self._anew) if self._again else self._descends(own, node)

    def _set(self, names: set[str], found: bool | None) -> None:  # noqa: FBT001 - as it was found
        for name in names:
            if found is True and name not in self._made:
                self._made.add(name)
                self._changed()
            elif found is None and name not in (self._made | self._maybe):
                self._maybe.add(name)
                self._changed()
            elif found is False:
                gone = {name, name + HELD, name + GROWN}
                if gone & (self._made | self._maybe):
                    self._made -= gone
                    self._maybe -= gone
                    self._changed()

    def _changed(self) -> None:
        self._version += 1


def _is_of(code: CodeType, call: ast.Call) -> bool:
    return code.co_name in {called(call), "__call__", "__init__"}
