"""A mask behind a function does not stop its backward: that is said where the gradient there is the mask's 0."""

import pytest

from nandiag.analysis.causes import explain
from tests.unit.analysis.mends.told import on, placed


def _evidence(at, by_hand, line, shown, uses=(), zeros=5, node="LogBackward0", names=()):
    given = (by_hand.fact(zeros=zeros), by_hand.fact(zeros=5, min=0.0))
    op = f"aten.{node.removesuffix('Backward0').lower()}.default"
    place = {**placed(line, shown), "phase": "backward", "node": node, "forward_op": op}
    facts = on(at("div", given, (by_hand.fact(nan=5),), **place), *names, uses=uses)
    mechanism = explain(facts)[1]
    return " ".join((*mechanism.evidence, *(one.text for one in mechanism.suggestions)))


@pytest.mark.parametrize(
    ("line", "uses", "said"),
    [
        ("d = torch.where(gt > 0, pred.log() - log_gt, torch.zeros_like(pred))", (), "torch.where does not stop"),
        ("d = (pred.log() - log_gt).where(gt > 0, 0.0)", (), "torch.where does not stop"),
        ("d = pred.log() - log_gt", ("return torch.where(gt > 0, d, 0.0).mean()",), "torch.where does not stop"),
        ("d = (pred.log() - g).masked_fill(hole, 0)", (), "masked_fill does not stop"),
        ("d = pred.log()", ("loss = (d.abs() * valid_mask[:, None]).sum()",), "product with a mask does not stop"),
        ("d = pred.log() * (gt > 0).float()", (), "product with a mask does not stop"),
    ],
)
def test_what_a_mask_leaves_out_has_a_gradient_all_the_same(at, by_hand, line, uses, said):
    assert said in _evidence(at, by_hand, line, "pred.log()", uses)
    assert said not in _evidence(at, by_hand, line, "pred.log()", uses, zeros=4)  # not all of it was left out


@pytest.mark.parametrize(
    ("line", "uses"),
    [
        ("d = torch.where(pred.log() > 0, a, b)", ()),
        ("d = pred.log() * scale", ()),
        ("d = pred.log()", ("return torch.where(gt > 0, e, 0.0)", "masks = d + 1")),
        ("d = pred.log() * keep_prob", ()),
        ("d = pred.log() * (valid_loss + pad_weight)", ()),
        ("d = pred.log() * keep", ()),
    ],
)
def test_what_no_mask_leaves_out_is_told_as_it_was(at, by_hand, line, uses):
    assert "does not stop" not in _evidence(at, by_hand, line, "pred.log()", uses, names=(("keep", "0.9"),))


def test_it_is_said_once(at, by_hand):
    line = "d = torch.where(x > 0, x.sqrt(), 0.0)"
    told = _evidence(at, by_hand, line, "x.sqrt()", node="SqrtBackward0")
    assert "both branches are differentiated" in told
    assert "does not stop" not in told
