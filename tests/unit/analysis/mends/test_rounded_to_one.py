"""The logarithm of 1 - p where half precision makes 1 of p, whatever bound was laid on that."""

import pytest

from nandiag.analysis.causes import explain
from nandiag.analysis.causes.facts import LIKELY, POSSIBLE
from tests.unit.analysis.mends.told import on, placed

LINE = "return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()"


def rounded(at, by_hand, *names, dtype="bfloat16", nodes=(), shown="torch.log(1 - p)"):
    given = by_hand.fact(zeros=2, min=0.0, max=1.0, absmax=1.0, absmin=0.004, dtype=dtype)
    facts = at("log", (given,), (by_hand.fact(neginf=2, dtype=dtype),), **placed(LINE, shown),
               extra={"of_weights": True, "made_by": list(nodes)})  # fmt: skip
    return explain(on(facts, *names))


CLAMPED = ("p", "p.clamp(EPS, 1 - EPS)")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_bound_that_is_one_itself_is_said_to_be_of_no_help(at, by_hand, dtype):
    story, mechanism = rounded(at, by_hand, CLAMPED, dtype=dtype)
    assert (story.slug, story.strength, mechanism.slug) == ("precision_underflow", LIKELY, "log_of_zero")
    assert "The bound of p.clamp(EPS, 1 - EPS) does not help" in story.evidence[0]


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("torch.clamp(p, 1e-7, 0.9999)", "0.9999"),
        ("p.clamp(max=top)", "top"),
        ("p.clamp_max(1 - 1e-7)", "1 - 1e-07"),
        ("torch.clip(p, max=top)", "top"),
        ("p.clamp(1e-7)", None),  # from below alone
        ("torch.clamp(p, 1e-7)", None),
        ("p.clamp(min=1e-7)", None),
        ("p.clamp(0, 0.9)", None),  # which bfloat16 holds
    ],
)
def test_the_bound_that_is_told_is_the_upper_one(at, by_hand, text, bound):
    story = rounded(at, by_hand, ("p", text), nodes=("SigmoidBackward0",))[0]
    told = f"The bound of {text} does not help: {bound} itself is 1 in bfloat16."
    assert story.evidence[0].endswith(told) is (bound is not None)
    assert (story.strength == LIKELY) is (bound is not None)


@pytest.mark.parametrize("node", ["SigmoidBackward0", "SoftmaxBackward0", "ExpBackward0", "TanhBackward0"])
def test_without_a_bound_the_rounding_is_possible_where_it_was_squashed(at, by_hand, node):
    assert rounded(at, by_hand, nodes=("RsubBackward1", node))[0].strength == POSSIBLE


@pytest.mark.parametrize("text", [
    "torch.sigmoid(scores)", "1 - torch.exp(-rate)", "scores.softmax(-1)", "F.gumbel_softmax(scores)",
    "nn.Sigmoid()(scores)", "scores.sigmoid_()", "big / big.sum(1, keepdim=True)", "big / (torch.sum(big, 1) + 1e-6)",
    "(big / big.sum()).squeeze(-1)",
])  # fmt: skip
def test_it_is_possible_where_the_script_says_that_it_was_squashed(at, by_hand, text):
    assert rounded(at, by_hand, ("p", text))[0].strength == POSSIBLE


@pytest.mark.parametrize(
    "names",
    [
        (),
        (("p", "(torch.rand(16, 4) < 0.3).bfloat16()"),),
        (("p", "begin_at_basin(3)"),),  # whose name only ends in that of a function that comes near 1
        (("p", "big / big.max()"),),  # which is 1 at the largest, by no rounding
        (("p", "ends / 4"),),
    ],
)
def test_a_mask_of_ones_was_not_rounded(at, by_hand, names):
    assert rounded(at, by_hand, *names, nodes=("RsubBackward1", "ExpandBackward0"))[0] is None


def test_a_sum_that_has_a_name_is_known(at, by_hand):
    assert rounded(at, by_hand, ("p", "big / total"), ("total", "big.sum(1, keepdim=True)"))[0].strength == POSSIBLE
    assert rounded(at, by_hand, ("p", "big / total"), ("total", "other.sum()"))[0] is None


def test_it_is_none_of_float32_nor_of_p_itself(at, by_hand):
    assert rounded(at, by_hand, CLAMPED, dtype="float32")[0] is None
    assert rounded(at, by_hand, CLAMPED, shown="torch.log(p)")[0] is None


@pytest.mark.parametrize("line", [LINE, "loss = -torch.log(1 - p).mean()"])
def test_behind_the_bound_the_sigmoid_is_seen(at, by_hand, line):
    given = by_hand.fact(zeros=2, min=0.0, max=1.0, absmax=1.0, dtype="bfloat16")
    nodes = ["RsubBackward1", "ClampBackward1", "SqueezeBackward1", "SigmoidBackward0"]
    facts = at("log", (given,), (by_hand.fact(neginf=2, dtype="bfloat16"),), **placed(line, "torch.log(1 - p)"),
               extra={"of_weights": True, "made_by": nodes})  # fmt: skip
    codes = [one.code for one in explain(on(facts, CLAMPED))[1].suggestions]
    form = (
        "torch.nn.functional.binary_cross_entropy_with_logits(scores, y)" if line == LINE else "F.logsigmoid(-scores)"
    )
    assert codes[1] == form
