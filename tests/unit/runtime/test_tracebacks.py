"""A traceback that the script formats shows what it would show without us; so does what Python prints at the end."""

import inspect
import logging
import re
import sys
import threading
import traceback

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from nandiag.events import ProbeDark
from nandiag.runtime import tracebacks

OURS = "/nandiag/runtime/"


class Script:
    """A script that has trained a step, and errs in one way after another."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self):
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()

    def forward(self):
        self.model(torch.ones(2, 5))

    def op_in_the_loss(self):
        self.model(torch.ones(2, 4)) @ torch.ones(5, 5)

    def function_in_the_loss(self):
        nn.functional.cross_entropy(self.model(torch.ones(2, 4)), torch.ones(3).long())

    def two_functions(self):
        nn.functional.mse_loss(self.model(torch.ones(2, 4)), torch.ones(3, 3))

    def backward(self):
        self.model(torch.ones(2, 4)).backward()

    def gradient(self):
        torch.autograd.grad(self.model(torch.ones(2, 4)), torch.ones(1))

    def custom_forward(self):
        self.model(torch.ones(2, 4))
        Forward.apply(torch.ones(1))

    def custom_backward(self):
        Backward.apply(self.model(torch.ones(2, 4))).sum().backward()

    def optimizer_made(self):
        torch.optim.SGD(self.model.parameters(), lr=-1)

    def optimizer_step(self):
        Stubborn(self.model.parameters(), lr=0.1).step()

    def gradients_dropped(self):
        self.optimizer.zero_grad(wrong=1)

    def clipping(self):
        self.model(torch.ones(2, 4))
        nn.utils.clip_grad_norm_(object(), 1.0)

    def batch(self):
        next(iter(DataLoader(Rows(), batch_size=2)))

    def end_of_batches(self):
        batches = iter(DataLoader([1.0], batch_size=2))
        next(batches)
        next(batches)

    def checkpoint(self):
        torch.load("there-is-none.pt")

    def collective(self):
        torch.distributed.all_reduce(torch.ones(1))

    def function_of_a_function(self):
        torch.func.grad(lambda x: x)(torch.ones(2))


class Forward(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, _x):
        raise RuntimeError("in forward")


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, _x):
        return _x * 1

    @staticmethod
    def backward(_ctx, _gradient):
        raise RuntimeError("in backward")


class Stubborn(torch.optim.SGD):
    def step(self, _closure=None):
        raise KeyError("in step")


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise IndexError("no such row")


WAYS = sorted(name for name in vars(Script) if not name.startswith("_") and name != "step")


def shown(script, way):
    """The frames of a traceback that the script looks at, as file and function."""
    try:
        getattr(script, way)()
    except Exception as error:  # noqa: BLE001 - each way has its own
        whole = [error, error.__cause__, error.__context__]
        return [
            (frame.filename, frame.name) for one in whole if one for frame in traceback.extract_tb(one.__traceback__)
        ]
    return None


@pytest.fixture
def shown_as_in_a_worker(monkeypatch):
    for owner, name in (
        (traceback, "extract_tb"), (traceback, "walk_stack"), (traceback.TracebackException, "__init__"),
        (threading, "excepthook"), (sys, "unraisablehook"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name))
    return tracebacks.hide_where_shown


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 remembers the frames beside the error")
@pytest.mark.parametrize("level", ["step", "module", "op"])
@pytest.mark.parametrize("way", WAYS)
def test_an_error_that_the_script_catches_shows_no_frame_of_ours(way, level, work):
    script = Script()
    plain = shown(script, way)
    assert plain
    work(level=level)
    for _ in range(2):
        script.step()
        assert not [frame for frame in shown(script, way) if OURS in frame[0]]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 remembers the frames beside the error")
def test_what_is_left_is_what_there_would_have_been(work):
    script = Script()
    plain = shown(script, "forward")
    work()
    script.step()
    assert shown(script, "forward") == plain


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 remembers the frames beside the error")
@pytest.mark.parametrize("way", ["function_in_the_loss", "two_functions"])
def test_at_the_end_a_function_that_was_handed_over_is_there_once(way, work):
    """Our frame is off before those are on by which torch hands it over: what ends the script is looked at again."""

    def at_the_end():
        try:
            getattr(script, way)()
        except Exception as error:  # noqa: BLE001 - what there would have been is what is asked
            tracebacks.hide_own_frames(error)
            return [(frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
        return None

    script = Script()
    plain = at_the_end()
    work()
    for _ in range(2):
        script.step()
        assert at_the_end() == plain


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 remembers the frames beside the error")
@pytest.mark.parametrize("way", ["function_in_the_loss", "two_functions", "forward"])
def test_what_ends_a_thread_shows_what_it_would_without_us(way, work, shown_as_in_a_worker, monkeypatch):
    def ended():
        shown = []
        monkeypatch.setattr(
            threading, "excepthook", lambda args: shown.extend(traceback.extract_tb(args.exc_traceback))
        )
        shown_as_in_a_worker()
        thread = threading.Thread(target=getattr(script, way))
        thread.start()
        thread.join()
        return [(frame.filename, frame.lineno, frame.name) for frame in shown]

    script = Script()
    plain = ended()
    work()
    script.step()
    assert len(plain) > 3
    assert ended() == plain


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 remembers the frames beside the error")
@pytest.mark.parametrize(
    "way", ["function_in_the_loss", "two_functions", "custom_backward", "optimizer_step", "forward"]
)
@pytest.mark.parametrize("show", ["print_exc", "logging", "print_tb", "finalizer"])
def test_what_the_script_prints_is_what_it_would_without_us(show, way, work, shown_as_in_a_worker, capfd, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # pytest has its own

    def printed():
        if show == "finalizer":
            finalizer = Finalizer()
            finalizer.then = getattr(script, way)
            del finalizer
        else:
            try:
                getattr(script, way)()
            except Exception as error:  # noqa: BLE001 - each way has its own
                SHOWN[show](error)
        return at_some_address(capfd.readouterr().err)

    script = Script()
    plain = printed()
    shown_as_in_a_worker()
    work()
    for _ in range(2):
        script.step()
        assert printed() == plain
    assert "Traceback" in plain or show == "print_tb"


@pytest.mark.parametrize("show", ["format_stack", "logging", "print_stack"])
def test_a_stack_that_the_script_asks_for_is_its_own(show, work, shown_as_in_a_worker, capfd, monkeypatch):
    # An earlier test has made optimizers of this class, whose step torch wraps once for all.
    bare = inspect.unwrap(torch.optim.SGD.step, stop=lambda one: one.__code__.co_name == "_use_grad")
    monkeypatch.setattr(torch.optim.SGD, "step", bare)

    def ask(*_):
        if show == "print_stack":
            traceback.print_stack()
        elif show == "logging":
            to_a_log(None, stack_info=True)
        else:
            sys.stderr.writelines(traceback.format_stack(limit=8))

    def evaluate():
        ask()
        script.optimizer.zero_grad()
        output = script.model(torch.ones(2, 4))
        output.register_hook(ask)
        output.sum().backward()

    script, told = Script(), []
    script.model.register_forward_hook(ask)
    for armed in (False, True, None):
        if armed:
            shown_as_in_a_worker()
            work()
        script.optimizer.step(evaluate)
        told.append(capfd.readouterr().err)
    assert told[0].count("in evaluate") == 3
    assert told[1:] == told[:1] * 2


def at_some_address(text):
    return re.sub(r"0x[0-9a-f]+", "0x", text)


class Finalizer:
    def __del__(self):
        self.then()


def to_a_log(error, **more):
    log = logging.getLogger("script")
    log.addHandler(handler := logging.StreamHandler(sys.stderr))
    log.error("it broke", exc_info=error, **more)
    log.removeHandler(handler)


SHOWN = {
    "print_exc": lambda _: traceback.print_exc(),
    "logging": to_a_log,
    "print_tb": lambda error: traceback.print_tb(error.__traceback__),
}


def script_that_raises():
    try:
        first()
    except KeyError as error:
        raise ValueError("second") from error


def first():
    raise KeyError("first")


def test_our_frames_are_taken_off_the_whole_chain():
    code = compile("def ours(function):\n    return function()\n", tracebacks.__file__, "exec")
    names = {}
    exec(code, names)  # noqa: S102 - a function that seems to lie in our own file
    with pytest.raises(ValueError, match="second") as caught:
        names["ours"](script_that_raises)
    assert "ours" in "".join(traceback.format_exception(caught.value))
    tracebacks.hide_own_frames(caught.value)
    told = "".join(traceback.format_exception(caught.value))
    assert "in ours" not in told
    assert told.count("in script_that_raises") == 2
    assert "The above exception was the direct cause" in told


def forward_frames(call):
    """Return the two innermost frames that anomaly mode shows of the forward call, by its warning."""
    x = torch.zeros(2, requires_grad=True)
    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.warns(UserWarning, match="Traceback of forward call") as warned,
        pytest.raises(RuntimeError, match="returned nan"),
    ):
        (call(x) * 0).sum().backward()
    text = next(str(one.message) for one in warned if "forward call" in str(one.message))
    assert OURS not in text
    return [line for line in text.splitlines() if line.startswith("  File ")][-2:]


def test_the_forward_lines_of_anomaly_mode_end_in_the_script(work):
    before = forward_frames(torch.sqrt)[-1]
    work()
    assert forward_frames(torch.sqrt)[-1] == before
    script = Script()
    script.step()
    assert forward_frames(torch.sqrt)[-1] == before


def test_a_function_of_torch_that_hands_itself_over_is_there_once(work):
    def even(x):
        return nn.functional.layer_norm(x, (2,), eps=0.0)

    before = forward_frames(even)
    work()
    Script().step()
    assert forward_frames(even)[0] == before[0]
    assert before[0].endswith("in even")


class Failures(Exception):  # noqa: N818 - as a script calls it
    """Keeps what failed under a name that groups of errors have theirs under."""

    def __init__(self, exceptions):
        super().__init__("some")
        self.exceptions = exceptions


ASKED = []


class Asking(Exception):  # noqa: N818
    def __getattr__(self, name):
        ASKED.append(name)
        raise RuntimeError(name)


class Frozen(Exception):  # noqa: N818
    def __setattr__(self, name, value):
        raise TypeError(name)


@pytest.mark.parametrize("make", [lambda: Failures({"one": "late"}), lambda: Failures(3), Asking, Frozen])
def test_an_error_with_attributes_of_its_own_is_passed_on_as_it_is(make, work):
    worker, script, error = work(), Script(), make()
    script.step()

    def fails(*_):
        raise error

    handle = script.model.register_forward_pre_hook(fails)
    with pytest.raises(type(error)) as caught:
        script.step()
    handle.remove()
    assert worker.events(ProbeDark) == []
    assert ASKED == []
    assert OURS not in "".join(traceback.format_tb(caught.value.__traceback__))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no groups of errors yet")
def test_the_errors_of_a_group_are_followed():
    def ours():
        raise ValueError

    ours.__code__ = ours.__code__.replace(co_filename=tracebacks.__file__)
    try:
        ours()
    except ValueError as error:
        one = error
    tracebacks.hide_own_frames(ExceptionGroup("both", [one]))  # noqa: F821
    assert [frame.name for frame in traceback.extract_tb(one.__traceback__)] == [sys._getframe().f_code.co_name]
