"""A sample that numpy made bad is traced to its line, and a guarded line beside it is not blamed."""

import queue
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from nandiag.runtime.numeric.made import MADE
from nandiag.runtime.numeric.warned import HEARD

BAD = 5


class Series(Dataset):
    def __init__(self, transform):
        self.rows = np.random.default_rng(0).random((16, 6)).astype(np.float32) + 0.5
        self.rows[BAD] = 2.0
        self.transform = transform

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.from_numpy(self.transform(self.rows[index]).astype(np.float32))


def scaled(row):
    return (row - row.mean()) / row.std()  # the line


def beside_a_guard(row):
    guarded = np.where(row > 1, np.log(np.maximum(row - 1, 0)), 0)
    return guarded * 0 + (row - row.mean()) / row.std()  # the line


def train(dataset):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with np.errstate(all="ignore"):
        for x in DataLoader(dataset, batch_size=4):
            model(x).square().mean().backward()
            optimizer.step()


def filled(row):
    seen = np.where(row == 2.0, np.nan, row)
    return np.where(np.isnan(seen), np.nanmean(seen), seen)  # the line


def test_the_line_is_named_where_nothing_is_left_without_nan_and_warnings_are_filtered(work):
    worker = work(on_anomaly="continue")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(Series(filled))
    look = worker.looked[0]
    assert (look.site.function, look.facts["dataset_index"]) == ("filled", BAD)
    assert look.site.source.endswith("# the line")
    assert look.facts["numpy"] == "Mean of empty slice"


def handled(row):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return row * np.nanmean(np.where(row == 2.0, np.nan, row))
        except RuntimeWarning:
            return row * np.float32("nan")  # as a table of the script's has it


def handled_error(row):
    with np.errstate(all="raise"):
        try:
            return (row - row.mean()) / row.std()
        except FloatingPointError:
            return row * np.float32("nan")


@pytest.mark.parametrize("transform", [handled, handled_error])
def test_what_the_script_makes_an_error_of_and_handles_is_so_when_asked_again(work, transform):
    worker = work(on_anomaly="continue")
    train(Series(transform))
    assert "numpy" not in worker.looked[0].facts


def by_the_filters(row):
    try:
        return (row - row.mean()) / row.std()
    except (RuntimeWarning, FloatingPointError):
        return row * np.float32("nan")


@pytest.mark.parametrize("mode", ["warn", "raise"])
def test_settings_and_filters_of_the_whole_script_hold_when_asked_again(work, mode):
    worker = work(on_anomaly="continue")
    model = nn.Linear(6, 1)
    with warnings.catch_warnings(), np.errstate(all=mode):
        warnings.simplefilter("error", RuntimeWarning)
        for x in DataLoader(Series(by_the_filters), batch_size=4):
            model(x).square().mean().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert "numpy" not in worker.looked[0].facts


