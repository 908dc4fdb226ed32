"""Means, spreads and losses of nothing, or of too little."""

from dataclasses import replace

import pytest
import torch

from nandiag.analysis.causes import explain
from nandiag.events import Around, Site, TensorFact
from tests.unit.analysis.ops.told import by_zero, codes, mechanism, on


def test_ctc(at, by_hand):
    loss = TensorFact("float32", (8,), 8, posinf=1, min=2.0, max=3.0, absmax=3.0, first_bad=(6,))
    facts = at("_ctc_loss", (by_hand.fact(),), (loss, by_hand.fact(neginf=9)))
    found = mechanism(facts)
    assert found.slug == "ctc_infeasible"
    assert found.evidence[0] == "1 of 8 targets cannot be aligned: longer than the input allows"
    assert mechanism(at("_ctc_loss", (by_hand.fact(),), (by_hand.fact(nan=1), by_hand.fact()))).slug == "unknown"


@pytest.mark.parametrize(("frames", "symbols", "repeats"), [((6, 16), (2, 6), True), ((6, 16), (2, 7), False)])
def test_targets_that_are_no_longer_than_their_input_hold_repeats(at, by_hand, frames, symbols, repeats):
    """The blank between two that are equal takes a frame as well."""
    lengths = [by_hand.fact(dtype="int64", shape=(4,), min=low, max=high) for low, high in (frames, symbols)]
    given = (by_hand.fact(), by_hand.fact(dtype="int64", shape=(15,)), *lengths)
    loss = by_hand.fact(shape=(4,), posinf=1)
    told = mechanism(at("_ctc_loss", given, (loss,))).evidence
    assert told[0] == "1 of 4 targets cannot be aligned: longer than the input allows"
    assert any("No target has more symbols than its input has frames" in text for text in told) is repeats


def one_value(by_hand, **rest):
    return by_hand.fact(shape=(1,), min=0.5, max=0.5, absmax=0.5, **rest)


def test_the_spread_of_one_value(at, by_hand):
    bad = by_hand.fact(shape=(), nan=1, min=None, max=None, absmax=None)
    facts = at("std", (one_value(by_hand),), (bad,), **on("y = r.std() + 1e-6", "r.std()"))
    found = mechanism(facts)
    assert (found.slug, found.evidence) == ("empty_reduction", ("std of 1 value divides by 1 - 1: 0/0 is NaN",))
    assert codes(facts)[0] == "y = r.std(unbiased=False) + 1e-6"


@pytest.mark.parametrize(
    ("shape", "out", "correction", "slug"),
    [
        ((4, 1), (4,), None, "empty_reduction"),
        ((4, 2), (4,), None, "unknown"),
        ((4, 2), (4,), 2, "empty_reduction"),
        ((1,), (), 0, "unknown"),
    ],
)
def test_groups_that_are_too_small(at, by_hand, shape, out, correction, slug):
    extra = {} if correction is None else {"correction": correction}
    facts = at("var", (by_hand.fact(shape=shape),), (by_hand.fact(shape=out, nan=1),), extra=extra)
    assert mechanism(facts).slug == slug


@pytest.mark.parametrize(
    ("shape", "short", "first"),
    [((1, 8), [1, 16], "drop_last"), ((1, 8), None, "unbiased"), ((4, 1), [4, 16], "unbiased")],
)
def test_a_last_batch_of_one_sample_is_left_out_first(at, by_hand, shape, short, first):
    out = by_hand.fact(shape=(8,) if shape[0] == 1 else (4,), nan=8)
    facts = at("var", (by_hand.fact(shape=shape),), (out,), extra={"short_batch": short} if short else {},
               **on("v = z.var(0)", "z.var(0)"))  # fmt: skip
    told = mechanism(facts).suggestions
    assert [first in (one.code or "") for one in told] == [True, False]
    assert ("a batch of 1 sample, where others have 16" in told[0].text) is (first == "drop_last")
    assert told[1].text.startswith("Or ")


def test_a_loss_all_of_whose_targets_are_ignored(at, by_hand):
    bad = (by_hand.fact(shape=(), nan=1),)
    found = mechanism(at("nll_loss_forward", (by_hand.fact(), by_hand.fact()), bad, extra={"arg4": -100}))
    assert (found.slug, "-100" in found.evidence[0]) == ("empty_reduction", True)


