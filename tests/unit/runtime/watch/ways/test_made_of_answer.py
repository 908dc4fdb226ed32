"""A run ends on a bad answer where the way out was made of it: not where a loop ends by its own count or budget."""

import pytest

from nandiag.runtime.watch.told.ways import follow
from tests.unit.runtime.watch.ways.scripted import OFF, ON, WITHIN, Script


@pytest.fixture(autouse=True)
def worker(recording, monkeypatch):
    recording()
    monkeypatch.setattr(follow, "BOUNDARIES", {id(Script.way.__code__)})


OWN_END = {
    "a count of steps": """
step = 0
for epoch in range(9):
    for value in (1.0, BAD):
        if ask(value):
            value += 1
        step += 1
        if step >= 2:
            break
    if step >= 2:
        break
""",
    "the number of the turn": """
for turn, value in enumerate((1.0, BAD, 1.0)):
    if not ask(value):
        value = 0.0
    else:
        value += 1
    if turn + 1 == 2:
        break
""",
    "a return at the most steps": """
class Trainer:
    step = 0
    def fit(self):
        while True:
            for value in (1.0, 1.0, BAD):
                self.update(value)
                self.step += 1
                if self.step == 3:
                    return
    def update(self, value):
        if not ask(value):
            return
        value += 1
Trainer().fit()
""",
    "a flag that is set by the count": """
step, finished = 0, False
while not finished:
    for value in (1.0, 1.0, BAD):
        if ask(value):
            value += 1
        step += 1
        if step >= 3:
            finished = True
            break
""",
    "the state of what each turn moves": """
class Schedule:
    turn = 0
    def tick(self):
        self.turn += 1
    @property
    def running(self):
        return self.turn < 3
schedule = Schedule()
while schedule.running:
    value = BAD if schedule.turn == 2 else 1.0
    if ask(value):
        value += 1
    schedule.tick()
""",
    "a budget": """
class Budget:
    left = 3
    def spent(self):
        self.left -= 1
        return self.left <= 0
budget = Budget()
for epoch in range(9):
    for value in (1.0, 1.0, BAD):
        with contextlib.nullcontext():
            good = ask(value)
        if not good:
            value = 0.0
        else:
            value += 1
        if budget.spent():
            return
""",
    "a clock": """
import time
until = time.perf_counter() + 0.02
for value in (1.0, BAD, 1.0):
    if not ask(value):
        time.sleep(0.03)
    else:
        value += 1
    if time.perf_counter() > until:
        break
""",
    "a count of steps that the guard moves too": """
step = 0
while True:
    if not ask(BAD if step == 2 else 1.0):
        step += 1
    else:
        step += 1
    if step > 2:
        break
""",
    "bad ones that are put back": """
todo = [1.0, BAD]
tried = set()
while todo:
    value = todo.pop(0)
    if not ask(value):
        if len(tried) < 1:
            tried.add(1)
            todo.append(1.0)
        continue
    value += 1
""",
    "bad ones that are told behind the loop": """
bad = 0
for value in (1.0, BAD):
    if not ask(value):
        bad += 1
        continue
if bad:
    len("some were bad")
return bad
""",
    "an unconditional end": """
for value in (BAD, 1.0):
    if ask(value):
        value += 1
    break
""",
    "what good turns set anew": """
for epoch in range(2):
    bad = False
    for value in (1.0, BAD) if epoch == 0 else (1.0, 1.0):
        if not ask(value):
            bad = True
    epoch += 1
    if bad and epoch > 1:
        break
""",
}
DEATHS = {
    "an epoch of bad ones": """
for epoch in range(4):
    bad = 0
    for value in (1.0, 1.0) if epoch < 2 else (BAD, BAD):
        if not ask(value):
            bad += 1
            continue
    if bad > 1:
        break
""",
    "an error behind an epoch of bad ones": """
class Diverged(Exception):
    pass
def epoch_of(values):
    skipped = 0
    for value in values:
        if not ask(value):
            skipped += 1; continue
        value += 1
    if skipped == len(values):
        raise Diverged
try:
    for epoch in range(3):
        epoch_of((1.0, 1.0) if epoch < 2 else (BAD, BAD))
except Diverged:
    pass
""",
    "an exit behind all": """
diverged = False
for value in (1.0, BAD):
    if not ask(value):
        diverged = True
        continue
if diverged:
    raise SystemExit(1)
""",
    "a flag that ends where the batches come from": """
class Trainer:
    stop = False
    def batches(self):
        for value in (1.0, BAD, 1.0, 1.0):
            if self.stop:
                return
            yield value
    def fit(self):
        for value in self.batches():
            if not ask(value):
                self.stop = True
                continue
            value += 1
Trainer().fit()
""",
    "a count that is set to its end": """
turn, most = 0, 9
while turn < most:
    value = BAD if turn == 2 else 1.0
    turn += 1
    if not ask(value):
        turn = most
        continue
""",
    "a queue that is emptied": """
todo = [1.0, BAD, 1.0]
while todo:
    value = todo.pop(0)
    if not ask(value):
        todo.clear()
        continue
    value += 1
""",
    "a flag that is asked at the head of the next turn": """
stop = False
for value in (1.0, BAD, 1.0):
    if stop:
        break
    if not ask(value):
        stop = True
        continue
    value += 1
""",
    "a list of bad ones": """
bad = []
for value in (1.0, BAD, 1.0):
    if not ask(value):
        bad.append(value)
    if len(bad) > 0:
        break
""",
    "what stands behind a turn that would have gone on": """
for value in (1.0, BAD, 1.0):
    if ask(value):
        value += 1
        continue
    break
""",
    "a method that is given the answer in a condition": """
class Stopper:
    stop = False
    def update(self, good):
        if not good:
            self.stop = True
            return False
        return True
stopper, step = Stopper(), 0
while step < 9 and not stopper.stop:
    if stopper.update(ask(BAD if step == 2 else 1.0)):
        value = 1.0
    step += 1
""",
    "by a key": """
state = {"stop": False}
turn = 0
while not state["stop"]:
    turn += 1
    if not ask(BAD if turn == 2 else 1.0):
        state["stop"] = True
""",
}


