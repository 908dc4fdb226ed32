"""Memory that was looked at once is not looked at again, and who writes into it is blamed all the same."""

import math

import pytest
import torch

from nandiag.runtime.evidence.op import Stat, stat_of
from nandiag.runtime.evidence.walk import origin
from nandiag.runtime.memory.known.sound import Sound
from nandiag.runtime.memory.there import key_of
from nandiag.runtime.replay.trace import tracer as trace
from nandiag.runtime.replay.trace.tracer import Tracer


@pytest.fixture
def looks(monkeypatch):
    """Count the tensors that a replay looks at."""
    seen = []

    def counted(tensor):
        seen.append(tensor.numel())
        return stat_of(tensor)

    monkeypatch.setattr(trace, "stat_of", counted)
    return seen


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1.0, -2.0], None),
        ([60000.0, 60000.0], None),  # in half precision their sum is not finite
        ([0.0, math.inf], Stat(nan=False, posinf=True, neginf=False)),
        ([0.0, -math.inf], Stat(nan=False, posinf=False, neginf=True)),
        ([math.inf, -math.inf], Stat(nan=False, posinf=True, neginf=True)),
        ([math.nan, 1.0], Stat(nan=True, posinf=False, neginf=False)),
        ([math.nan, math.nan], Stat(nan=True, posinf=False, neginf=False)),
        ([math.nan, math.inf], Stat(nan=True, posinf=True, neginf=False)),
        ([math.nan, -math.inf], Stat(nan=True, posinf=False, neginf=True)),
        ([math.nan, math.inf, -math.inf], Stat(nan=True, posinf=True, neginf=True)),
    ],
)
def test_what_a_tensor_holds_is_told_apart(values, found, dtype):
    assert stat_of(torch.tensor(values, dtype=dtype)) == found


def test_a_norm_that_overflows_is_of_finite_numbers():
    assert stat_of(torch.full((8,), 3e38)) is None


def test_what_has_no_floats_is_finite():
    assert stat_of(torch.arange(4)) is None
    assert stat_of(torch.empty(0)) is None


def test_of_a_storage_that_was_seen_whole_each_part_is_known():
    sound, whole = Sound(), torch.ones(4, 4)
    sound.saw(key_of(whole), whole)
    for part in (whole, whole[1], whole.t(), whole.view(-1)[::2]):
        assert sound.holds(key_of(part), part)
    assert not sound.holds(key_of(whole), whole.view(torch.int32).view(torch.bfloat16))


def test_of_a_part_that_part_alone_is_known():
    sound, whole = Sound(), torch.ones(4, 4)
    sound.saw(key_of(whole), whole[1])
    assert sound.holds(key_of(whole), whole[1])
    assert not sound.holds(key_of(whole), whole[2])
    assert not sound.holds(key_of(whole), whole)


def test_what_somebody_wrote_is_not_known_any_more():
    sound, whole = Sound(), torch.ones(4, 4)
    sound.saw(key_of(whole), whole)
    sound.saw(key_of(whole), whole[1])
    sound.doubt([key_of(whole)])
    assert not sound.holds(key_of(whole), whole)
    assert not sound.holds(key_of(whole), whole[1])


def test_memory_that_is_let_go_of_is_no_other_one():
    sound = Sound()
    for _ in range(64):
        one = torch.ones(4)
        sound.saw(key_of(one), one)
        del one
        other = torch.full((4,), math.nan)
        assert not sound.holds(key_of(other), other)


def test_what_went_out_of_one_op_is_not_looked_at_as_it_goes_into_the_next(looks):
    weight, x = torch.ones(3, 5), torch.ones(2, 3)
    with Tracer({}, joint=False):
        made = x @ weight
        (made.t() + 1).relu()
        x @ weight
    assert looks == [6, 15, 10, 10, 10, 10]  # x, the weight, and what each op made; neither views, nor anything again


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (lambda kept: kept[1].log_(), "aten::log_"),
        (lambda kept: torch.log(kept - 1, out=kept), "aten::log"),
        (lambda kept: torch._foreach_log_([kept]), "aten::_foreach_log_"),
    ],
)
def test_an_op_that_writes_into_known_memory_is_the_origin(write, name):
    kept = torch.zeros(4)
    with Tracer({}, joint=False) as tracer:
        kept + 1
        write(kept)
        made = kept * 2
    assert origin([tracer.writer(made)]).op.func._schema.name == name


