"""The line of numpy's arithmetic that is told in the place of the one that broke, and what it gives."""

import warnings

import numpy as np
import pytest

from nandiag.analysis.causes import explain
from nandiag.events import Around, Site
from tests.unit.analysis.mends.placing import on

_DIVIDE, _LOG = "divide by zero encountered in divide", "divide by zero encountered in log"
# Line, what is underlined, what numpy says of it, and the line that mends it.
_LEFT_OUT = [
    ("r = a / b", "a / b", _DIVIDE, "r = a / np.where(b != 0, b, np.inf)"),
    ("r = (a - b) / b", "(a - b) / b", _DIVIDE, "r = (a - b) / np.where(b != 0, b, np.inf)"),
    ("r = np.divide(a, b)", "np.divide(a, b)", _DIVIDE, "r = np.divide(a, np.where(b != 0, b, np.inf))"),
    ("r = a / b.min()", "a / b.min()", _DIVIDE, "below = b.min()\nr = a / np.where(below != 0, below, np.inf)"),
    ("r = [x / b.min() for x in (a, a)]", "x / b.min()", "divide by zero encountered in scalar divide",
     "r = [x / np.where(b.min() != 0, b.min(), np.inf) for x in (a, a)]"),
    ("r = a[1:] / a[:-1] - 1", "a[1:] / a[:-1]", _DIVIDE,
     "r = np.where(a[:-1] != 0, a[1:], 1) / np.where(a[:-1] != 0, a[:-1], 1) - 1"),
    ("r = np.log(a / b)", "a / b", _DIVIDE,
     "r = np.log(np.where((a > 0) & (b > 0), a, 1) / np.where((a > 0) & (b > 0), b, 1))"),
    ("r = np.log(b / prev_b)", "np.log(b / prev_b)", _LOG,
     "r = np.log(np.where((b > 0) & (prev_b > 0), b, 1) / np.where((b > 0) & (prev_b > 0), prev_b, 1))"),
    ("r = np.log(a[1:] / a[:-1])", "np.log(a[1:] / a[:-1])", _LOG,
     "r = np.log(np.where((a[1:] > 0) & (a[:-1] > 0), a[1:], 1) / np.where((a[1:] > 0) & (a[:-1] > 0), a[:-1], 1))"),
    ("r = np.diff(np.log(b)) * 100", "np.log(b)", _LOG,
     "r = np.nan_to_num(np.diff(np.log(np.where(b > 0, b, np.nan)))) * 100"),
    ("r = np.log(a[1:]) - np.log(a[:-1])", "np.log(a[:-1])", _LOG,
     "r = np.nan_to_num(np.log(np.where(a[1:] > 0, a[1:], np.nan)) - np.log(np.where(a[:-1] > 0, a[:-1], np.nan)))"),
    ("r = b ** -0.4", "b ** -0.4", "divide by zero encountered in power", "r = np.where(b > 0, b, np.inf) ** -0.4"),
    ("r = np.power(b, -0.4)", "np.power(b, -0.4)", "divide by zero encountered in power",
     "r = np.power(np.where(b > 0, b, np.inf), -0.4)"),
    ("r = b ** -2.0", "b ** -2.0", "divide by zero encountered in power", "r = np.where(b != 0, b, np.inf) ** -2.0"),
]  # fmt: skip


def _advice(at, line, expression, said, uses=(), **extra):
    facts = at(None, (), (), extra={"numpy": said, "heard": True, **extra}, phase="data", **on(line, expression))
    if uses:
        object.__setattr__(facts.look, "site", Site(around=Around(uses=uses)))
    return explain(facts)[0].suggestions[0]


