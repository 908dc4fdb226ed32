"""The ring of collectives: counted per group and peer, bounded, and without a hold on any tensor."""

import _thread
import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from nandiag.events.standing import DONE, ISSUED, RAISED
from nandiag.runtime.collectives import wraps
from nandiag.runtime.collectives.lookout import LOOKOUT
from nandiag.runtime.collectives.ring import Call, Ring, user_frame
from nandiag.runtime.recorder import RECORDER


class Handle:
    group_desc = "default_pg"

    def __init__(self, name="0"):
        self.group_name = name

    def _get_sequence_number_for_group(self):
        return 7


@pytest.fixture
def ring(monkeypatch):
    one = Ring(most=4)
    monkeypatch.setattr(wraps, "RING", one)
    monkeypatch.setattr(RECORDER, "mute", False)
    monkeypatch.setattr(LOOKOUT, "started", True)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 2])
    return one


def all_reduce(tensor, op=None, group=None, async_op=False):
    if tensor.numel() == 0:
        raise RuntimeError("nothing to reduce")
    return "work"


def send(tensor, dst=None, group=None, tag=0, group_dst=None):
    return None


def irecv(tensor, src=None, group=None, tag=0, group_src=None):
    return "work"


def batch_isend_irecv(p2p_op_list):
    return ["work"] * len(p2p_op_list)


def wrapped(function, tensors="tensor"):
    return wraps._wrapped(function, wraps._shape(function.__name__, function, tensors))


def test_a_call_is_kept_with_its_number_place_and_shape(ring):
    handle = Handle()
    for _ in range(2):
        assert wrapped(all_reduce)(torch.ones(2, 3), group=handle) == "work"
    line = sys._getframe().f_lineno - 1
    call = ring.newest()
    assert (call.op, call.seq, call.native, call.state) == ("all_reduce", 1, 7, DONE)
    assert (tuple(call.shapes[0]), call.dtype, call.group.members) == ((2, 3), torch.float32, (0, 2))
    assert (call.frame.file, call.frame.line) == (__file__, line)


def test_a_work_is_issued_and_a_failure_keeps_its_words(ring):
    wrapped(all_reduce)(torch.ones(1), None, Handle(), True)
    assert ring.newest().state == ISSUED
    with pytest.raises(RuntimeError, match="nothing"):
        wrapped(all_reduce)(torch.ones(0), group=Handle())
    assert ring.newest().state == RAISED
    assert ring.newest().error == "RuntimeError: nothing to reduce"


def test_who_listens_hears_of_a_call_that_returned_with_its_words_and_caller(ring):
    heard = []
    ring.ended.append(lambda name, args, kwargs, caller: heard.append((name, args, kwargs, caller.f_code.co_name)))
    tensor, handle = torch.ones(1), Handle()
    wrapped(all_reduce)(tensor, group=handle)
    with pytest.raises(RuntimeError):
        wrapped(all_reduce)(torch.ones(0), group=handle)
    functional = wraps._shape("all_reduce", all_reduce, "tensor", lambda group: group)
    wraps._wrapped(all_reduce, functional)(tensor, group=handle)
    assert heard == [("all_reduce", (tensor,), {"group": handle}, sys._getframe().f_code.co_name)]


def test_the_functional_ones_are_told_from_those_that_write(ring):
    """A stage of a pipeline receives into tensors that want a gradient; to send it on is the stage's own work."""
    tensor, handle = torch.ones(1, requires_grad=True), Handle()
    wrapped(all_reduce)(tensor, group=handle)
    assert not ring.newest().functional
    wrapped(batch_isend_irecv, "")([SimpleNamespace(op=irecv, tensor=tensor, peer=2, group=handle)])
    assert (ring.newest().op, ring.newest().functional) == ("irecv", False)
    functional = wraps._shape("all_reduce", all_reduce, "tensor", lambda group: group)
    wraps._wrapped(all_reduce, functional)(tensor.detach(), group=handle)
    assert ring.newest().functional


def test_messages_are_counted_for_each_peer_and_are_no_collectives(ring):
    one = wrapped(send)
    one(torch.ones(1), 2, Handle())
    one(torch.ones(1), dst=0, group=Handle())
    one(torch.ones(1), group_dst=1, group=Handle())
    assert [(call.peer, call.seq) for call in ring.calls] == [(2, 0), (0, 0), (2, 1)]
    assert ring.groups["0"].count == 0


def test_of_nested_calls_the_outermost_counts(ring):
    inner = wrapped(all_reduce)

    def all_gather_object(object_list, obj, group=None):
        inner(torch.ones(1), group=group)

    wrapped(all_gather_object, "")([], 1, Handle())
    assert [call.op for call in ring.calls] == ["all_gather_object"]
    assert ring.groups["0"].count == 1


def test_what_a_replay_calls_is_none_of_the_scripts_calls(ring):
    call, handle = wrapped(all_reduce), Handle()
    call(torch.ones(1), group=handle)
    with wraps.uncounted(), pytest.raises(RuntimeError, match="nothing"):
        call(torch.ones(0), group=handle)
    call(torch.ones(2), group=handle)
    assert [one.state for one in ring.calls] == [DONE, DONE]
    assert ring.newest().seq == 1


def test_the_ring_is_bounded_and_holds_no_tensor(ring):
    tensor = torch.ones(3)
    gone = weakref.ref(tensor)
    one = wrapped(all_reduce)
    for _ in range(9):
        one(tensor, group=Handle())
    del tensor
    gc.collect()
    assert gone() is None
    assert [call.seq for call in ring.calls] == [5, 6, 7, 8]


def test_names_of_groups_begin_anew_when_the_default_group_goes(ring):
    ring.begin(Call("barrier", ring.group(Handle()), None))
    ring.forget()
    call = ring.begin(Call("barrier", ring.group(Handle()), None))
    assert (call.seq, call.group.life) == (0, 1)


def test_a_failure_of_ours_leaves_the_call_alone(ring, monkeypatch):
    said = []
    monkeypatch.setattr(RECORDER, "dark", lambda probe, error: said.append(probe))
    monkeypatch.setattr(wraps, "user_frame", lambda frame: 1 / 0)
    assert wrapped(all_reduce)(torch.ones(1), group=Handle()) == "work"
    assert said == ["collectives"]


def test_a_mute_process_adds_nothing(ring, monkeypatch):
    monkeypatch.setattr(RECORDER, "mute", True)
    wrapped(all_reduce)(torch.ones(1), group=Handle())
    assert not ring.calls


def test_no_function_mode_sees_what_is_asked_of_tensors(ring):
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    tensor = torch.ones(2)
    one = wraps._wrapped(lambda tensor, group=None: None, wraps._shape("all_reduce", all_reduce, "tensor"))
    with Mode():
        one(tensor, group=Handle())
    assert seen == []
    assert tuple(ring.newest().shapes[0]) == (2,)


def test_a_call_from_a_thread_that_a_library_began_is_not_placed_where_the_main_thread_stands():
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(user_frame, None).result(20) is None


def test_a_call_from_a_thread_of_the_engines_is_placed_where_the_main_thread_stands():
    found = []
    done = threading.Event()

    def calls():
        found.append(user_frame(None))
        done.set()

    _thread.start_new_thread(calls, ())
    done.wait(20)
    assert found[0].code is sys._getframe().f_code