@pytest.mark.parametrize(
    ("line", "owner", "code"),
    [
        ("loss = loss_fct(logits.view(-1, self.n), labels.view(-1))", "CrossEntropyLoss",
         "loss = loss_fct(logits.view(-1, self.n), labels.view(-1)) if (labels != -100).any() else 0 * logits.sum()"),
        ("loss = 2 * self.loss(f(x), y[:, 1:])", "NLLLoss",
         "loss = 2 * (self.loss(f(x), y[:, 1:]) if (y[:, 1:] != -100).any() else 0 * f(x).sum())"),
        ('loss = F.cross_entropy(z, y, reduction="mean", label_smoothing=0.1)', None,
         'loss = F.cross_entropy(z, y, reduction="mean", label_smoothing=0.1) if (y != -100).any() else 0 * z.sum()'),
    ],
)  # fmt: skip
def test_a_criterion_all_of_whose_targets_are_ignored_keeps_its_options(at, by_hand, line, owner, code):
    expression = line.removeprefix("loss = ").removeprefix("2 * ")
    facts = at("nll_loss_forward", (by_hand.fact(), by_hand.fact()), (by_hand.fact(shape=(), nan=1),),
               extra={"arg4": -100}, module_class=owner, **on(line, expression))  # fmt: skip
    first = mechanism(facts).suggestions[0]
    assert first.code == code
    assert "count" not in first.text


def test_any_mean_of_nothing(at, by_hand):
    empty = by_hand.fact(shape=(0, 4), min=None, max=None, absmax=None)
    assert mechanism(at("mse_loss", (empty, empty), (by_hand.fact(shape=(), nan=1),))).slug == "empty_reduction"


@pytest.mark.parametrize(
    ("line", "expression", "code"),
    [
        ("m = 0.1 + pos.detach().std() / n", "pos.detach().std()",
         "m = 0.1 + (pos.detach().std() if pos.numel() > 1 else pos.new_zeros(())) / n"),
        ("s = torch.std(d[same])", "torch.std(d[same])",
         "s = torch.std(d[same]) if d[same].numel() > 1 else d[same].new_zeros(())"),
        ("return x.std(unbiased=False)", "x.std(unbiased=False)",
         "return x.std(unbiased=False) if x.numel() > 1 else x.new_zeros(())"),
        ("m = (y - c) / x.std()", "x.std()", "m = (y - c) / (x.std() if x.numel() > 1 else x.new_ones(()))"),
        ("s = x.std(0)", "x.std(0)", "s = torch.nan_to_num(x.std(0), nan=0.0)"),
        ("s = self.pick(x).std()", "self.pick(x).std()", "s = torch.nan_to_num(self.pick(x).std(), nan=0.0)"),
        ("s = spread(x)", "spread(x)", None),
    ],
)  # fmt: skip
def test_the_spread_of_nothing_is_taken_of_two_values_or_more(at, by_hand, line, expression, code):
    bad = by_hand.fact(shape=(), nan=1)
    facts = at("std", (by_hand.fact(shape=(0,)),), (bad,), **on(line, expression))
    assert mechanism(facts).slug == "empty_reduction"
    assert codes(facts) == [code]


def test_the_spread_of_nothing_among_weights_keeps_its_gradient(at, by_hand):
    bad = by_hand.fact(shape=(), nan=1)
    facts = at(
        "std", (by_hand.fact(shape=(0,)),), (bad,), **on("loss = z.std()", "z.std()"), extra={"of_weights": True}
    )
    assert codes(facts) == ["loss = z.std() if z.numel() > 1 else 0 * z.sum()"]


def test_a_count_of_nothing_is_at_least_one(at, by_hand):
    nothing = by_hand.fact(zeros=1, shape=(), dtype="int64", min=0.0, max=0.0, absmax=0.0)
    place = on("loss = (each * seen).sum() / seen.sum()", "(each * seen).sum() / seen.sum()")
    facts = at("div", (by_hand.fact(shape=()), nothing), (by_hand.fact(nan=1, shape=()),), **place)
    assert mechanism(facts).slug == "division_by_zero"
    assert codes(facts) == ["loss = (each * seen).sum() / seen.sum().clamp_min(1)"]


@pytest.mark.parametrize(("line", "slug"), [
    ("loss = F.cross_entropy(model(x), y)", "empty_reduction"), ("loss = total(x) / count(y)", "division_by_zero"),
])  # fmt: skip
def test_a_loss_that_is_made_of_smaller_ops_and_has_no_target(at, by_hand, line, slug):
    """Under ``loss_parallel`` the sum over targets is divided by their count in an op of its own."""
    zero = by_hand.fact(shape=(), zeros=1)
    facts = at("div", (zero, zero), (by_hand.fact(shape=(), nan=1),), **on(line, line.partition(" = ")[2]))
    assert mechanism(facts).slug == slug


def test_a_negative_running_variance_is_named(at, by_hand):
    one = by_hand.fact(shape=(16,))
    low = by_hand.fact("1.running_var", shape=(16,), min=-0.6)
    facts = at("native_batch_norm", (by_hand.fact(), one, one, one, low), (by_hand.fact(nan=8),), extra={"arg5": False})
    mechanism = explain(facts)[1]
    assert mechanism.slug == "domain_error"
    assert mechanism.evidence[0].startswith("1.running_var goes down to -0.6")
    sound = by_hand.fact("1.running_var", shape=(16,), min=0.1)
    facts = at("native_batch_norm", (by_hand.fact(), one, one, one, sound), (by_hand.fact(nan=8),))
    assert explain(facts)[1].slug == "unknown"


