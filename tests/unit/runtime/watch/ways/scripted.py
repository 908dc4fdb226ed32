"""Runs the text of a script whose questions are followed."""

import contextlib
import itertools
import linecache
import math
import sys

from nandiag.runtime.watch.told.ways.follow import Ways

STEP = 7
ON, OFF = (True, False), (False, False)
WITHIN = (False, True)  # a loop was left, one around it was not
_COUNT = itertools.count()


class Script:
    """Runs the text of a function ``script(ask)``; ``ask(value)`` is a question that a bad value is the answer to."""

    def __init__(self, text):
        self.ways, self.asked = Ways(), 0
        body = "\n".join(f"    {line}" for line in text.strip("\n").splitlines())
        self.text, self.file = f"def script(ask):\n{body}\n", f"/scripts/of/ways_{next(_COUNT)}.py"
        linecache.cache[self.file] = len(self.text), None, self.text.splitlines(keepends=True), self.file

    def ask(self, value):
        self.asked += 1
        if not math.isfinite(value):
            self.ways.follow(sys._getframe(1), STEP)
        return math.isfinite(value)

    def way(self):
        names = {"math": math, "contextlib": contextlib, "BAD": math.nan}
        exec(compile(self.text, self.file, "exec"), names)  # noqa: S102 - a script
        with contextlib.suppress(SystemExit):
            names["script"](self.ask)
        assert sys.gettrace() is not self.ways._trace or self.ways._followed
        way = self.ways.known(STEP)
        assert sys.gettrace() is None
        return way if way is None else tuple(way)
