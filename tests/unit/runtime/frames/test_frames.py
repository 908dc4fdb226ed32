"""Whose code a file is, which frames a walk keeps, and the exact expression of an instruction."""

import json
import sys
from pathlib import Path

import pytest
import torch

import nandiag
from nandiag.runtime import frames
from nandiag.runtime.frames import (
    BOUNDARIES,
    INTERNAL,
    LIBRARY,
    TORCH,
    USER,
    Frame,
    best,
    columns,
    kind_of,
    source,
    stack,
)

needs_columns = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python tells no columns before 3.11")


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        (torch.nn.functional.__file__, TORCH),
        (json.__file__, INTERNAL),
        (frames.__file__, INTERNAL),
        (pytest.__file__, LIBRARY),
        (__file__, USER),
        ("/home/me/train.py", USER),
        ("<frozen runpy>", INTERNAL),
        ("<ipython-input-3>", USER),
        (str(Path(nandiag.__file__).parent.parent / "train.py"), USER),
    ],
)
def test_whose_code_a_file_is(file, kind):
    assert kind_of(file) == kind


def here():
    return stack(sys._getframe(0))


def test_the_innermost_frame_comes_first_and_the_standard_library_is_left_out():
    found, in_engine = json.loads("[1]", object_hook=None, parse_int=lambda _: here())[0]
    assert [frame.code.co_name for frame in found[:3]] == [
        "here", "<lambda>", "test_the_innermost_frame_comes_first_and_the_standard_library_is_left_out",
    ]  # fmt: skip
    assert not in_engine


def test_a_walk_is_bounded():
    def deep(left):
        return stack(sys._getframe(0), 5)[0] if not left else deep(left - 1)

    assert len(deep(30)) == 5


def test_behind_many_frames_of_a_library_comes_the_users_line_that_called_it():
    """A library of its own layers of calls, as Pyro's, has more of them than a walk keeps."""
    text = "def deep(left):\n    return stack(sys._getframe(0), 5)[0] if not left else deep(left - 1)"
    space = {"stack": stack, "sys": sys}
    exec(compile(text, "/venv/site-packages/lib/inner.py", "exec"), space)  # noqa: S102
    found = space["deep"](20)
    assert [frame.kind for frame in found] == [*[LIBRARY] * 5, USER], found
    assert best(found).code.co_name == "test_behind_many_frames_of_a_library_comes_the_users_line_that_called_it"


def test_a_walk_ends_at_a_boundary(monkeypatch):
    monkeypatch.setattr(frames, "BOUNDARIES", {*BOUNDARIES, id(test_a_walk_ends_at_a_boundary.__code__)})
    assert [frame.code.co_name for frame in here()[0]] == ["here"]


def test_a_walk_ends_at_the_autograd_engine():
    seen = []

    def hook(gradient):
        seen.append(here())

    x = torch.ones(1, requires_grad=True)
    y = x * 2
    y.register_hook(hook)
    y.backward()
    ((found, in_engine),) = seen
    assert in_engine
    assert [frame.code.co_name for frame in found] == ["here", "hook"]


def test_the_users_own_frame_is_best():
    library = Frame(pytest.fixture.__code__, 0)
    user = Frame(here.__code__, 0)
    assert best((library, user)) is user
    assert best((library,)) is library
    assert best(()) is None


def spot(function):
    """The frame of the call to ``mark`` within ``function``."""
    return function(lambda: stack(sys._getframe(1), 1)[0][0])


@needs_columns
def test_the_columns_of_the_very_expression():
    frame = spot(lambda mark: [1, mark()][1])
    line, start, end = columns(frame)
    assert source(frame, line)[start:end] == "mark()"


@needs_columns
def test_columns_count_characters_not_bytes():
    frame = spot(lambda mark: ("größe äöü", mark())[1])
    line, start, end = columns(frame)
    assert source(frame, line)[start:end] == "mark()"


@needs_columns
def test_an_expression_over_several_lines_ends_with_its_first():
    def function(mark):
        return (mark
                ())  # fmt: skip

    frame = spot(function)
    line, start, end = columns(frame)
    assert line == function.__code__.co_firstlineno + 1
    assert source(frame, line)[start:end] == "mark"


def test_a_source_that_cannot_be_read():
    code = compile("frame()", "<made up>", "eval")
    assert source(Frame(code, 0), 1) is None
