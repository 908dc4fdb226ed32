"""Events as JSON lines: nothing is lost, nothing wrong gets in, and newer words do not stop an older reader."""

import json
import math
from dataclasses import fields, replace

import pytest

from nandiag.events import (
    Activations,
    Argument,
    Armed,
    Attached,
    Compared,
    Finished,
    Harm,
    History,
    Listening,
    Looked,
    Next,
    Note,
    Placed,
    Printed,
    ProbeDark,
    Raised,
    Record,
    Replicas,
    Sent,
    Setting,
    Site,
    Skipped,
    Stopping,
    TensorFact,
    Unknown,
    Warned,
    decode,
    encode,
)
from nandiag.events.codec import KINDS

FACT = TensorFact(
    "float16", (2, 3), 6, nan=1, posinf=2, neginf=3, zeros=0, min=-1.5, max=2.5, absmax=2.5, device="cuda:1",
    placement="(Shard(0))", name="fc.weight", first_bad=(1, 2),
)  # fmt: skip
SITE = Site("a.b", "B", "aten.exp.default", "ExpBackward0", "aten.exp.default", "t.py", 3, (4, 9), "forward", "y = x")
EVERY = [
    Attached(1, 2, 1, 0, "node", 5, "site", "3.12", "0.1.0", node_rank=0),
    Armed("2.13", ("sentinel", "tape"), "13.0", "2.30", "580.1", "GPU-1"),
    ProbeDark("scaler", "TypeError", 3),
    Note("a line\nand another, größe"),
    Harm(
        "loss",
        3,
        "loss",
        (FACT,),
        1,
        2,
        0,
        903,
        2,
        math.nan,
        math.inf,
        False,
        "cuda:1",
        "AdamW",
        own_step=2,
        left_on=True,
        searches=False,
        loaded_at="ckpt.py:22",
    ),
    Looked("found", "replay", 3, 0, "forward", "op", SITE, (FACT,), (FACT,), {"a": [1, {"b": None}]}, "why", 0.5),
    Sent("send", (0, 1), 7, "0#0/0", Looked("found", "message", 3, 0, "collective", "outside", SITE, (FACT,)), SITE),
    Next(1, Looked("finite", "replay", 3, 0)),
    Skipped(
        3,
        1024.0,
        1,
        2,
        -math.inf,
        "script",
        Looked("found", "replay", 3, 0),
        "gradient norm",
        last=True,
        every=True,
        optimizer=1,
        updates=2,
        high=1,
    ),
    Stopping(3, "auto", "stop", "gradient"),
    Raised("ValueError", "m", "Traceback", 3),
    Printed(16, 3, 5, "{'loss': 4.02}"),
    Replicas(64, (0, 1), ("fc.weight",), ("9f3a",)),
    Warned("grad_norm_spike", 412, {"norm": 81.5, "largest": math.inf}, "fc.weight", total=3),
    History((1, 2), (0.5, math.nan), (None, math.inf), (0.1, 0.1), (None, None)),
    Compared(
        3,
        (1, 2),
        (Setting(0, "momentum", 1.3, 0.1, 0.9, 0.9, 1.3, 2, 1, ("t.py:1: m",)),),
        ("fc.weight",),
        1,
        2,
        (Argument("t_end", 2.0, 12.0),),
    ),
    Activations((1, 2), ("a", ""), ("float16", "float32"), ((0.5, None), (math.inf, 2.0)), 3),
    Listening(61, ("/torch/", "/python/")),
    Placed("cuda:1", 1, 8, "H100", "GPU-1", {"cuda": "nccl"}),
    Finished(9, 1, 8, (3, 2, 7), (9, None)),
]


def line(event, **changes):
    return json.dumps({**json.loads(encode(Record(7, 12.5, event))), **changes})


def test_every_kind_is_tried_here():
    assert {type(event) for event in EVERY} == set(KINDS.values())


@pytest.mark.parametrize("event", EVERY, ids=lambda event: type(event).__name__)
def test_round_trip(event):
    text = encode(Record(7, 12.5, event))
    assert "\n" not in text
    again = decode(text)
    assert (again.seq, again.time) == (7, 12.5)
    # NaN is not equal to itself: compare what would be written again.
    assert encode(again) == text
    assert type(again.event) is type(event)


def test_no_field_is_at_its_default_in_the_round_trip():
    for event in EVERY:
        for field in fields(event):
            given = getattr(event, field.name)
            assert given is not None, f"{type(event).__name__}.{field.name}"


def test_non_finite_numbers_are_strings_in_strict_json():
    def refuse(word):
        raise AssertionError(word)

    data = json.loads(encode(Record(0, 0.0, EVERY[4])), parse_constant=refuse)
    assert (data["loss"], data["grad_norm"]) == ("nan", "inf")


@pytest.mark.parametrize(
    ("event", "changes"),
    [
        (Note("x"), {"text": 3}),
        (Note("x"), {"text": None}),
        (EVERY[4], {"step": 3.5}),
        (EVERY[4], {"step": True}),
        (EVERY[4], {"step": "3"}),
        (EVERY[4], {"loss": "very large"}),
        (EVERY[4], {"loss": 10**400}),
        (EVERY[4], {"tensors": {}}),
        (EVERY[4], {"tensors": [3]}),
        (EVERY[4], {"tensors": [{"dtype": "float32"}]}),
        (EVERY[5], {"site": []}),
        (EVERY[5], {"facts": []}),
        (EVERY[9], {"step": [1, "2"]}),
        (Note("x"), {"seq": None}),
        (Note("x"), {"time": "yesterday"}),
        (Note("x"), {"kind": None}),
        (Note("x"), {"kind": ["note"]}),
    ],
)
def test_a_wrong_type_is_no_event(event, changes):
    text = line(event, **changes)
    if changes.get("kind", "") is None:
        assert decode(text).event == Unknown("None")
    else:
        with pytest.raises(ValueError, match=r"not an event|could not convert"):
            decode(text)


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "3", "[]", '"note"', "{}", '{"kind": "note"}', b"\xff\xfe", "[" * 100_000, '{"kind":"note"}' * 2],
)
def test_what_is_no_record_is_refused(text):
    with pytest.raises(ValueError):
        decode(text)


def test_unknown_fields_are_ignored():
    assert decode(line(Note("x"), newer={"a": 1})).event == Note("x")
    assert decode(line(EVERY[4], tensors=[{"dtype": "f", "shape": [2], "numel": 2, "newer": 1}])).event.tensors == (
        TensorFact("f", (2,), 2),
    )


def test_missing_fields_with_a_default_take_it():
    skipped = next(event for event in EVERY if isinstance(event, Skipped))
    data = json.loads(line(skipped))
    del data["by"], data["loss"]
    assert decode(json.dumps(data)).event == replace(skipped, loss=None, by="scaler")


def test_a_missing_field_without_a_default_is_refused():
    data = json.loads(line(Note("x")))
    del data["text"]
    with pytest.raises(ValueError, match="not an event"):
        decode(json.dumps(data))


def test_an_unknown_kind_is_kept():
    assert decode(line(Note("x"), kind="comet")).event == Unknown("comet")


def test_what_json_cannot_say_is_refused():
    with pytest.raises(TypeError):
        encode(Record(0, 0.0, Looked("found", "replay", 1, facts={"x": object()})))
