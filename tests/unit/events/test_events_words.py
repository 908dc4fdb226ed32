"""Numbers, ranks and tensors in words."""

import math

import pytest

from nandiag.events import TensorFact, words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (65504.0, "65504"), (3.4028234663852886e38, "3.4e38"), (1e-8, "1e-8"), (0.0, "0"), (-2.5, "-2.5"),
        (0.001, "0.001"), (1e6, "1e6"), (123456.0, "123456"), (123456.7, "123457"), (16.51949, "16.52"),
        (-6.1e-5, "-6.1e-5"), (math.nan, "nan"),
        (math.inf, "+inf"), (-math.inf, "-inf"), (None, "?"), (999999.9, "1e6"), (1.5e300, "1.5e300"),
        (1.0, "1"), (-1.0, "-1"), (1.0000001192092896, "1.0000001"), (-1.0000001192092896, "-1.0000001"),
        (0.9999999403953552, "0.9999999"), (1.00004, "1.00004"),
    ],
)  # fmt: skip
def test_number(value, text):
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0-1"),
        ([7, 0, 1, 2, 2], "ranks 0-2 and 7"),
        ([], "no rank"),
        (range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10 and 14 more"),
        (range(4096), "ranks 0-4095"),
    ],
)
def test_ranks(numbers, text):
    assert words.ranks(numbers) == text


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({"nan": 1}, "NaN"), ({"posinf": 1}, "+Inf"), ({"neginf": 1}, "-Inf"), ({"posinf": 1, "neginf": 1}, "Inf"),
        ({"nan": 1, "posinf": 1}, "NaN and Inf"), ({}, None),
    ],
)  # fmt: skip
def test_bad_kind(counts, text):
    assert words.bad_kind([TensorFact("float32", (9,), 9), TensorFact("float32", (9,), 9, **counts)]) == text


def test_tensor():
    bad = TensorFact("torch.float16", (2, 1024), 2048, nan=1200, neginf=1, zeros=1, min=-1.0, max=65504.0)
    assert words.tensor(bad) == "float16 [2x1024], 1,200 NaN, 1 -Inf, 1 zero, finite part -1 to 65504"
    alone = TensorFact("float32", (8,), 8, nan=2, zeros=6, min=0.0, max=0.0)
    assert words.tensor(alone) == "float32 [8], 2 NaN, 6 zeros, finite part all 0"
    assert words.tensor(TensorFact("float32", (), 1, nan=1)) == "float32 [scalar], NaN"
    assert words.tensor(TensorFact("float32", (4, 32), 64, nan=64)) == "float32 [4x32], a shard of 64 of it, 64 NaN"
    assert words.tensor(TensorFact("float32", (), 1, min=2.0, max=2.0)) == "float32 [scalar], 2"


def test_small_words():
    assert words.few(["a", "b"]) == "a, b"
    assert words.few(list("abcde")) == "a, b, c and 2 more"
    assert words.few(["a"], 10**9) == "a and 999,999,999 more"
    assert [words.count(1, "step"), words.count(2000, "step")] == ["1 step", "2,000 steps"]
    assert words.signal_name(9) == "signal 9 (SIGKILL)"
    assert words.signal_name(99) == "signal 99"
    assert [words.op("aten.exp.default"), words.op("c10d.allreduce_.default")] == ["exp", "c10d.allreduce_.default"]
    assert [words.bad_value(value) for value in (1.0, None, math.nan, -math.inf)] == [None, None, "NaN", "-Inf"]


@pytest.mark.parametrize(
    ("went_in", "came_out", "text"),
    [
        ({}, {"nan": 1, "neginf": 1}, "NaN and Inf"),
        ({"neginf": 3}, {"nan": 2, "neginf": 1}, "NaN"),
        ({"neginf": 3}, {"nan": 2, "posinf": 1}, "NaN and Inf"),
        ({"nan": 1}, {"nan": 2, "posinf": 1}, "+Inf"),
        ({"neginf": 3}, {"neginf": 1}, "-Inf"),
        ({}, {}, None),
    ],
)
def test_what_went_in_already_was_not_made(went_in, came_out, text):
    given = (TensorFact("float32", (9,), 9), TensorFact("float32", (9,), 9, **went_in))
    assert words.made_kind((TensorFact("float32", (9,), 9, **came_out),), given) == text


@pytest.mark.parametrize(
    ("path", "name"), [("/a/b/train.py", "train.py"), ("C:\\a\\t.py", "t.py"), ("x", "x"), (None, "")]
)
def test_a_file_has_the_name_that_it_has_in_its_folder(path, name):
    assert words.file_name(path) == name
    assert words.place([path, 3]) == f"{name}:3"


def test_a_long_text_is_cut_behind_a_word():
    assert words.cut("a short one") == "a short one"
    assert words.cut("some words of an error", 15) == "some words..."
    assert words.cut("some words of it", 13) == "some words..."
    assert words.cut("x" * 20, 10) == "xxxxxxx..."


@pytest.mark.parametrize(
    ("text", "most", "cut"),
    [
        ("Expected size [0,1,2,3,4,5,6,7,8,9] but got 3", 30, "Expected size [0,1,2,3,4,5,..."),
        ("size [0,1,2,3,4,5,6,7,8,9] but got 3", 22, "size [0,1,2,3,4,5,6..."),
        ("a longish text [0,1,2,3,4,5]", 22, "a longish text..."),
    ],
)
def test_a_long_word_is_cut_within_rather_than_left_out_with_all_behind_it(text, most, cut):
    assert words.cut(text, most) == cut
