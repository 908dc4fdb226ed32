"""A call without a gradient that wrote a buffer: whether eval() was forgotten, and by which name it is to be called."""

import pytest

from nandiag.analysis.causes import Facts, explain
from nandiag.analysis.report import Origin
from nandiag.events import Looked


def told(
    by_hand,
    *,
    source="buffer",
    used=False,
    by_mode=True,
    line="hits += (net.model(x).argmax(1) == y).sum()",
    column=(9, 21),
):
    facts = {"wrote_by_call": ["a/train.py", 27], "used": used, "by_mode": by_mode}
    bad = by_hand.fact(posinf=4, name="1.running_mean")
    origin = Origin("inf", 0, (0,), 30, phase="forward", inputs=(bad,), source=line, column=column)
    look = Looked("found", "tape", 30, source=source, inputs=(bad,), facts=facts)
    return explain(Facts(origin, "look", look=look))


def test_the_model_is_called_as_its_line_calls_it(by_hand):
    story, _ = told(by_hand)
    assert (story.slug, story.suggestions[0].code) == ("evaluation_in_training", "net.model.eval()")


@pytest.mark.parametrize("source", ["buffer", "op"])
def test_what_something_is_trained_by_is_not_told_to_be_in_the_wrong_mode(by_hand, source):
    story, _ = told(by_hand, source=source, used=True)
    assert story.slug == "unknown"
    assert not any("eval()" in one.text for one in story.suggestions)


def test_what_is_written_in_any_mode_is_not_told_to_be_in_the_wrong_one(by_hand):
    story, _ = told(by_hand, by_mode=False)
    assert (story.slug, story.evidence) == (
        "unknown",
        ("The model was called here without a gradient, and wrote this buffer.",),
    )
    assert not any("eval()" in one.text for one in story.suggestions)


def test_where_another_line_is_the_origin_no_name_is_guessed(by_hand):
    story, _ = told(by_hand, source="op", line="x[4, 2] = float('inf')", column=(0, 7))
    assert story.evidence[0].endswith("by a call of the model without a gradient, in training mode, at train.py:27.")
    assert [one.code for one in story.suggestions] == [None]


def data(by_hand, *, value="inf"):
    line = f"val_x[17, 2] = float('{value}')"
    facts = {"wrote_by_call": ["a/train.py", 18], "wrote_by_text": "model(x)", "used": False, "by_mode": True}
    kind = {"nan": 1} if value == "nan" else {"posinf": 1}
    given = (by_hand.fact(), by_hand.fact(shape=(), **kind))
    origin = Origin(
        "nan" if value == "nan" else "inf", 0, (0,), 6, phase="data", op="aten.copy_.default", inputs=given,
        outputs=(by_hand.fact(**kind),), source=line, column=(0, 12),
    )  # fmt: skip
    look = Looked("found", "record", 6, source="op", outputs=origin.outputs, facts={**facts, "birth": "op"})
    return explain(Facts(origin, "look", look=look))[0]


def test_data_that_came_into_a_buffer_by_an_evaluation_are_told_behind_that_call(by_hand):
    story = data(by_hand)
    assert story.slug == "evaluation_in_training"
    assert story.evidence[-1].endswith("without a gradient, in training mode, at train.py:18.")
    assert [one.code for one in story.suggestions] == ["model.eval()", "assert torch.isfinite(val_x).all()"]
    assert "only evaluated at train.py:18, call model.eval() before" in story.suggestions[0].text


def test_nan_that_the_script_writes_for_what_is_missing_is_not_to_be_found(by_hand):
    assert [one.code for one in data(by_hand, value="nan").suggestions] == ["model.eval()"]
