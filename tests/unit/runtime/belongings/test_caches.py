"""What a script has in a ``functools.lru_cache`` is as it was after a step was run again: entries, order and counts."""

import functools

import pytest

from nandiag.runtime.belongings.bystanders import Bystanders
from nandiag.runtime.belongings.instead.caches import copied_cache
from nandiag.runtime.belongings.keeping import Belongings
from tests.unit.runtime.belongings.test_belongings import ALONE

CALLS = {
    "numbers": [((1,), {}), ((2,), {}), ((1,), {}), ((3,), {}), ((4,), {})],
    "words": [((), {"a": 1}), ((1,), {"b": 2, "c": "x"}), ((1, 2.5), {}), (("a",), {}), (((1, 2),), {}), ((None,), {})],
    "types": [((1,), {}), ((1.0,), {}), ((True,), {"a": 1}), ((True,), {"a": 1.0}), ((), {"a": 1, "b": 2}), ((), {})],
}


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("most", [None, 0, 1, 3, 100])
@pytest.mark.parametrize("typed", [False, True])
def test_a_copy_holds_the_same_in_the_same_order_and_asks_for_nothing(calls, most, typed):
    asked = []

    def make(*args, **kwargs):
        asked.append((args, kwargs))
        return object()

    cache = functools.lru_cache(most, typed)(make)
    for args, kwargs in CALLS[calls]:
        cache(*args, **kwargs)
    before, told = len(asked), cache.cache_info()
    again = copied_cache(cache, lambda value: value)
    assert (len(asked), cache.cache_info(), again.__name__) == (before, told, "make")
    assert again.cache_info().currsize == told.currsize
    for args, kwargs in [*CALLS[calls], ((9,), {}), *CALLS[calls]]:  # which are still there tells of the order
        asked.clear()
        again(*args, **kwargs)
        by_the_copy = len(asked)
        cache(*args, **kwargs)
        assert len(asked) == 2 * by_the_copy


class Table:
    asked = 0

    @functools.lru_cache(maxsize=2)  # noqa: B019 - as scripts have it
    def row(self, number):
        Table.asked += 1
        return [number]


@pytest.mark.parametrize("beside", [ALONE, Bystanders()])
def test_a_cached_method_is_used_by_what_runs_again_and_stays_as_it_was(beside):
    Table.row.cache_clear()
    Table.asked, table = 0, Table()
    first, second, told = table.row(1), table.row(2), Table.row.cache_info()
    keeping = Belongings([table], beside)
    keeping.begin({})
    assert [table.row(1), table.row(2)] == [first, second]
    assert (table.row(1) is first, Table.asked) == (True, 2)
    table.row(5)
    keeping.put_back()
    assert (Table.row.cache_info(), Table.asked) == (told, 2)
    assert (table.row(1) is first, table.row(2) is second) == (True, True)
