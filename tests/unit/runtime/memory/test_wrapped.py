"""An integer op that left its dtype is told of an op that broke by it, and of no other."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from nandiag.runtime.evidence.explain import lost_on_the_way
from nandiag.runtime.evidence.walk import origin as origin_of
from nandiag.runtime.memory.lost.shadows import Shadows
from nandiag.runtime.recorder import RECORDER
from nandiag.runtime.replay.trace.tracer import Tracer

BAD = 2


def squares(k):
    d = k.to(torch.int16)
    far = d[:, 0] * d[:, 0] + d[:, 1] * d[:, 1]  # here
    return far.float().sqrt()


def milliseconds(k):
    ms = k.int() * 10_000_000  # here
    return torch.log1p(ms.float()) / 10


def brightness(k):
    frames = (k.clamp_max(255)).to(torch.uint8)
    shifted = frames + 1  # here
    return (shifted.float() / 1).view(-1).log()


def in_place(k):
    n = k.to(torch.int8)
    n *= 2  # here
    return torch.stack([n, n]).reshape(-1).float().sqrt()


def below(k):
    n = k.clamp_max(255).to(torch.uint8) + 1  # here
    return 1.0 / n


def summed(k):
    total = k.sum(dtype=torch.int8)  # here
    return total.float() ** 0.5


def shifted(k):
    n = k.to(torch.int16)
    return (n << 7).float().pow(0.5)  # here


def by_64_bits(k):
    nanoseconds = k * 36_028_797_018_963_968  # here
    return nanoseconds.double().sqrt().float() / 1e9


def hashed(k):
    h = (k * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 1000
    return (h.float() - h.float().mean()).log()


def masked(k):
    h = (k.int() * 73_856_093) & 0x7FFF
    return (h.float() - 20_000).sqrt()


def drawn(k):
    state = k.int() * 1_664_525 + 1_013_904_223
    return state.float().sqrt()


def true_zero(k):
    images = (255 - k.clamp_max(255)).to(torch.uint8)
    return images.float().log()


def beside_it(k):
    n = k.to(torch.int8) * 2
    return (k - 255).float().log() + 0 * n.float()


def both(k):
    n = k.clamp_max(255).to(torch.uint8) + 1
    return (n.float() * (k != 3)).log()


def used_up(k):
    n = k.to(torch.int8)
    n *= 2
    n.zero_()
    return (n - 1).float().sqrt()


def by_far(k):
    return (k * 70_000_000 * 6_364_136_223_846_793_005).double().sqrt()


def by_a_bucket(k):
    return 1.0 / (k.int() * 10_000_000 % 7)


def by_a_signed_bucket(k):
    return 1.0 / torch.fmod(k.int() * 10_000_000, 7)


def of_top_bits(k):
    return (k.int() * 10_000_000 >> 16).float().sqrt()


def of_chosen_bits(k):
    return (k.int() * 10_000_000 & -1024).float().sqrt()


def of_sides(k):
    return torch.sign(k.int() * 10_000_000).float().sqrt()


def cut_again(k):
    d = k.to(torch.int16)
    return (d * d).to(torch.int8).float().sqrt()


def cut_again_from_64_bits(k):
    far = k * (2**55 + 2**23)
    return far.to(torch.int32).float().sqrt()


class Model(nn.Module):
    def __init__(self, take):
        super().__init__()
        self.take, self.layer = take, nn.Linear(1, 1)

    def forward(self, k):
        return self.layer(self.take(k).float().reshape(-1, 1))


def origin(work, take, top=300):
    worker = work()
    model = Model(take)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        k = torch.tensor([[1, 2], [3, 4], [5, 1]])
        k[1, 0] = top if step == BAD else 3
        loss = model(k).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return worker.looked[0]


LINES = {
    squares: ("mul", "int16", 200), milliseconds: ("mul", "int32", 300), brightness: ("add", "uint8", 255),
    below: ("add", "uint8", 255), shifted: ("__lshift__", "int16", 300), by_64_bits: ("mul", "int64", 300),
}  # fmt: skip


@pytest.mark.parametrize("take", LINES, ids=lambda one: one.__name__)
def test_what_left_its_dtype_is_told(work, take):
    op, dtype, top = LINES[take]
    told = origin(work, take, top).facts["lost"]
    assert (told["how"], told["dtype"]) == ("wrapped", dtype)
    assert told["site"]["op"].startswith(f"aten.{op}."), told
    assert told["site"]["source"].rstrip().endswith("# here")
    assert told["most"] > 100 or told["least"] < -100


@pytest.mark.parametrize(("take", "top"), [(in_place, 100), (summed, 120)])
def test_what_left_its_dtype_in_place_or_as_a_sum_is_told(work, take, top):
    told = origin(work, take, top).facts["lost"]
    assert (told["how"], told["dtype"]) == ("wrapped", "int8")
    assert told["site"]["source"].rstrip().endswith("# here")


@pytest.mark.parametrize("take", [hashed, masked, drawn, true_zero, beside_it, both, used_up, by_far])
def test_what_wraps_on_purpose_or_has_no_part_in_it_is_not_told(work, take):
    facts = origin(work, take, 255 if take is not hashed else 300).facts
    assert not facts.get("lost")


MEANT = [by_a_bucket, by_a_signed_bucket, of_top_bits, of_chosen_bits, of_sides]


@pytest.mark.parametrize("take", MEANT, ids=lambda one: one.__name__)
def test_what_is_made_of_a_part_of_what_wrapped_was_meant_to_wrap(work, take):
    looked = origin(work, take)
    assert (looked.outcome, looked.source, looked.facts.get("lost", {})) == ("found", "op", {}), looked


@pytest.mark.parametrize("take", [cut_again, cut_again_from_64_bits])
def test_what_is_cast_into_what_would_not_hold_it_either_is_not_told(work, take):
    looked = origin(work, take)
    assert (looked.outcome, looked.source, looked.facts.get("lost", {})) == ("found", "op", {}), looked


@pytest.mark.parametrize("sent", [False, True])
def test_what_wrapped_is_not_told_of_what_others_have_written_there_since(group, sent):
    tracer = Tracer({}, joint=True)
    with tracer:
        n = torch.tensor([3, 255], dtype=torch.uint8) + 1
        if sent:
            dist.broadcast(n, 0)
        logs = n.float().log()
    found = origin_of([tracer.writer(logs)])
    assert (found.source, found.op.func) == ("op", torch.ops.aten.log.default)
    assert bool(lost_on_the_way(found.op)["lost"]) is not sent


def test_what_is_looked_at_beside_an_op_in_place_is_not_written_twice():
    n = torch.tensor([100], dtype=torch.int8)
    sums = torch.ones(1)
    with Tracer({}, joint=False):
        n *= 2
        sums.add_(n.float())
        sums.add_(1.0)
    assert (n.item(), sums.item()) == (-56, -54.0)


def test_a_failure_beside_an_op_is_told_once_and_leaves_the_replay_alone(work, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(Shadows, "_ran", broken)
    looked = origin(work, squares, 200)
    assert (looked.outcome, looked.site.op, looked.facts.get("lost")) == ("found", "aten.sqrt.default", {})
    assert "digits" in RECORDER.darkened
