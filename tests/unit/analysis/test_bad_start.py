"""Weights that were bad from their start, by what left them so."""

from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.analysis.causes import Facts, explain
from nandiag.analysis.report import Origin
from nandiag.events import Around, Harm, Looked, Meaning, Site


def began(by_hand, bad, *, step=0, basis="state", total=4):
    origin = Origin("nan", 0, (0,), step, phase="init", inputs=(bad,))
    look = Looked("found", "replay", step, source="parameter") if basis == "look" else None
    return explain(Facts(origin, basis, harm=Harm("parameter", step, "init", (bad,), 1, total), look=look))[0]


@pytest.mark.parametrize(
    ("nan", "first", "said"),
    [
        (8, (2, 0), "All rows from 2 on are NaN"),
        (16, (0, 0), "It is NaN throughout"),
        (8, (1, 0), None),
        (8, (2, 1), None),
        (1, (3, 3), None),
    ],
)
def test_rows_that_may_never_have_been_written(by_hand, nan, first, said):
    story = began(by_hand, by_hand.fact("w", nan=nan, first_bad=first))
    assert story.slug == "init_nonfinite"
    assert [text.partition(",")[0] for text in story.evidence[1:]] == ([said] if said else [])
    assert any("torch.empty or to_empty" in one.text for one in story.suggestions) is bool(said)


def test_a_model_all_of_which_is_bad_was_written(by_hand):
    bad = by_hand.fact("w", nan=16, first_bad=(0, 0))
    harm = Harm("parameter", 0, "init", (bad,) * 4, 4, 4)
    story = explain(Facts(Origin("nan", 0, (0,), 0, phase="init", inputs=(bad,)), "state", harm=harm))[0]
    assert (story.slug, len(story.evidence)) == ("init_nonfinite", 1)


@pytest.mark.parametrize("basis", ["state", "look"])
def test_a_weight_first_seen_bad_within_the_run_is_not_said_to_be_bad_from_the_start(by_hand, basis):
    story = began(by_hand, by_hand.fact("w", nan=1), step=15, basis=basis)
    assert "step 15" in story.evidence[0]
    assert "No step" not in story.evidence[0]
    assert "between steps 14 and 15" in story.suggestions[0].text


@pytest.mark.parametrize(("kind", "line", "code"), [
    ("Linear", 'net.to_empty(device="cpu")',
     "[m.reset_parameters() for m in net.modules() if hasattr(m, 'reset_parameters')]"),
    ("ScaleNorm", 'net.to_empty(device="cpu")',
     "def reset_parameters(self):\n    torch.nn.init.normal_(self.weight, std=0.02)"),
    ("Linear", "w = torch.empty(3, 3)", "w = torch.empty(3, 3)\ntorch.nn.init.normal_(w, std=0.02)"),
    ("Linear", "self.w = torch.empty(3, 3)", "torch.nn.init.normal_(self.weight, std=0.02)"),
])  # fmt: skip
def test_what_to_empty_left_unwritten_is_filled_by_modules_that_know_how(by_hand, kind, line, code):
    bad = by_hand.fact("layers.0.weight", nan=3)
    origin = Origin("nan", 0, (0,), 0, phase="init", inputs=(bad,), source=line, module_class=kind)
    told = {"weight": "layers.0.weight", "birth": "unwritten", "call": "empty_like"}
    look = Looked("found", "record", 0, source="parameter", facts=told)
    facts = Facts(origin, "look", harm=Harm("parameter", 0, "init", (bad,), 1, 4), look=look, born_bad=bad)
    assert explain(facts)[0].suggestions[0].code == code


@pytest.mark.parametrize(("use", "known", "left"), [
    ("w[:old.shape[0]] = old", ["old"], "w[old.shape[0]:]"),
    ("w[:4] = old", [], "w[4:]"),
    ("w[:n] = old", [], "w"),  # n may be made behind the line
    ("w[2:4] = old", [], "w"),
    ("w[:, :4] = old", [], "w"),
])  # fmt: skip
def test_of_rows_that_are_written_the_rest_is_initialised_by_the_scripts_own_name(by_hand, use, known, left):
    bad = by_hand.fact("tok.weight", nan=8, first_bad=(2, 0))
    line = "w = torch.empty(n, 4)"
    origin = Origin("nan", 0, (0,), 0, phase="init", inputs=(bad,), source=line, module_class="Embedding", line=34)
    told = {"weight": "tok.weight", "birth": "unwritten", "call": "empty"}
    site = Site(around=Around(tuple(Meaning(one, "x.data", "t.py", 33) for one in known), (use,)))
    look = Looked("found", "record", 0, source="op", facts=told, site=site)
    facts = Facts(origin, "look", harm=Harm("parameter", 0, "init", (bad,), 1, 4), look=look, born_bad=bad)
    assert explain(facts)[0].suggestions[0].code == f"{line}\ntorch.nn.init.normal_({left}, std=0.02)"


