"""What a script calls in a test to ask what its own text says there."""

import sys

from nandiag.runtime.evidence.around import around
from nandiag.runtime.frames import stack


def probe(*_given):
    """Return what is told around the call of this function."""
    return around(stack(sys._getframe(1))[0])
