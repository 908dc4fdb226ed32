"""numpy's settings are the script's own, whatever is heard of its arithmetic meanwhile."""

import threading
import warnings

import numpy as np
import pytest

from nandiag.runtime.frames import places
from nandiag.runtime.numeric import warned
from nandiag.runtime.numeric.warned import HEARD


@pytest.fixture
def heard(work):
    """What was heard, in numpy's words; the tests set numpy as scripts do."""
    HEARD.clear()
    work(on_anomaly="continue")
    yield lambda: [one.said for one in HEARD.all()]
    HEARD.clear()


DEFAULT = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
LOG = "divide by zero encountered in log"


def log_of_zero():
    return np.log(np.zeros(2))


def test_what_the_script_asks_for_is_told_to_it(heard):
    assert (np.geterr(), np.geterrcall()) == (DEFAULT, None)
    assert np.seterr(all="ignore") == DEFAULT
    assert np.geterr() == dict.fromkeys(DEFAULT, "ignore")
    assert np.seterr(divide="raise") == dict.fromkeys(DEFAULT, "ignore")
    with pytest.raises(FloatingPointError):
        log_of_zero()
    with pytest.raises(ValueError, match="wrong"):
        np.seterr(divide="wrong")
    assert np.geterr()["divide"] == "raise"


def test_what_is_silenced_is_heard(heard, capsys):
    np.seterr(all="ignore")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        log_of_zero()
    assert (heard(), shown, capsys.readouterr()) == ([LOG], [], ("", ""))


def test_a_warning_that_is_filtered_is_heard_and_one_that_is_shown_is_as_numpys_own(heard):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("ignore")
        log_of_zero()
        assert (heard(), shown) == ([LOG], [])
        warnings.simplefilter("always")
        log_of_zero()
    line = log_of_zero.__code__.co_firstlineno + 1
    assert [(str(one.message), one.category, one.filename, one.lineno) for one in shown] == [
        (LOG, RuntimeWarning, __file__, line)
    ]


def test_a_warning_that_is_an_error_is_raised_from_the_scripts_line(heard):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match=LOG) as raised:
            log_of_zero()
    assert raised.traceback[-1].path.samefile(__file__)


@pytest.mark.parametrize("mode", ["call", "log"])
def test_a_handler_of_the_scripts_own_is_called_as_ever(heard, mode):
    said = []

    class Handler:
        def __call__(self, kind, _flag):
            said.append(kind)

        def write(self, line):
            said.append(line)

    handler = Handler()
    assert np.seterrcall(handler) is None
    before = np.seterr(all=mode)
    assert (before, np.geterrcall()) == (DEFAULT, handler)
    log_of_zero()
    np.seterr(**before)
    with np.errstate(divide=mode):
        log_of_zero()
        assert np.geterr() == {**DEFAULT, "divide": mode}
    with np.errstate(all=mode, call=handler):
        log_of_zero()
    decorated = np.errstate(divide=mode, call=handler)(log_of_zero)
    decorated()
    told = {"call": "divide by zero", "log": f"Warning: {LOG}\n"}[mode]
    assert said == [told] * 4
    assert np.geterr() == DEFAULT


def test_a_block_that_is_silent_is_left_alone(heard):
    with np.errstate(all="ignore"):
        log_of_zero()
        assert np.geterr() == dict.fromkeys(DEFAULT, "ignore")
        np.seterr(divide="warn")
    assert (heard(), np.geterr()) == ([], DEFAULT)
    with np.errstate(call=lambda kind, flag: None):
        assert np.geterr() == DEFAULT


def test_another_thread_is_as_numpy_has_it(heard):
    modes = []
    thread = threading.Thread(target=lambda: modes.append(np.geterr()))
    thread.start()
    thread.join()
    assert modes == [DEFAULT]


def test_a_loop_that_never_ceases_is_listened_to_in_a_small_part_of_the_time(heard, monkeypatch):
    np.seterr(all="ignore")
    walks = []
    monkeypatch.setattr(warned, "_CREDIT", 0.0)
    monkeypatch.setattr(warned, "_REST", 60.0)
    monkeypatch.setattr(warned, "places", lambda *words: walks.append(words) or places(*words))
    HEARD._spent = 1e6  # it has had its share, however long the tests have run
    for _ in range(100):
        log_of_zero()
    assert walks == []
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        np.seterr(all="warn")
        log_of_zero()
    assert [str(one.message) for one in shown] == [LOG]  # what the script asked for is done all the same
    HEARD.clear()
    np.seterr(all="ignore")
    log_of_zero()
    assert (heard(), len(walks)) == ([LOG], 1)