def test_a_load_that_passed_over_it_is_told_with_what_the_checkpoint_lacks(by_hand):
    bad = by_hand.fact("head.weight", nan=3)
    origin = Origin("nan", 0, (0,), 4, phase="init", inputs=(bad,), file="train.py", module_class="Linear")
    told = {"weight": "head.weight", "birth": "unwritten", "call": "empty_like", "handed_at_step": 4,
            "missing_key": "model.head.weight", "missing_in": "ckpt", "passed_over_at": ["train.py", 57]}  # fmt: skip
    look = Looked("found", "record", 4, source="parameter", facts=told)
    story = explain(Facts(origin, "look", harm=Harm("parameter", 4, "init", (bad,), 1, 4), look=look, born_bad=bad))[0]
    assert story.evidence[1].startswith("ckpt, which line 57 loads, holds no model.head.weight")
    assert "model.head.weight" in story.suggestions[0].text


@pytest.mark.parametrize(("absmax", "slug"), [(0.1, "init_nonfinite"), (1e35, "uninitialised_memory")])
def test_what_numpy_was_given_is_not_told_to_be_unwritten_but_by_its_values(by_hand, absmax, slug):
    bad = by_hand.fact("head.weight", nan=3, absmax=absmax)
    origin = Origin("nan", 0, (0,), 0, phase="init", inputs=(bad,), file="train.py", module_class="Linear")
    told = {"weight": "head.weight", "birth": "unwritten", "call": "empty", "exposed": True}
    look = Looked("found", "record", 0, source="parameter", facts=told)
    story = explain(Facts(origin, "look", harm=Harm("parameter", 0, "init", (bad,), 1, 4), look=look, born_bad=bad))[0]
    assert story.slug == slug
    assert not any("nothing wrote" in text for text in story.evidence)


def test_a_tensor_that_nothing_wrote_to_is_told_from_one_that_was_filled_badly(by_hand):
    bad = by_hand.fact("w", nan=16, first_bad=(0, 0))
    origin = Origin("nan", 0, (0,), 0, phase="init", inputs=(bad,))
    for names, slug in (((), "init_nonfinite"), (("w",), "uninitialised_memory"), (("v",), "init_nonfinite")):
        harm = Harm("parameter", 0, "init", (bad,), 1, 4, untouched=names)
        assert explain(Facts(origin, "state", harm=harm))[0].slug == slug


def test_the_optimizers_state_is_what_to_check_where_it_came_bad(at, by_hand):
    bad = by_hand.fact("exp_avg_sq of 2.weight", nan=1)
    for what, code in (
        ("optimizer_state", "opt.state.values()"),
        ("parameter", "net.parameters()"),
        ("buffer", "net.state_dict()"),
    ):
        harm = Harm(what, 0, "checkpoint", (bad,), 1, 4, names={"optimizer": "opt", "model": "net"})
        story, _ = explain(Facts(Origin("nan", 0, (0,), 0, phase="checkpoint", inputs=(bad,)), "state", harm=harm))
        assert story.slug == "checkpoint_corruption"
        assert code in story.suggestions[-1].code
    harm = Harm("optimizer_state", 0, "init", (bad,), 1, 4)
    story, _ = explain(Facts(Origin("nan", 0, (0,), 0, phase="init", inputs=(bad,)), "state", harm=harm))
    assert "optimizer.state.values()" in story.suggestions[0].code


def test_a_weight_that_numpy_made_bad_has_its_line_mended(by_hand):
    bad = by_hand.fact("weight", posinf=1, first_bad=(2,))
    line = "weights = counts.sum() / counts"
    origin = Origin(
        "inf", 0, (0,), 3, phase="init", source=line, column=(10, len(line)), file="train.py", line=7, outputs=(bad,)
    )
    told = {"weight": "weight", "weight_is": "buffer", "birth": "outside", "heard": True}
    look = Looked("found", "tape", 3, source="op", facts={**told, "numpy": "divide by zero encountered in divide"})
    facts = Facts(origin, "look", harm=Harm("gradient", 3, "init", (bad,), 1, 4), look=look, born_bad=bad)
    story = explain(facts)[0]
    assert story.slug == "init_nonfinite"
    assert story.evidence[0] == "numpy says: divide by zero encountered in divide"
    assert story.suggestions[0].code == "weights = counts.sum() / np.maximum(counts, 1)"


