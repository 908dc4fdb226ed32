"""Ranks that count steps each for themselves: the calls that they share lay their counts onto one (reader side).

In federated averaging and local SGD ranks make unequal numbers of steps between two collectives. What one of them saw
at its step 5 may be behind what another saw at its step 10; the step numbers alone would say the contrary.
"""

from nandiag.analysis.counts.laid import aligned
from nandiag.analysis.counts.scene import Chosen, chosen, events_of
from nandiag.analysis.counts.shared import counts_of

__all__ = ["Chosen", "aligned", "chosen", "counts_of", "events_of"]