def test_an_average_with_an_infinite_weight(at, by_hand):
    line = on("a.lerp_(b, 1 - decay.item())", "a.lerp_(b, 1 - decay.item())")
    both = (by_hand.fact(), by_hand.fact())
    found = mechanism(at("lerp_", both, (by_hand.fact(posinf=8, neginf=8),), extra={"arg2": "inf"}, **line))
    assert (found.slug, found.evidence) == (
        "domain_error",
        ("lerp was given a weight of +inf: what comes out is infinite, or NaN",),
    )
    assert found.suggestions[0].code == "a.lerp_(b, min(max(1 - decay.item(), 0.0), 1.0))"
    assert mechanism(at("lerp_", both, (by_hand.fact(posinf=8),), extra={"arg2": 0.5}, **line)).slug != "domain_error"


def test_infinities_less_their_mean_are_no_masked_row(at, by_hand):
    line = "    return h * torch.sigmoid(g * (top - top.mean()))\n"
    given = (by_hand.fact(shape=(30,), neginf=1), by_hand.fact(shape=(), neginf=1, min=None, max=None, absmax=None))
    facts = at("sub", given, (by_hand.fact(shape=(30,), nan=1, posinf=29),), **on(line, "top - top.mean()"))
    found = mechanism(facts)
    assert (found.slug, codes(facts)) == ("domain_error", ["top = top.masked_fill(top == -torch.inf, 0.0)"])
    assert "its mean is -inf" in found.suggestions[0].text


PADDED, LINED = torch.tensor([[5, 5, 2, 0], [3, 4, 4, 4], [1, 0, 0, 0]]), torch.tensor([5, 5, 2, 3, 4, 4, 4, 1])
CTC = {"frames": (4, 5, 1), "lengths": (3, 4, 1)}


@pytest.mark.parametrize("call", [
    "F.ctc_loss(logp, text, frames, lengths)",
    "self.criterion(logp, text, input_lengths=frames, target_lengths=lengths)",
    "F.ctc_loss(logp, text[:], frames[:], target_lengths=lengths[:])",
])  # fmt: skip
@pytest.mark.parametrize("text", [PADDED, LINED])
@pytest.mark.parametrize("listed", [True, False])
def test_which_targets_fit_is_told_by_lines_that_run(at, by_hand, call, text, listed):
    given = (by_hand.fact(), by_hand.fact(dtype="int64", shape=tuple(text.shape)))
    module = "CTCLoss" if "criterion" in call else None
    facts = at("_ctc_loss", given, (by_hand.fact(shape=(3,), posinf=1),), module_class=module,
               **on(f"loss = {call}", call))  # fmt: skip
    kind = "default" if listed else "Tensor"
    facts = replace(facts, origin=replace(facts.origin, op=f"aten._ctc_loss.{kind}"))
    words = {name: one if listed else torch.tensor(one) for name, one in CTC.items()}
    known = {**words, "text": text, "torch": torch}
    exec(codes(facts)[1], known)  # noqa: S102
    assert known["fits"].tolist() == [True, False, True]


def test_an_average_of_nothing_is_left_out(at, by_hand):
    line = "p.mul_(self.seen / total)"
    facts = by_zero(at, by_hand, line, "self.seen / total", op="reciprocal", phase="optimizer", function="average")
    facts = replace(facts, look=replace(facts.look, site=Site(around=Around(ends=""))))
    assert codes(facts) == ["if total == 0: return"]
    facts = by_zero(at, by_hand, "s = seen / total", "seen / total", op="reciprocal", phase="optimizer")
    assert codes(facts)[0] == "s = seen / total.clamp_min(1e-6)"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("mean = torch.nanmean(x, dim=1)", "mean = torch.nan_to_num(torch.nanmean(x, dim=1), nan=0.0)"),
        ("loss = (x - y).square().nanmean()", "loss = torch.nan_to_num((x - y).square().nanmean(), nan=0.0)"),
    ],
)
def test_a_mean_of_what_is_not_missing_where_all_is(at, by_hand, line, code):
    counts = by_hand.fact(zeros=3, min=0.0)
    facts = at("div", (by_hand.fact(zeros=3), counts), (by_hand.fact(nan=3),), **on(line, line.partition("= ")[2]))
    assert (mechanism(facts).slug, codes(facts)) == ("empty_reduction", [code])
    assert mechanism(facts).evidence[0].startswith("of 3 in 16 means all values are NaN")


@pytest.mark.parametrize(
    ("source", "name"), [("loss = F.cross_entropy(z, y)", "cross_entropy"), ("loss = own(z, y)", "nll_loss_forward")]
)
def test_a_loss_of_no_rows_has_the_name_that_the_script_calls(at, by_hand, source, name):
    nothing = by_hand.fact(shape=(0, 4), min=None, max=None, absmax=None)
    found = mechanism(at("nll_loss_forward", (nothing,), (by_hand.fact(shape=(), nan=1),), text=source))
    assert f"the {name} of nothing is NaN" in found.evidence[0]
