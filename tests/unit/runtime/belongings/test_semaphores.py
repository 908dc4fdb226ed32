"""What a step waits for and takes, it takes once."""

import contextlib
import queue
import threading

import pytest

from tests.faults.acting import BAD, looked, train
from tests.unit.runtime.belongings.written import SECONDS


@pytest.mark.parametrize("ends", [False, True])
def test_a_step_that_waits_for_what_was_there_once_is_not_waited_for(ends, work):
    worker, asked = work(on_anomaly="stop" if ends else "continue"), queue.Queue()
    for one in range(BAD + 1 if ends else 4):
        asked.put(one)
    with contextlib.suppress(SystemExit):
        train(lambda: asked.get(timeout=SECONDS))
    assert looked(worker)[0] == "refused"
    assert asked.qsize() == 0


def test_a_semaphore_has_as_much_room_as_it_had(work):
    worker, room = work(), threading.Semaphore(5)
    steps = train(room.acquire)
    assert looked(worker)[0] == "found"
    assert room._value == 5 - steps  # its own methods are held, not found in the class


def test_a_semaphore_that_is_full_is_not_waited_for(work):
    worker, room = work(on_anomaly="stop"), threading.Semaphore(BAD + 1)
    with pytest.raises(SystemExit):
        train(room.acquire)
    assert looked(worker)[0] == "refused"


def test_a_semaphore_that_other_threads_use_is_refused_where_the_run_goes_on(work):
    worker, room, over = work(), threading.Semaphore(4), threading.Event()
    other = threading.Thread(target=over.wait, args=(SECONDS,))
    other.start()
    train(room.acquire)
    over.set()
    other.join(SECONDS)
    assert looked(worker)[0] == "refused"
    assert not room.acquire(blocking=False)
