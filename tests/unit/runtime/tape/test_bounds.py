"""What the tape and the batches let go of, so that neither grows with micro-batches or epochs."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from nandiag.runtime.tape import entries
from nandiag.runtime.tape.batches import Batches
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.tape.entry import ROOT, Entry

SIZE = 1_000


def taped(tape, tensor):
    tape.add(Entry(ROOT, torch.nn.Linear(1, 1), grad=True, modes=None), (tensor,), {})
    return tape.entries[-1].words[0]


@pytest.mark.parametrize(("most", "kept"), [(SIZE * 4 * 3, True), (SIZE * 4, False)])
def test_large_micro_batches_are_kept_only_by_the_script(monkeypatch, most, kept):
    monkeypatch.setattr(entries, "MOST_BYTES", most)
    tape, held, gone = Tape(), torch.ones(SIZE), torch.ones(SIZE)
    words, reference = (taped(tape, held), taped(tape, gone)), weakref.ref(gone)
    del gone
    tape.bound()
    gc.collect()
    assert words[0].get() is held
    assert (reference() is not None) == kept
    assert (words[1].get() is not None) == kept


def test_what_is_trained_is_not_let_go(monkeypatch):
    monkeypatch.setattr(entries, "MOST_BYTES", 0)
    tape, reference = Tape(), None
    weight = torch.ones(SIZE, requires_grad=True)
    words = taped(tape, weight), taped(tape, torch.ones(SIZE))
    reference = weakref.ref(weight)
    del weight
    tape.bound()
    gc.collect()
    assert reference() is not None
    assert words[1].get() is None


class Iterator:
    """As much of a DataLoader's iterator as is asked for."""

    _dataset_kind = 0
    _dataset = ("a", "b")
    _auto_collation = True
    _collate_fn = staticmethod(lambda data: data)


def test_an_epoch_that_was_broken_off_does_not_shift_the_indices_of_the_next(recording):
    recording()
    batches, iterator, states = Batches(), Iterator(), SimpleNamespace()
    for indices in ([0, 1], [2, 3]):
        batches.asked(iterator, indices)
    batches.begun(iterator)  # persistent workers: the same iterator, from the start
    batches.asked(iterator, [8, 9])
    tensor = torch.ones(2)
    batches.came(iterator, tensor, states)
    assert batches.of(tensor.untyped_storage()._cdata).indices == [8, 9]


class Samples:
    """A dataset that somebody may let go of."""


def test_a_dataset_is_held_until_the_next_batch_where_the_script_may_leave_now(recording):
    recording()
    batches, iterator = Batches(), Iterator()
    iterator._dataset = dataset = Samples()
    tensor = torch.ones(2)
    batches.came(iterator, tensor, SimpleNamespace())
    batches.hold()
    reference = weakref.ref(dataset)
    del dataset, iterator
    assert batches.of(tensor.untyped_storage()._cdata).dataset is reference()
    batches.let_go()
    assert reference() is None
    assert batches.of(tensor.untyped_storage()._cdata) is None