def test_what_others_than_torch_wrote_there_came_from_outside():
    """As numpy does, whose array lies in the same memory."""
    with Tracer({}, joint=False) as tracer:
        kept = torch.ones(4) + 1
        kept * 2
        kept.numpy()[2] = math.nan
        made = kept.sin()
    found = origin([tracer.writer(made)])
    assert found.source == "outside"
    assert found.op.outside[0].tensor.data_ptr() == kept.data_ptr()


def test_running_statistics_that_an_op_writes_unsaid_are_looked_at():
    mean, var = torch.zeros(2), torch.ones(2)
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    with Tracer({}, joint=False) as tracer:
        torch.nn.functional.batch_norm(x, mean, var, training=True)
        torch.nn.functional.batch_norm(x * math.inf, mean, var, training=True)
        made = mean + 1
    assert tracer.bad(made)
    assert "mul" in str(origin([tracer.writer(made)]).op.func)


def test_what_was_written_unseen_is_looked_at_again():
    kept = torch.ones(4)
    with Tracer({}, joint=False) as tracer:
        kept + 1
        with tracer.still():
            kept.fill_(math.nan)
        kept.isnan()
        assert tracer._stat(kept) is not None


@pytest.mark.parametrize("use", [
    lambda to, kept: to.add_(kept),
    lambda to, kept: torch.add(to, kept, out=to),
    lambda to, kept: to.copy_(kept),
    lambda to, kept: torch._foreach_add_([to], [kept]),
    lambda to, kept: kept.add_(to),
])  # fmt: skip
def test_what_others_wrote_and_an_op_in_place_takes_came_from_outside(use):
    with Tracer({}, joint=False) as tracer:
        kept, to = torch.ones(4) + 1, torch.ones(4) * 3
        kept * to
        kept.numpy()[2] = math.nan
        use(to, kept)
        made = to + kept
    found = origin([tracer.writer(made)])
    assert found.source == "outside"
    assert found.op.outside[0].tensor.untyped_storage().data_ptr() == kept.data_ptr()


def test_what_others_wrote_beside_what_is_bad_already_is_known_to_be_bad():
    with Tracer({}, joint=False) as tracer:
        kept, bad = torch.ones(4) + 1, torch.ones(4).sub(1).log()
        kept * 2
        kept.numpy()[2] = math.nan
        made = kept + bad
    assert tracer.writer(made).outside


def test_an_op_that_writes_unsaid_leaves_nothing_known():
    """Its schema says that it only reads: what it wrote is looked at where it is taken next."""

    @torch.library.custom_op("nandiag_sound::reads", mutates_args=())
    def reads(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        buffer.numpy()[:] = math.nan
        return x.clone()

    with Tracer({}, joint=False) as tracer:
        buffer = torch.ones(4) + 1
        reads(torch.ones(4), buffer)
        made = torch.zeros(4).add_(buffer)
    found = origin([tracer.writer(made)])
    assert found.source == "outside"


def test_where_ranks_exchange_nothing_is_known_for_long():
    """Others write into what is exchanged, with no op of this rank's: what was finite is looked at again."""
    for joint in (False, True):
        kept = torch.ones(4)
        with Tracer({}, joint=joint) as tracer:
            kept * 2
            kept.numpy()[2] = math.nan
            assert (tracer._stat(kept) is not None) is joint


def test_what_others_wrote_before_a_backward_took_it_came_from_outside():
    leaf = torch.ones(4, requires_grad=True)
    with Tracer({}, joint=False) as tracer:
        kept = torch.ones(4) + 1
        loss = (leaf * kept).sum()
        kept * 2
        kept.numpy()[2] = math.nan
        loss.backward()
    found = origin([tracer.writer(leaf.grad)])
    assert found.op.spot.node is not None
    assert found.source == "outside"
    assert found.op.outside[0].tensor.data_ptr() == kept.data_ptr()
