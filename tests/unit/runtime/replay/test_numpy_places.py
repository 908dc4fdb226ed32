"""A sample of which numpy complained in several places: the likeliest line is told, with the others."""

import numpy as np

from tests.unit.runtime.replay.test_numpy import BAD, Series, train


def in_two_places(row):
    return (row - row.mean()) / row.std() + np.log(row.std())


def on_two_lines(row):
    spread = (row - row.mean()) / row.std()
    return spread + np.log(row.std())


def test_of_two_lines_the_one_is_told_that_makes_nan_at_once_with_the_other(work):
    worker = work(on_anomaly="continue")
    train(Series(on_two_lines))
    look = worker.looked[0]
    assert look.site.source.strip() == "spread = (row - row.mean()) / row.std()"
    assert look.facts["heard_also"] == [f"{look.site.file}:{look.site.line + 1}"]
    assert (look.method, look.facts["dataset_index"]) == ("tape", BAD)  # which of them made it is not known


def test_of_two_places_on_a_line_the_one_is_told_that_makes_nan_at_once(work):
    worker = work(on_anomaly="continue")
    train(Series(in_two_places))
    look = worker.looked[0]
    assert (look.facts["numpy"], look.site.source[slice(*look.site.column)]) == (
        "invalid value encountered in divide", "(row - row.mean()) / row.std()",
    )  # fmt: skip


def alike(row):
    return (row - row.mean()) / row.std() + (row - row.max()) / row.std()


def test_of_two_places_on_a_line_that_are_alike_the_line_is_told(work):
    worker = work(on_anomaly="continue")
    train(Series(alike))
    assert (worker.looked[0].site.function, worker.looked[0].site.column) == ("alike", None)
