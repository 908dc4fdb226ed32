"""What each slug means, in words a user can act on: the form of such a text, and where all of them are found (reader).

A text stands next to the code that prints its slug, in a name ``EXPLAIN`` of that module: one :class:`Explanation`, or
a tuple of them.
"""

from nandiag.analysis.explained.catalogue import catalogue, explanations_of
from nandiag.analysis.explained.explanation import Explanation

__all__ = ["Explanation", "catalogue", "explanations_of"]