@pytest.mark.parametrize(("line", "expression", "said", "code"), _LEFT_OUT)
def test_what_is_divided_by_0_is_left_out_and_nothing_is_huge(at, line, expression, said, code):
    told = _advice(at, line, expression, said)
    assert told.code == code
    assert "huge" in told.text
    names = {
        "np": np,
        "prev_b": np.array([4.0, 2.0, 0.0, 4.0, 5.0]),
        "a": np.array([3.0, 5.0, 0.0, 4.0, 6.0]),
        "b": np.array([2.0, 0.0, 4.0, 5.0, 0.0]),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(code, names)  # noqa: S102
    assert np.isfinite(names["r"]).all()
    assert np.abs(names["r"]).max() < 200


def test_what_are_differences_of_logarithms_in_the_next_line_are_left_out_as_well(at):
    told = _advice(at, "y = np.log(price)", "np.log(price)", _LOG, uses=("x = y.mean()", "r = 100 * np.diff(y)"))
    assert told.code == "y = np.log(np.where(price > 0, price, np.nan))\nr = 100 * np.nan_to_num(np.diff(y))"
    assert _advice(at, "y = np.log(price)", "np.log(price)", _LOG, uses=("x = y * 2",)).code == (
        "y = np.log(np.maximum(price, 1e-12))"
    )


@pytest.mark.parametrize(
    ("line", "said", "more", "code"),
    [
        ("r = (x - mean) / std", "invalid value encountered in divide", {}, "r = (x - mean) / np.maximum(std, 1e-6)"),
        ("r = total / counts", _DIVIDE, {}, "r = total / np.maximum(counts, 1)"),
        ("r = base / step", _DIVIDE, {"rate_set_at": ["train.py:3: g['lr'] = r"]}, "r = base / np.maximum(step, 1)"),
    ],
)
def test_of_0_by_0_of_counts_and_of_a_rate_a_bound_is_right(at, line, said, more, code):
    assert _advice(at, line, line[4:], said, **more).code == code


@pytest.mark.parametrize(
    ("line", "expression", "said", "code"),
    [
        ("r = np.log(counts / total)", "np.log(counts / total)", _LOG, "r = np.log(np.maximum(counts / total, 1e-12))"),
        ("r = np.log(counts) - np.log(total)", "np.log(counts)", _LOG,
         "r = np.log(np.maximum(counts, 1e-12)) - np.log(total)"),
        ("r = np.log(p / (1 - p))", "np.log(p / (1 - p))", _LOG,
         "r = np.log(np.clip(p, 1e-06, 1 - 1e-06) / (1 - np.clip(p, 1e-06, 1 - 1e-06)))"),
        ("r = np.log(p / (1 - p))", "p / (1 - p)", _DIVIDE,
         "r = np.log(np.clip(p, 1e-06, 1 - 1e-06) / (1 - np.clip(p, 1e-06, 1 - 1e-06)))"),
        ("r = np.log(p) - np.log(1.0 - p)", "np.log(p)", _LOG,
         "r = np.log(np.clip(p, 1e-06, 1 - 1e-06)) - np.log(1.0 - np.clip(p, 1e-06, 1 - 1e-06))"),
    ],
)  # fmt: skip
def test_a_share_or_a_chance_of_0_is_small_and_not_as_large_as_the_others(at, line, expression, said, code):
    """A class that does not occur has no logarithm of 0, which is that of a certain one."""
    told = _advice(at, line, expression, said)
    assert told.code == code
    assert "give 1" not in told.text
    names = {"np": np, "counts": np.array([3, 0, 61]), "total": 64, "p": np.array([0.0, 0.5, 1.0])}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(code, names)  # noqa: S102
    assert np.isfinite(names["r"]).all()
    assert names["r"].argmin() == names["counts" if "counts" in line else "p"].argmin()


def test_a_remainder_is_of_whole_numbers_still(at):
    line = "r = a % sizes"
    code = _advice(at, line, "a % sizes", "divide by zero encountered in remainder").code
    names = {"np": np, "a": np.array([7, 8]), "sizes": np.array([0, 3])}
    exec(code, names)  # noqa: S102
    assert (names["r"].dtype.kind, list(names["r"])) == ("i", [0, 2])


def test_a_logarithm_of_what_the_line_divides_by_too_has_that_bounded_before(at):
    line = "w = -np.log(freq) * freq / freq"
    told = _advice(at, line, "np.log(freq)", _LOG)
    assert told.code == f"freq = np.maximum(freq, 1e-12)\n{line}"
    made = {"np": np, "freq": np.array([0.0, 0.5])}
    exec(told.code, made)  # noqa: S102
    assert np.isfinite(made["w"]).all()


def test_a_share_of_a_schedule_ends_at_1_where_it_has_no_steps(at):
    line, said = "frac = (step - s.warm) / (s.total - s.warm)", "invalid value encountered in scalar divide"
    told = _advice(at, line, line.removeprefix("frac = "), said, rate_set_at=["train.py:19: sched.step()"])
    assert told.code == "frac = min((step - s.warm) / np.maximum(s.total - s.warm, 1), 1.0)"


@pytest.mark.parametrize(
    ("line", "at_line", "code"),
    [
        ("rms = np.sqrt((pcm * pcm).mean())", None, "rms = np.sqrt((pcm.astype(np.float32) ** 2).mean())"),
        ("rms = np.sqrt(np.mean(pcm ** 2))", None, "rms = np.sqrt(np.mean(pcm.astype(np.float32) ** 2))"),
        ("rms = np.sqrt(power)", [3, "power", "np.mean(pcm * pcm)"],
         "power = np.mean(pcm.astype(np.float32) ** 2)  # line 3"),
    ],
)  # fmt: skip
def test_squares_of_integers_that_wrapped_round_are_made_of_floats(at, line, at_line, code):
    facts = at("op", (), (), phase="data", **on(line, line.partition(" = ")[2]),
               extra={"numpy": "invalid value encountered in sqrt", "dataset": "Clips", "dataset_index": 27,
                      "squared": ["pcm", "int16", 44100], **({"squared_at": at_line} if at_line else {})})  # fmt: skip
    story = explain(facts)[0]
    assert [one.code for one in story.suggestions] == [code]
    assert "up to 44,100" in story.evidence[1]


def test_a_logarithm_of_one_more_is_kept_above_its_end(at):
    line = "recency = np.log1p(hours)"
    told = _advice(at, line, "np.log1p(hours)", "invalid value encountered in log1p")
    assert told.code == "recency = np.log1p(np.maximum(hours, -0.999))"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names = {"np": np, "hours": np.array([-60.0, -0.5, 3.0])}
        exec(told.code, names)  # noqa: S102
    assert np.isfinite(names["recency"]).all()


_EMPTY, _FEW = "Mean of empty slice", "Degrees of freedom <= 0 for slice"


@pytest.mark.parametrize(
    ("line", "expression", "said", "code"),
    [
        ('s = {"m": float(np.mean(self.done))}', "np.mean(self.done)", _EMPTY,
         's = {"m": float(np.mean(self.done) if len(self.done) else 0.0)}'),
        ("m = done.mean() + 1", "done.mean()", _EMPTY, "m = (done.mean() if len(done) else 0.0) + 1"),
        ("s = np.std(done, ddof=1)", "np.std(done, ddof=1)", _FEW,
         "s = (np.std(done, ddof=1) if len(done) > 1 else 0.0)"),
        ("m = np.mean([v for v in take()])", "np.mean([v for v in take()])", _EMPTY, None),
        ("m = np.mean(done, axis=0)", "np.mean(done, axis=0)", _EMPTY, None),
        ("m = np.nanmean(done, axis=0)", "np.nanmean(done, axis=0)", _EMPTY,
         "m = np.nan_to_num(np.nanmean(done, axis=0))"),
    ],
)  # fmt: skip
def test_what_numpy_reduced_of_nothing_is_told_as_that(at, line, expression, said, code):
    facts = at(None, (), (), extra={"numpy": said, "heard": True, "number": True}, phase="data", **on(line, expression))
    told = explain(facts)[1]
    assert told.slug == "empty_reduction"
    assert told.suggestions[0].code == code
    assert "in the place of" in told.suggestions[0].text
    assert "Guard this" not in told.suggestions[0].text


_SET = {"rate_set_at": ["train.py:10: group['lr'] = float(sched(step))"]}


@pytest.mark.parametrize("line", ["return lo * (hi / lo) ** pct", "return hi / self.low", "k = hi / ph.low"])
@pytest.mark.parametrize("said", ["divide by zero encountered in scalar divide", "invalid value encountered in divide"])
def test_a_schedule_that_divides_by_a_rate_of_0_gets_no_floor(at, line, said):
    shown = line[line.index("hi") :].partition(")")[0]
    told = _advice(at, line, shown, said, **_SET)
    assert told.code is None
    assert "any floor makes another schedule" in told.text


@pytest.mark.parametrize("below", ["step", "t", "n", "self.total", "warmup_steps", "(step - warm)", "self.T_max"])
def test_one_that_divides_by_a_number_of_steps_has_one(at, below):
    line = f"r = base / {below}"
    code = _advice(at, line, line[4:], _DIVIDE, **_SET).code
    assert code == f"r = base / np.maximum({below.strip('()')}, 1)"


@pytest.mark.parametrize("said", ["Mean of empty slice", "Degrees of freedom <= 0 for slice"])
def test_the_mean_of_nothing_is_an_empty_reduction_wherever_it_goes(at, said):
    line = "offset = torch.tensor(hard.mean())"
    facts = at(None, (), (), extra={"numpy": said, "heard": True}, phase="data", **on(line, "hard.mean()"))
    told = explain(facts)[0]
    assert told.slug == "empty_reduction"
    assert told.suggestions[0].code == "offset = torch.tensor(hard.mean() if len(hard) else 0.0)"