@pytest.mark.parametrize("what", OWN_END)
def test_a_loop_that_ends_by_itself_is_not_left_for_the_answer(what):
    assert Script(OWN_END[what]).way() == ON


@pytest.mark.parametrize("what", DEATHS)
def test_what_was_made_of_the_answer_ends_the_run(what):
    assert Script(DEATHS[what]).way() == OFF


def test_a_part_that_is_left_for_the_answer_and_a_whole_that_ends_by_its_count():
    text = """
part = 0
while True:
    for value in (1.0, BAD, 1.0):
        if not ask(value):
            break
    part += 1
    if part == 2:
        break
"""
    assert Script(text).way() == WITHIN


def test_a_count_of_turns_beside_one_of_bad_answers_may_be_either():
    told = Script("""
class Meter:
    bad = 0
    def update(self, value):
        if ask(value):
            self.bad += 1
            return False
        return True
meter = Meter()
def epoch(last):
    for value in (1.0, BAD if last else 1.0):
        if not meter.update(value):
            continue
        value += 1
e = 0
while e < 3 and meter.bad < 10:
    epoch(e == 2)
    e += 1
""")
    assert told.way() != OFF


BOTH = """
i = bad = 0
while i < 5 and bad < MOST:
    value = BAD if i > 2 else 1.0
    i += 1
    if not ask(value):
        bad += 1
        continue
    value += 1
"""


EITHER = """
i = bad = 0
while True:
    value = BAD if i > 2 else 1.0
    i += 1
    if ask(value):
        value += 1
    else:
        bad += 1
    if bad >= MOST or i >= 4 + 1:
        break
"""


@pytest.mark.parametrize("text", [BOTH, EITHER])
def test_of_a_count_of_turns_and_one_of_bad_answers_the_one_that_was_reached_tells(text):
    assert Script(text.replace("MOST", "1")).way() == OFF
    assert Script(text.replace("MOST", "9")).way() == ON


@pytest.mark.parametrize("leaves", ["break", "return"])
def test_a_guard_that_reads_the_bad_number_once_more_before_it_leaves_has_left_for_it(leaves):
    text = """
isfinite = ask
for turn in range(5):
    value = BAD if turn == 2 else 1.0
    if not isfinite(value):
        print("bad", isfinite(value), turn)
        LEAVES
    value += 1
"""
    assert Script(text.replace("LEAVES", leaves)).way() == OFF


def test_an_exit_behind_a_second_reading_is_none_of_the_loops_own():
    told = Script("""
import sys
isfinite = ask
for turn in range(5):
    value = BAD if turn == 2 else 1.0
    bad = not isfinite(value)
    if bad:
        print("bad", isfinite(value), turn)
        sys.exit(1)
    value += 1
""")
    assert told.way() != ON


def test_a_last_turn_that_prints_a_bad_number_ends_by_its_count():
    told = Script("""
isfinite = ask
turn = 0
while True:
    value = BAD if turn == 4 else 1.0
    turn += 1
    if turn == 5:
        print(turn, isfinite(value))
        break
    value += 1
""")
    assert told.way() == ON


def test_a_count_within_the_guard_may_be_either():
    text = """
for turn, value in enumerate((1.0, 1.0, BAD, 1.0)):
    if not ask(value):
        if turn >= 2:
            break
        continue
"""
    assert Script(text).way() is None