@pytest.mark.parametrize("transform", [scaled, beside_a_guard])
def test_the_line_is_named(work, transform):
    worker = work(on_anomaly="continue")
    train(Series(transform))
    look = worker.looked[0]
    assert (look.outcome, look.source, look.phase, look.step) == ("found", "op", "data", BAD // 4)
    assert (look.site.op, look.site.function) == (None, transform.__name__)
    assert look.site.source.endswith("# the line")
    assert (look.facts["numpy"], look.facts["dataset_index"]) == ("invalid value encountered in divide", BAD)
    assert look.outputs[0].nan == 6


def test_the_line_is_named_where_other_samples_of_the_batch_are_bad_as_well(work):
    worker = work(on_anomaly="continue")
    series = Series(scaled)
    series.rows[BAD + 2] = 3.0
    train(series)
    look = worker.looked[0]
    assert (look.site.function, look.facts["dataset_index"]) == ("scaled", BAD)


class Clips(Series):
    def __init__(self, level):
        super().__init__(None)
        self.rows = np.full((16, 6), 40.0)
        self.rows[BAD] = 210.0  # its square is not below what int16 holds
        self.level = level

    def __getitem__(self, index):
        pcm = self.rows[index].astype(np.int16)
        return torch.tensor(pcm / self.level(pcm), dtype=torch.float32)


def behind_a_name(pcm):
    power = np.mean(pcm**2)
    return np.sqrt(power)


@pytest.mark.parametrize("level", [lambda pcm: np.sqrt((pcm * pcm).mean()), behind_a_name])
def test_squares_of_small_integers_that_wrap_round_are_told(work, level):
    worker = work(on_anomaly="continue")
    train(Clips(level))
    facts = worker.looked[0].facts
    assert facts["squared"] == ["pcm", "int16", 210**2]
    assert ("power" in facts["squared_at"]) is (level is behind_a_name)


def test_squares_that_stay_within_their_dtype_are_not_blamed(work):
    worker = work(on_anomaly="continue")
    train(Clips(lambda pcm: np.sqrt((pcm // 200 * pcm).mean() * 0 + (pcm // 50).mean() * -1.0 + (pcm // 200) ** 2)))
    assert "squared" not in worker.looked[0].facts


class Rows(Series):
    def __init__(self):
        super().__init__(None)
        self.rows[4:8, 1] = 3.0

    def __getitem__(self, index):
        return self.rows[index]


def test_what_is_made_where_the_batch_is_put_together_is_told_so(work):
    worker = work(on_anomaly="continue")
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def collate(rows):
        block = np.stack(rows)
        return torch.from_numpy((block - block.mean(0)) / block.std(0))

    with np.errstate(all="ignore"):
        for x in DataLoader(Rows(), batch_size=4, collate_fn=collate):
            model(x).square().mean().backward()
            optimizer.step()
    facts = worker.looked[0].facts
    assert (facts["together"], facts["bad_rows"]) == (True, 4)


def test_numpys_own_settings_are_put_back(work):
    before = np.geterr(), np.geterrcall()
    work(on_anomaly="continue")
    train(Series(scaled))
    assert (np.geterr(), np.geterrcall()) == before


def ahead(rows):
    return np.log(rows)  # the line


def loop(batches):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@pytest.fixture
def said():
    """numpy's warnings as a script meets them: shown, each place once."""
    HEARD.clear()
    show = warnings._showwarnmsg
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings._showwarnmsg = show  # what pytest keeps them by is put back with it
        yield
    HEARD.clear()


def in_a_thread(rows, batches):
    def make():
        for row in rows:
            batches.put(torch.from_numpy(ahead(row)))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return (batches.get() for _ in rows)


def test_what_a_thread_made_by_numpy_is_told_by_numpys_warning(work, said):
    worker = work(on_anomaly="continue")
    rows = np.ones((5, 3, 6), dtype=np.float32)
    rows[3, 1, 2] = 0.0
    loop(in_a_thread(rows, queue.Queue()))
    look = worker.looked[0]
    assert (look.outcome, look.method, look.source, look.phase, look.step) == ("found", "tape", "op", "data", 3)
    assert look.site.source.endswith("# the line")
    assert look.facts["numpy"] == "divide by zero encountered in log"
    assert look.reason.startswith("numpy complained there before the first step")


def test_a_warning_that_cannot_have_made_it_is_not_blamed(work, said):
    worker = work(on_anomaly="continue")
    bad = np.ones((3, 6), dtype=np.float32)
    bad[1, 2] = np.inf

    def batches():
        yield torch.ones(3, 6)
        ahead(-np.ones(3))  # NaN, which nobody uses
        yield torch.from_numpy(bad)

    loop(batches())
    assert "numpy" not in worker.looked[0].facts


@pytest.mark.parametrize("more", [0, 1])
def test_what_numpy_said_long_ago_is_told_where_it_is_the_only_line_but_not_blamed(work, said, more):
    worker = work(on_anomaly="continue")
    bad = np.ones((3, 6), dtype=np.float32)
    bad[1, 2] = np.inf

    def batches():
        ahead(np.zeros(3))
        in_decibels(np.full(3, 2.0 * more))
        for _ in range(18):
            yield torch.ones(3, 6)
        yield torch.from_numpy(bad)

    loop(batches())
    facts = worker.looked[0].facts
    assert "numpy" not in facts
    told = facts.get("heard_only")
    assert (told is None) if more else told[1:] == ["divide by zero encountered in log", "before the first step"], told


def share(value):
    return np.float64(value) / np.float64(value)  # the line


@pytest.mark.parametrize("places", ["loss", "weight"])
def test_a_number_that_numpy_made_is_told_by_numpys_warning(work, said, places):
    worker = work(on_anomaly="continue")
    model, teacher = nn.Linear(6, 1), nn.Linear(6, 1).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.ones(2, 6)).square().mean() + teacher(torch.ones(2, 6)).mean()
        optimizer.zero_grad()
        (loss * (share(2 - step) if places == "loss" else 1.0)).backward()
        optimizer.step()
        if places == "weight":
            teacher.weight.mul_(share(1 - step))
    look = worker.looked[0]
    assert (look.site.function, look.facts["number"], look.method) == ("share", True, "tape")
    assert look.facts["numpy"].startswith("invalid value encountered in")


def in_decibels(row):
    return np.log10(np.abs(row - 2.0))  # the line


def test_an_infinity_below_zero_in_a_sample_has_its_line(work):
    worker = work(on_anomaly="continue")
    train(Series(in_decibels))
    look = worker.looked[0]
    assert (look.source, look.phase, look.site.function) == ("op", "data", "in_decibels")


def in_units_of_its_spread(rewards):
    return (rewards - rewards.mean()) / rewards.std()  # the line


@pytest.mark.parametrize("taken", [torch.as_tensor, torch.tensor, lambda one: torch.tensor([one])[0]])
def test_what_torch_takes_of_numpy_is_not_said_to_be_made_by_torch(work, said, taken):
    worker = work(on_anomaly="continue")
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        rewards = np.full(4, 0.5, dtype=np.float32)
        rewards[0] += step < 2
        target = in_units_of_its_spread(rewards)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's, of a list of arrays
            loss = (model(torch.ones(1, 6)) - taken(target)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    look = worker.looked[0]
    assert look.site.source.endswith("# the line"), look
    assert look.facts["numpy"].startswith("invalid value encountered in")


@pytest.mark.parametrize("late", [1, 40])
def test_an_array_that_silent_arithmetic_made_before_training_has_its_line(work, silent, late):
    worker = work(on_anomaly="continue")
    rows = np.ones((48, 3, 6), dtype=np.float32)
    rows[late, 1, 2] = 0.0
    loop(iter(torch.from_numpy(ahead(rows))))
    look = worker.looked[0]
    assert look.site.source.endswith("# the line"), look
    assert look.reason.startswith("numpy complained there before the first step")


def test_two_places_long_before_are_none(work, silent):
    worker = work(on_anomaly="continue")
    rows = np.ones((48, 3, 6), dtype=np.float32)
    rows[40, 1, 2] = 0.0
    rows[0, 0, :3] = np.minimum(1 / np.zeros(3), 1.0)
    loop(iter(torch.from_numpy(ahead(rows))))
    assert "numpy" not in worker.looked[0].facts


def twice(row, other):
    return 1 / row + np.log(other)


def test_of_two_places_on_a_line_none_is_told(work, silent):
    worker = work(on_anomaly="continue")
    loop([torch.ones(3, 6), torch.from_numpy(twice(np.zeros((3, 6), np.float32), np.zeros((3, 6), np.float32)))])
    look = worker.looked[0]
    assert (look.site.function, look.site.column) == ("twice", None)


def test_what_numpy_complains_of_all_the_time_is_not_blamed(work, silent):
    worker = work(on_anomaly="continue")
    bad = np.ones((3, 6), dtype=np.float32)
    bad[1, 2] = np.inf

    def batches():
        for step in range(24):
            np.where(np.zeros(3) > 0, ahead(np.zeros(3)), 0.0)
            yield torch.ones(3, 6) if step < 23 else torch.from_numpy(bad)

    loop(batches())
    assert "numpy" not in worker.looked[0].facts


class Crops(Dataset):
    """Samples that are bad where chance cuts them so."""

    def __init__(self, bad):
        self.bad = bad

    def __len__(self):
        return 16

    def __getitem__(self, index):
        row = np.arange(6, dtype=np.float32)
        once = index == self.bad and not self.mark.exists()
        if once:
            self.mark.touch()
        return torch.from_numpy(self.scaled(row * (not once)) + self.masked(index))

    def scaled(self, row):
        return (row - row.mean()) / row.std()  # the line

    def masked(self, index):
        return np.where(index < 0, np.log(np.float32(0)), 0).astype(np.float32)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_came_bad_by_chance_has_the_line_that_numpy_complained_of(work, silent, tmp_path, workers):
    MADE.clear()
    worker = work(on_anomaly="continue")
    crops = Crops(BAD)
    crops.mark = tmp_path / "mark"
    loop(DataLoader(crops, batch_size=4, num_workers=workers))
    look = worker.looked[0]
    assert (look.step, look.method, look.facts["dataset_index"]) == (BAD // 4, "tape", BAD)
    assert look.site.source.endswith("# the line"), look
    assert (look.site.function, look.facts["made_once"]) == ("scaled", True)


def test_a_sample_that_was_complained_of_in_two_places_has_no_line(work, silent, tmp_path):
    """One of them is guarded; it is there when the sample, which is finite then, is asked for again."""

    class Twice(Crops):
        def masked(self, index):
            with_log = np.log(np.float32(index != self.bad))
            return np.where(index == self.bad, 0, with_log).astype(np.float32)

    MADE.clear()
    worker = work(on_anomaly="continue")
    crops = Twice(BAD)
    crops.mark = tmp_path / "mark"
    loop(DataLoader(crops, batch_size=4))
    assert worker.looked[0].facts["dataset_index"] == BAD
    assert not {"numpy", "made_once"} & worker.looked[0].facts.keys()
