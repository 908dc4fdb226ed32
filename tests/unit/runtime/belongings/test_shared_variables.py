"""A variable that another thread counts in is left to it by a replay."""

import threading
import time

from nandiag.runtime.belongings.bystanders import Bystanders
from nandiag.runtime.belongings.keeping import keeper
from nandiag.runtime.belongings.theirs import Theirs


def test_a_variable_of_a_function_around_a_thread_s_is_left_to_it():
    count, kept, done = 0, 1, threading.Event()

    def counts():
        nonlocal count
        while not done.is_set():
            count += 1
            time.sleep(0.001)

    def both():
        return count, kept

    thread = threading.Thread(target=counts)
    thread.start()
    try:
        theirs = Theirs(Bystanders().threads)
        assert "count" in theirs.cells
        assert "kept" not in theirs.cells
        back = keeper(both, theirs.cells)
        kept = 2
    finally:
        done.set()
        thread.join()
    now = count
    back()
    assert (count, kept) == (now, 1)
