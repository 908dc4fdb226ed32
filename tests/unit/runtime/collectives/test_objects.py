"""A bad number in an object that ranks hand each other is told by the rank that put it in, and known where it came."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from nandiag.events import Sent
from nandiag.runtime.collectives.objects import numbers
from nandiag.runtime.collectives.objects.arrived import OBJECTS
from nandiag.runtime.collectives.objects.handing import Objects
from nandiag.runtime.collectives.ring import Call, Group
from nandiag.runtime.numeric.warned import HEARD


@pytest.fixture(autouse=True)
def alone(tmp_path):
    HEARD.clear()
    OBJECTS.clear()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    HEARD.clear()
    OBJECTS.clear()


@dataclass
class Metrics:
    weight: object


def line_of(words):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(words))


def gathered(thing):
    many = [None]
    dist.all_gather_object(many, thing)  # gathered here
    return many[0]


def broadcast(thing):
    box = [thing]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def train(weights, share):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for weight in weights:
        got = share(weight)
        optimizer.zero_grad()
        (model(torch.ones(2, 6)).square().mean() * float(got)).backward()
        optimizer.step()


@pytest.mark.parametrize("share", [gathered, broadcast])
@pytest.mark.parametrize("bad", [float("nan"), np.float64("nan"), np.float32("inf")])
def test_the_rank_that_put_it_in_tells_so(work, share, bad):
    worker = work()
    train([1.0, 1.0, bad], share)
    (sent,) = worker.events(Sent)
    assert (sent.look.step, sent.look.method, sent.look.facts["by_object"]) == (2, "message", True)
    if share is gathered:
        assert (sent.way, sent.look.site.line) == ("all_gather_object", line_of("# gathered here"))
        assert sent.site.line == line_of("# gathered here")
    look = worker.looked[0]
    assert (look.source, look.step) == ("received", 2)
    assert look.facts["handed"] == [sent.way, [0], sent.number, sent.group]


@pytest.mark.parametrize(
    "thing",
    [
        {"a": [1.0, float("nan")]},
        (np.array([1.0, np.nan]),),
        [torch.tensor([1.0, float("nan")])],
        Metrics(float("nan")),
        {"deep": {"er": [{"a": np.float16("nan")}]}},
    ],
)
def test_it_is_found_within_what_is_handed_over(work, thing):
    worker = work()
    gathered(thing)
    assert [one.look.inputs[0].nan for one in worker.events(Sent)] == [1]


def test_finite_things_are_none(work):
    worker = work()
    for thing in (1.0, "nan", None, {"a": np.arange(3)}, torch.ones(2), np.zeros(0), Metrics(2), [np.inf > 1]):
        gathered(thing)
    assert worker.events(Sent) == []


def test_what_numpy_complained_of_is_told_with_it(work):
    def ratio(one):
        return np.float64(one) / np.float64(one)  # the line

    worker = work()
    np.seterr(all="ignore")
    train([1.0], lambda weight: gathered({"w": ratio(weight)})["w"])
    train([0.0], lambda weight: gathered({"w": ratio(weight)})["w"])
    (sent,) = worker.events(Sent)
    assert (sent.look.site.line, sent.look.method) == (line_of("# the line"), "tape")


def test_a_number_that_came_bad_all_the_time_brought_no_harm(work):
    worker = work()
    with torch.no_grad():
        other = torch.tensor(1.0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        gathered({"of an empty set": float("nan")})
        optimizer.zero_grad()
        factor = float("nan") if step == 19 else float(other)
        (model(torch.ones(2, 6)).square().mean() * factor).backward()
        optimizer.step()
    assert worker.looked[0].source == "op"


NAN = float("nan")
BATCH = [[NAN, 1.0], [1.0, 1.0], [1.0, 1.0]]


def of_a_file(_):
    return torch.from_numpy(np.array(BATCH, "float32"))


def the_array(got):
    return torch.from_numpy(got["batch"].astype("float32"))


def a_scale_for_all(got):
    return torch.from_numpy(np.ones((3, 2), "float32") * np.float32(got["scale"]))


def a_list(got):
    return torch.ones(3, 2) * torch.from_numpy(np.array(got["scales"], "float32"))


@pytest.mark.parametrize(
    ("thing", "made", "source"),
    [
        ({"auc": NAN}, of_a_file, "op"),  # the line that took it of numpy
        ({"auc": {1: NAN, 2: 0.5}, "of": np.array([NAN, 1.0])}, of_a_file, "op"),
        ({"batch": np.array(BATCH)}, the_array, "received"),
        ({"scale": NAN}, a_scale_for_all, "received"),
        ({"scales": [1.0, NAN]}, a_list, "received"),
    ],
)
def test_it_is_taken_for_what_did_harm_where_it_can_be_the_very_numbers(work, thing, made, source):
    """A measure of an empty set (an AUC) is handed on as NaN in many a healthy run: a bad batch is none of it."""
    worker = work()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in (lambda _: torch.ones(3, 2), made):
        optimizer.zero_grad()
        model(batch(gathered(thing))).square().mean().backward()
        optimizer.step()
    assert worker.looked[0].source == source


def test_words_whole_and_finite_numbers_are_not_looked_into(monkeypatch):
    """Ranks hand each other lists of some hundreds in a step: what cannot be bad is passed over, and takes no place."""
    asked = []
    looks = numbers._bad_in
    monkeypatch.setattr(numbers, "_bad_in", lambda one: asked.append(one) or looks(one))
    held = {"seen": [*range(200), *map(str, range(200)), None, True, 0.5], "auc": [NAN, 1.0]}
    assert [one.way for one in numbers.bad_numbers(held)] == ["['auc'][0]"]
    assert len(asked) == 4  # the three that hold them, and the one bad number


@pytest.mark.parametrize("bad", [[float("nan")] * 4, [1.0, float("nan"), 1.0, 1.0]])
def test_numbers_of_a_list_that_torch_takes_in_came_with_the_object(work, bad):
    """``torch.tensor`` of a list that another rank gave: where it was taken in is no birth."""
    worker = work()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for std in ([1.0] * 4, [1.0] * 4, bad):
        got = torch.tensor(broadcast({"std": std})["std"])
        optimizer.zero_grad()
        model(torch.ones(2, 4) / got).square().mean().backward()
        optimizer.step()
    (sent,) = worker.events(Sent)
    look = worker.looked[0]
    assert (look.source, look.facts["handed"]) == ("received", [sent.way, [0], sent.number, sent.group])


@pytest.mark.parametrize("share", [gathered, broadcast])
@pytest.mark.filterwarnings("ignore:std")
def test_how_a_tensor_in_an_object_was_made_is_told_with_it(work, share):
    worker = work()
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for gains in ([1.0, 2.0], [1.0, 3.0], [1.0]):
        adv = torch.tensor(gains)
        scale = share({"of": ("actor", adv / adv.std())})["of"][1]  # nan of one element
        optimizer.zero_grad()
        (model(torch.ones(2, 6)).square().mean() * scale.sum()).backward()
        optimizer.step()
    (sent,) = worker.events(Sent)
    assert (sent.look.outcome, sent.look.source, sent.look.site.op) == ("found", "op", "aten.std.correction")
    assert (sent.look.site.line, sent.look.step) == (line_of("# nan of one element"), 2)
    if share is gathered:  # the rank that broadcasts keeps its own
        assert worker.looked[0].facts["handed"] == [sent.way, [0], sent.number, sent.group]


def message(op, peer, group):
    call = Call(op, group, None)
    call.peer = peer
    return call


def test_both_ends_count_the_objects_of_a_message_alike(work, monkeypatch):
    capture = work().sentinel.capture
    sender, receiver = (Objects(capture, lambda *_: False) for _ in range(2))
    group = Group(dist.group.WORLD, "0", 0)
    for number in range(3):
        monkeypatch.setattr(dist, "get_rank", lambda: 2)
        sender._message_of(message("send_object_list", 1, group))  # goes elsewhere
        given = sender._message_of(message("send_object_list", 0, group))
        monkeypatch.setattr(dist, "get_rank", lambda: 0)
        came = receiver._message_of(message("recv_object_list", 2, group))
        assert given == came
        assert (given.kind, given.ranks, given.number) == ("send", (2, 0), number)
    assert receiver._message_of(message("recv_object_list", None, group)) is None
    assert receiver._message_of(message("recv_object_list", 2, group)) is None  # who sent that is not known
    assert receiver._message_of(message("all_gather_object", None, group)).kind == "all_gather_object"


def test_what_is_sent_and_received_is_looked_into(work, monkeypatch):
    worker = work()
    told = []
    objects = Objects(worker.sentinel.capture, lambda *words: told.append(words) or True)
    group = Group(dist.group.WORLD, "0", 0)
    bad, frame = torch.tensor([1.0, NAN]), sys._getframe()
    objects.begins([message("send_object_list", 1, group)], ([(bad, "a")],), {}, frame)
    objects.ended("send_object_list", ([(bad, "a")],), {}, frame)
    assert [one[1] is bad for one in told] == [True]
    box = [None]
    objects.begins([message("recv_object_list", 1, group)], (box,), {}, frame)
    box[0] = {"adv": bad}
    objects.ended("recv_object_list", (box,), {}, frame)
    assert OBJECTS.of(0, (), nan=True).ranks == (1, 0)
