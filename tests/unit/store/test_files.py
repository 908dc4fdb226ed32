"""What is kept of a rank file: the first and the newest of each kind, within a budget that all files share."""

import io

import pytest

from nandiag.events import Attached, Finished, Harm, Note, Raised, Record, Skipped, TensorFact, encode
from nandiag.store import files
from nandiag.store.files import Budget, read_events

HELLO = Attached(0, 2, 0, 0, "node", 7, "site", "3.12", "0.1.0")


def file(*events):
    return io.BytesIO("".join(encode(Record(seq, 1.5, one)) + "\n" for seq, one in enumerate(events)).encode())


def kept(budget, *events):
    found = read_events(file(*events), budget)
    return [one.event for one in found.records], found


def harm(step, size=1):
    return Harm("loss", step, "loss", tuple(TensorFact("float32", (number,), 1) for number in range(size)), 1, 1)


def test_a_file_of_ordinary_length_is_kept_as_it_is():
    events = [HELLO, *(harm(step) for step in range(50)), Note("a"), Finished(3)]
    assert kept(Budget(1), *events)[0] == events


def test_of_a_kind_in_very_many_files_the_first_and_the_newest_are_kept_in_their_order():
    events = [HELLO, *(harm(step) for step in range(50)), Finished(3)]
    budget = Budget(100_000, left=1 << 30)
    found, told = kept(budget, *events)
    assert found == [HELLO, harm(0), harm(1), harm(48), harm(49), Finished(3)]
    assert told.left_out == 46


def test_the_handshake_the_first_harm_and_the_end_are_kept_when_the_room_is_used_up():
    budget = Budget(1, left=10)
    events = [HELLO, *(Note(f"{number}") for number in range(9)), harm(1), Raised("E", "m", "t" * 9000, 3), Finished(3)]
    found, _ = kept(budget, *events)
    assert [one for one in found if not isinstance(one, Note)] == [HELLO, harm(1), events[-2], Finished(3)]
    assert len(found) == 6


def test_a_budget_that_is_overdrawn_keeps_nothing_more(monkeypatch):
    monkeypatch.setattr(files, "MAX_KEPT", 100)
    budget = Budget(2, left=-101)
    assert kept(budget, HELLO, harm(1))[0] == []


def test_the_same_words_of_two_ranks_are_one_object():
    budget = Budget(2)
    first, second = (kept(budget, HELLO, Skipped(3, 2.0, 1, 1))[0][1] for _ in range(2))
    assert first is second
    assert first == Skipped(3, 2.0, 1, 1)


def test_of_what_adds_up_in_very_many_files_one_at_each_end_is_kept_and_the_rest_counted():
    skips = [Skipped(step, 2.0, 1, step) for step in range(9)]
    events = [HELLO, *skips[:5], Note("a"), Note("b"), *skips[5:], harm(1), Note("c"), Finished(3)]
    found, told = kept(Budget(20_000), *events)
    assert found == [HELLO, skips[0], Note("a"), skips[8], harm(1), Note("c"), Finished(3)]
    assert told.left_out == 8
    assert [one.seq for one in told.records] == [0, 1, 6, 11, 12, 13, 14]


def test_a_damaged_line_among_what_adds_up_is_told_where_it_is_the_newest():
    content = file(HELLO, *(Skipped(step, 2.0, 1, step) for step in range(9))).getvalue()
    found = read_events(io.BytesIO(content + b'{"kind":"skipped", damaged}\n'), Budget(20_000))
    assert found.notes == ("Left out, being no events: 1 line.",)
    assert found.left_out == 8


def test_long_texts_of_very_many_ranks_are_cut():
    events = HELLO, harm(1, size=9), Raised("E", "m", "t" * 9000, 3)
    found, _ = kept(Budget(20_000), *events)
    assert len(found[1].tensors) == 2
    assert len(found[2].traceback) == 2000


def test_only_the_beginning_of_an_endless_file_is_read(monkeypatch):
    monkeypatch.setattr(files, "MAX_FILE", 2000)
    found, told = kept(Budget(1), HELLO, *(Note("x" * 100) for _ in range(100)))
    assert 5 < len(found) < 20
    assert told.notes == ("Only the first 0 MiB of the file were read.",)


@pytest.mark.parametrize(
    "line",
    [b'{"seq":0,"kind":"note","time":1.0,"text":"a"}\n', b'{ "kind": "note", "text": "a", "seq": 0, "time": 1}\n'],
)
def test_lines_in_another_form_are_read_too(line):
    found = read_events(io.BytesIO(line), Budget(1))
    assert [one.event for one in found.records] == [Note("a")]


def test_what_is_no_event_behind_a_head_like_ours_is_counted():
    found = read_events(io.BytesIO(b'{"kind":"note","seq":0,"time":1.0,"text":3}\n'), Budget(1))
    assert found.records == ()
    assert found.left_out == 0
    assert found.notes == ("Left out, being no events: 1 line.",)
