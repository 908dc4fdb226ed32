"""Help for a line of a library's: nobody is told to write in a file of site-packages."""

import pytest

from nandiag.analysis.report import Suggestion
from nandiag.analysis.verdict.fitted.libraries import in_own_lines

FILE = "/venv/lib/python3.11/site-packages/transformers/loss/loss_utils.py"
LINE = "loss = loss / num_items_in_batch"
EDIT = Suggestion("Keep the divisor away from zero.", "loss = loss / num_items_in_batch.clamp_min(1)")
CLIP = Suggestion("Clip the gradients.", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)")


@pytest.mark.parametrize(("text", "counts"), [(LINE, True), ("loss = loss / scale", False)])
def test_a_librarys_line_is_left_as_it_is_and_what_it_is_given_is_told(at, by_hand, text, counts):
    zero, bad = by_hand.fact(zeros=1, shape=()), by_hand.fact(nan=1, shape=())
    facts = at("div", (zero, zero), (bad,), text=text, file=FILE, extra={"called_at": "/me/train.py:41"})
    edit = Suggestion(EDIT.text, text + ".clamp_min(1)")
    first, *others = in_own_lines(facts, (edit, CLIP))
    assert (first.code, others) == (None, [CLIP])
    assert "from train.py:41" in first.text
    assert ("num_items_in_batch is 0" in first.text) is counts


def test_the_scripts_own_line_is_mended_and_so_is_advice_without_code(at, by_hand):
    zero, bad = by_hand.fact(zeros=1, shape=()), by_hand.fact(nan=1, shape=())
    own = at("div", (zero, zero), (bad,), text=LINE, file="/me/train.py")
    assert in_own_lines(own, (EDIT, CLIP)) == (EDIT, CLIP)
    library = at("div", (zero, zero), (bad,), text=LINE, file=FILE)
    assert in_own_lines(library, (CLIP,)) == (CLIP,)
