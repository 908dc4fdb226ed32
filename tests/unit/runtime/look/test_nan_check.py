"""What is kept of torch's own NaN check when it ends a rank."""

import pytest

from nandiag.runtime.look import nan_check
from nandiag.runtime.look.nan_check import hear, record, site_of

SAID = "Function 'SqrtBackward0' returned nan values in its 1th output."
FORWARD = """Error detected in SqrtBackward0. Traceback of forward call that caused the error:
  File "/home/me/train.py", line 34, in <module>
    main()
  File "/home/me/model.py", line 15, in forward
    return scaled.sqrt()
  File "{torch}/functional.py", line 78, in wrapped
    return func(*args)
"""


@pytest.fixture
def emitted(monkeypatch):
    events = []
    monkeypatch.setattr(nan_check.RECORDER, "emit", lambda event, urgent=False: events.append(event))
    monkeypatch.setattr(nan_check, "_forward", {})
    return events


def forward():
    import torch

    return FORWARD.format(torch=torch.__path__[0])


def test_the_innermost_line_of_the_script_is_the_place():
    site = site_of("SqrtBackward0", forward())
    assert (site.file, site.line, site.function) == ("/home/me/model.py", 15, "forward")
    assert (site.source, site.node) == ("return scaled.sqrt()", "SqrtBackward0")


def test_without_words_on_the_forward_the_node_alone_is_known():
    site = site_of("SqrtBackward0", "")
    assert (site.node, site.file, site.line) == ("SqrtBackward0", None, None)


def test_an_exception_of_the_check_is_recorded_with_its_forward_line(emitted):
    hear("some other warning")
    hear(forward())
    record(RuntimeError(SAID), 3)
    (look,) = emitted
    assert (look.outcome, look.method, look.step, look.phase) == ("found", "check", 3, "backward")
    assert look.site.line == 15
    # What went into the node is not known: it is no op that made a NaN of finite inputs.
    assert look.source is None
    assert look.facts == {"output": 1}


def test_an_exception_that_came_from_the_check_counts(emitted):
    error = ValueError("stage 1 failed")
    error.__cause__ = RuntimeError(SAID)
    record(error, 0)
    assert len(emitted) == 1


def test_the_forward_line_of_another_node_is_not_taken(emitted):
    hear(forward().replace("Sqrt", "Log"))
    record(RuntimeError(SAID), 0)
    assert emitted[0].site.line is None


def test_other_exceptions_are_no_look(emitted):
    record(RuntimeError("CUDA out of memory"), 0)
    record(KeyError("nan"), 0)
    assert emitted == []
