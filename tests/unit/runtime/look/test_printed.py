"""A log that goes on with finite losses while they are bad is heard; one that shows them is not."""

import io
import sys

import pytest

from nandiag.events import Harm
from nandiag.runtime.look.printed import Listener
from nandiag.runtime.recorder import RECORDER

BAD = Harm("loss", 16, "loss", (), 1, 1)


@pytest.fixture
def swapped(monkeypatch):
    """Give the test a stdout of its own, when it asks: pytest puts its own in place before each phase."""

    def swap():
        monkeypatch.setattr(RECORDER, "mute", False)
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        return sys.stdout

    return swap


def heard(*lines, harms=(BAD,)):
    listener = Listener()
    listener.harm(list(harms))
    for line in lines:
        print(*line if isinstance(line, tuple) else (line,))  # noqa: T201 - what a script does
    return listener.last_words()


@pytest.mark.parametrize(
    "line",
    [
        "{'loss': 4.0258, 'step': 60}",
        ("step", 3, "loss", 0.5),
        "epoch 3 | train_loss=1.5e-3 | lr 0.1",
        "Loss: tensor(0.25, grad_fn=<MeanBackward0>)",
        "Loss 15 : 1.1390",
        "Loss/epoch 3: 0.5",
        "loss [12] 0.5",
        "Train loss @ 30 = 0.5",
        "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-3}",
    ],
)
def test_finite_losses_behind_a_bad_one_are_heard(swapped, line):
    swapped()
    said = heard(line, line)
    assert (said.step, said.losses, said.lines) == (16, 1, 2)
    assert "oss" in said.line


@pytest.mark.parametrize(
    "line",
    [
        "loss nan",
        "{'loss': nan}",
        ("loss", float("inf")),
        "Loss=-inf",
        "loss: tensor(nan)",
        "train_loss: NaN",
        "Loss 15 : nan",
        "Loss/epoch 3: nan",
        "loss [12] nan",
        "Train loss @ 30 = nan",
        "Loss 15 is nan",
        "loss 0.5, val: inf",
    ],
)
def test_a_log_that_shows_it_hides_nothing(swapped, line):
    out = swapped()
    assert heard("loss 0.5", line, "loss 0.5") is None
    assert "write" not in vars(out)


@pytest.mark.parametrize("line", ["step 3", "accuracy 0.9 nan", "loss of rank 3", "lossless 3 of 4"])
def test_lines_without_a_loss_say_nothing(swapped, line):
    swapped()
    assert heard(line) is None


def test_what_is_written_is_written_unchanged_and_the_stream_is_given_back(swapped):
    out = swapped()
    heard("loss 0.5", "größe")
    out.flush()
    assert out.buffer.getvalue().decode() == "loss 0.5\ngröße\n"
    assert "write" not in vars(out)


def test_nothing_is_touched_before_there_is_harm(swapped):
    out = swapped()
    listener = Listener()
    listener.harm([])
    listener.harm([Harm("buffer", 1, "forward", (), 1, 1)])
    assert "write" not in vars(out)
    assert listener.last_words() is None


def test_bad_losses_are_counted(swapped):
    swapped()
    listener = Listener()
    for step in (3, 4):
        listener.harm([Harm("loss", step, "loss", (), 1, 1)])
    print("loss 1.0")  # noqa: T201
    said = listener.last_words()
    assert (said.step, said.losses) == (3, 2)


def test_a_progress_bar_is_read_line_by_line(swapped):
    out = swapped()
    listener = Listener()
    listener.harm([BAD])
    out.write("10%| loss=0.5\r20%| lo")
    out.write("ss=0.4\r")
    assert listener.last_words().lines == 2


def test_what_others_put_in_place_of_write_stays(swapped):
    out, heard_by = swapped(), []

    def theirs(text):
        heard_by.append(text)
        return len(text)

    out.write = theirs
    listener = Listener()
    listener.harm([BAD])
    ours = out.write
    listener.last_words()
    assert out.write is theirs
    again = Listener()
    again.harm([BAD])

    def wrapped(text, inner=out.write):
        return inner(text)

    out.write = wrapped
    again.last_words()
    assert out.write is wrapped
    assert ours is not theirs
    out.write("loss 1.0\n")
    assert heard_by == ["loss 1.0\n"]
