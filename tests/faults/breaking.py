"""Breaks functions of ours as they are called: profile functions, which see each call of Python code."""

import ast
import functools
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import nandiag

ROOT = f"{Path(nandiag.__file__).parent}/"
WORKER = (f"{ROOT}runtime/", f"{ROOT}store/writer.py", f"{ROOT}events/")


class BrokenError(Exception):
    """What a broken function of ours raises."""


class Seer:
    """Counts the calls of each function of ours by each other one of ours (``inner``), and by anybody else."""

    def __init__(self):
        # In what a replay does not put back, for what it runs is to be seen too.
        self.seen = SimpleNamespace(inner={}, entries=set())

    def __call__(self, frame, event, _arg):
        if event != "call" or not frame.f_code.co_filename.startswith(WORKER):
            return
        name = name_of(frame)
        if is_ours(frame.f_back):
            callers = self.seen.inner.setdefault(name, {})
            caller = name_of(frame.f_back)
            callers[caller] = callers.get(caller, 0) + 1
        else:
            self.seen.entries.add(name)


class Breaker:
    """Does ``harm(name)`` in one call of ``target`` by another function of ours: the first, or a later one.

    With a ``caller``, in one of that one's calls.
    """

    def __init__(self, target, harm, *, call=0, caller=None):
        self.path, self.line, self.name = f"{ROOT}{target[0]}", target[1], target[2]
        self.harm, self.caller = harm, caller
        self.seen = SimpleNamespace(left=call, broke=False)  # as above

    def __call__(self, frame, event, _arg):
        code = frame.f_code
        if event != "call" or code.co_name != self.name or code.co_firstlineno != self.line:
            return
        if code.co_filename != self.path or not is_ours(frame.f_back):
            return
        if self.caller is not None and name_of(frame.f_back) != self.caller:
            return
        if self.seen.left:
            self.seen.left -= 1
            return
        self.seen.broke = True
        sys.setprofile(None)
        self.harm(self.name)


def name_of(frame):
    """Name a function by its file, its first line and its name."""
    code = frame.f_code
    return code.co_filename[len(ROOT) :], code.co_firstlineno, code.co_name


def is_ours(frame):
    return frame is not None and frame.f_code.co_filename.startswith(ROOT)


def raises(name):
    raise BrokenError(name)


def takes_long(_):
    time.sleep(0.2)


def is_sealed(name):
    """Whether nothing can come out of a function: it is one ``try`` that catches every Exception, with no call before.

    Broken at its first line, which is what a profile function does, even that one lets an error out.
    """
    source = _source_of(name)
    *first, last = source.body
    if first and isinstance(last, ast.Return) and isinstance(last.value, ast.Constant):
        *first, last = first
    if ast.get_docstring(source) is not None:
        first = first[1:]
    if any(isinstance(node, ast.Call) for one in first for node in ast.walk(one)) or not isinstance(last, ast.Try):
        return False
    caught = [ast.unparse(one.type) for one in last.handlers if one.type is not None]
    return "Exception" in caught or "BaseException" in caught


def is_wrap(name):
    """Whether a function stands in the place of one of torch's, and is called as that one is."""
    made = _source_of(name)
    wraps = [
        one for one in made.decorator_list if isinstance(one, ast.Call) and ast.unparse(one.func).endswith("wraps")
    ]
    return bool(wraps) or made.name.startswith("__torch_")


@functools.cache
def _functions(path):
    tree = ast.parse(Path(ROOT, path).read_text(encoding="utf-8"))
    found = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {(min([one.lineno, *(two.lineno for two in one.decorator_list)]), one.name): one for one in found}


def _source_of(name):
    nothing = ast.parse("def nothing(): return None").body[0]
    return _functions(name[0]).get((name[1], name[2]), nothing)  # a lambda or a comprehension is neither