@pytest.mark.parametrize(("line", "told"), [(15, True), (6, False)])
def test_the_first_to_read_what_was_not_written_is_named(at, by_hand, line, told):
    facts = at("empty", (), (by_hand.fact(nan=4),), extra={"read_at": ["a/pool.py", line]})
    facts = replace(facts, origin=replace(facts.origin, line=6, source="out = torch.empty(3, 4)", column=(6, 23)))
    _, found = explain(facts)
    assert found.suggestions[0].code == "out = torch.zeros(3, 4)"
    assert ("pool.py:15 is the first to read what was not" in found.suggestions[1].text) is told


@pytest.mark.parametrize(
    ("used", "line", "code"),
    [
        ("copy_", "s = {k: torch.empty_like(v) for k, v in m.state_dict().items()}", "v.detach().clone()"),
        ("copy_", "s = [torch.empty_like(p) for p in m.parameters()]", "p.detach().clone()"),
        ("mul_", "s = [torch.empty_like(p) for p in m.parameters()]", "torch.zeros_like(p)"),  # a momentum, say
        ("copy_", "s = torch.empty_like(v)", "torch.zeros_like(v)"),
    ],
)
def test_what_stands_for_the_state_of_a_model_begins_with_a_copy(at, by_hand, used, line, code):
    first = line.index("torch")
    column = (first, line.index(")") + 1)
    facts = at(
        "empty_like", (), (by_hand.fact(nan=4),), extra={"first_used_by": f"aten.{used}.default", "as_filled": True}
    )
    facts = replace(facts, origin=replace(facts.origin, source=line, column=column))
    told = explain(facts)[1].suggestions
    assert [one.code for one in told] == [line[: column[0]] + code + line[column[1] :], None]


@pytest.mark.parametrize(("made", "fill"), [
    ("nn.Parameter(torch.ones(d, device=device))", "torch.nn.init.ones_(self.scale)"),
    ("nn.Parameter(torch.zeros(d))", "torch.nn.init.zeros_(self.scale)"),
    ("nn.Parameter(torch.rand(d))", "torch.nn.init.normal_(self.scale, std=0.02)"),
])  # fmt: skip
def test_what_a_class_means_its_weight_to_be_is_what_its_reset_is_to_fill_it_with(by_hand, made, fill):
    bad, line = by_hand.fact("1.scale", nan=3), 'net.to_empty(device="cpu")'
    origin = Origin("nan", 0, (0,), 0, phase="init", inputs=(bad,), source=line, module_class="Scale")
    extra = {"weight": "1.scale", "birth": "unwritten", "call": "empty_like", "made_as": made}
    look = Looked("found", "record", 0, source="parameter", facts=extra)
    facts = Facts(origin, "look", harm=Harm("parameter", 0, "init", (bad,), 1, 4), look=look, born_bad=bad)
    (mend, *_) = explain(facts)[0].suggestions
    assert mend.code == f"def reset_parameters(self):\n    {fill}"
    assert mend.text == "Initialise every element behind to_empty: give Scale a reset_parameters, and call it there."


def loaded_state(by_hand, **kind):
    state = by_hand.fact("exp_avg of w", **kind)
    harm = Harm("optimizer_state", 20, "init", (state,), 8, 4, optimizer="Adam", loaded_at="ckpt.py:22")
    refused = Looked("refused", "replay", 20, reason="the optimizer's state was bad before this update")
    return analyse(by_hand.run(by_hand.rank(0, harm, refused, by_hand.state(20, "w", since=19), world=1), world=1))


def test_state_that_was_loaded_bad_is_told_by_the_line_that_loaded_it(by_hand):
    report = loaded_state(by_hand, nan=4)
    evidence = report.verdict.evidence
    assert "The optimizer's state was loaded at ckpt.py:22, and was bad when step 20 began." in evidence
    assert not any("outside of a step" in one or "an update before this one" in one for one in evidence)
    assert not any("half precision" in one for one in evidence)
    assert report.verdict.suggestions[0].text.startswith("Look at what ckpt.py:22 loads")
    assert any(one.slug == "held_bad" and "ckpt.py:22" in one.text for one in report.findings)
    assert not any("could not be run again" in note for note in report.notes)


@pytest.mark.parametrize(("most", "told"), [(65152.0, True), (4096.0, False), (1e20, False)])
def test_what_ends_where_float16_does_went_through_it(by_hand, most, told):
    report = loaded_state(by_hand, posinf=4, min=-most, max=most, absmax=most)
    assert any("float16 ends at 65504" in one for one in report.verdict.evidence) is told
    assert ("bfloat16" in report.verdict.suggestions[0].text) is told
