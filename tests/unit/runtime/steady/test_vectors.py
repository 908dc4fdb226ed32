"""What is looked at again and again is read by few calls, and asked anew when it lies elsewhere."""

import math

import pytest
import torch

from nandiag.runtime.look.finite import norms, read
from nandiag.runtime.steady.vectors import Vectors


def tensors():
    return [torch.full((70_000,), 2.0), torch.ones(3, 5), torch.ones(4)]


def looked(vectors, many):
    return math.hypot(*read(vectors.norms(many)))


def test_the_norm_is_that_of_the_same_tensors_each_time():
    vectors, many = Vectors(), tensors()
    for number in range(4):
        many[1].fill_(float(number))
        assert math.isclose(looked(vectors, many), math.hypot(*read(norms(many))), rel_tol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(3))
def test_what_turns_bad_between_two_looks_is_seen(bad, place):
    vectors, many = Vectors(), tensors()
    assert math.isfinite(looked(vectors, many))
    many[place].view(-1)[-1] = bad
    assert not math.isfinite(looked(vectors, many))


def other_memory(many):
    many[1].data = torch.full((3, 5), math.nan)


def another_tensor(many):
    many[1] = torch.full((3, 5), math.nan)


def one_more(many):
    many.append(torch.full((3,), math.nan))


@pytest.mark.parametrize("change", [other_memory, another_tensor, one_more])
def test_what_lies_elsewhere_since_is_what_is_read(change):
    vectors, many = Vectors(), tensors()
    looked(vectors, many)
    looked(vectors, many)
    change(many)
    assert not math.isfinite(looked(vectors, many))


def test_what_grows_where_it_lies_is_read_in_its_new_length():
    """A bank of rows takes more and more of the room that was reserved for it."""
    room = torch.ones(100, 3)
    vectors, many = Vectors(), [torch.ones(4), room[:10]]
    looked(vectors, many)
    room[10:12] = math.nan
    many[1] = room[:12]
    assert not math.isfinite(looked(vectors, many))
    many[1] = room[:10]
    assert math.isclose(looked(vectors, many), math.sqrt(34), rel_tol=1e-6)


def shrunk(one):
    one[4:] = math.nan
    one.resize_(4)


def cut(one):
    whole = one.detach()
    one.data = whole[:4]
    whole[4:] = math.inf


def spread(one):
    one.data = one.data[::2]


def repeated(one):
    one.data = one.data[:1].expand(8)


def apart(one):
    """As many elements as before, of memory that has grown."""
    one.untyped_storage().resize_(64)
    one.set_(one.untyped_storage(), 0, (8,), (2,))
    one.fill_(3.0)


@pytest.mark.parametrize("change", [shrunk, cut, spread, repeated, apart])
def test_what_holds_less_or_other_elements_where_it_lies_is_read_as_it_is(change):
    vectors, one = Vectors(), torch.arange(8.0)
    many = [torch.ones(4), one]
    looked(vectors, many)
    looked(vectors, many)
    change(one)
    assert math.isclose(looked(vectors, many), math.sqrt(4 + float(one.norm()) ** 2), rel_tol=1e-6)


def test_being_emptied_while_it_looks_is_no_error(monkeypatch):
    """What held a tensor may be collected at any time."""
    vectors, many = Vectors(), tensors()
    looked(vectors, many)
    lie_as_before = Vectors._lie_as_before

    def emptied(self, given):
        found = lie_as_before(self, given)
        self.clear()
        return found

    monkeypatch.setattr(Vectors, "_lie_as_before", emptied)
    assert math.isclose(looked(vectors, many), math.hypot(*read(norms(many))), rel_tol=1e-6)


def test_what_has_no_address_may_come_later():
    """Which buffers were written to differs from step to step."""
    vectors, many = Vectors(), tensors()
    looked(vectors, many)
    many[2] = torch.eye(3).to_sparse()
    assert math.isclose(looked(vectors, many), math.hypot(*read(norms(many))), rel_tol=1e-6)


@pytest.mark.parametrize("left", [0, 4])
def test_memory_that_was_let_go_of_is_not_read(left):
    vectors, many = Vectors(), tensors()
    looked(vectors, many)
    many[0].untyped_storage().resize_(left)
    assert math.isclose(looked(vectors, many), math.sqrt(19), rel_tol=1e-6)


@pytest.mark.parametrize(
    "odd",
    [
        torch.eye(3).to_sparse(),
        torch.ones(4, dtype=torch.float16),
        torch.ones(4, dtype=torch.complex64),
        torch.ones(4, dtype=torch.int64),
        torch.ones(4, 4).t()[1:],
        torch.ones(()).expand(5),
        torch.ones(0),
        torch.ones(3, device="meta"),
    ],
)
def test_what_is_no_vector_is_looked_at_as_ever(odd):
    vectors, many = Vectors(), [*tensors(), odd]
    for _ in range(3):
        assert math.isclose(looked(vectors, many), math.hypot(*read(norms(many))))


def test_no_more_memory_is_held_than_a_little():
    vectors = Vectors()
    vectors.norms([torch.ones(1 << 22), torch.ones(1)])
    assert not vectors._flat
