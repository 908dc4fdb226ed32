"""An update by a rate that is no number is told at the line that made it, with nothing of the update's own op."""

from nandiag.events import Looked, Site
from nandiag.runtime.evidence.exchange.exchanged import of_rate


def test_what_made_the_rate_is_not_told_with_what_the_update_itself_was_given():
    kept = {"reconstructed": True, "parameters": ["weight"], "rate_set_at": ["train.py:24: ..."]}
    update = Looked("found", "replay", 15, source="op", site=Site(op="aten.add_.Tensor"),
                    facts={**kept, "alpha": "nan", "made_up": 0.02, "float64_finite": False})  # fmt: skip
    made = Looked("found", "replay", 15, source="op", site=Site(op="aten.exp.default"), facts={"chain": 5})
    looked = of_rate(update, made)
    assert (looked.site, looked.facts) == (made.site, {**kept, "chain": 5, "number": True})
