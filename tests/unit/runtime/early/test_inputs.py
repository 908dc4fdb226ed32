"""Statistics of the batches that enter root modules: outliers are named, what is natural is not, nothing is kept."""

import gc
import linecache
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nandiag.events import Compared, Warned
from nandiag.settings import Thresholds


class Net(nn.Module):
    """Takes a batch in several ways."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50_000, 4)
        self.layer = nn.Linear(4, 1)

    def forward(self, features, tokens=None, mask=None, extra=None):
        hidden = features if tokens is None else features + self.embed(tokens).mean(1)
        if mask is not None:
            hidden = hidden + mask.mean(1, keepdim=True) * 0
        if extra is not None:
            hidden = hidden + extra["x"][0].mean() * 0
        return self.layer(hidden)


def train(batches, *, slow=None, **given):
    """Steps on ``batches`` of 8 x 4 features; ``given`` are functions of the step that make further inputs."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    for step, features in enumerate(batches):
        if slow is not None:
            slow.capture.step_seconds = 1.0
        model(features, **{name: make(step) for name, make in given.items()}).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def plain(steps):
    return (torch.randn(8, 4) for _ in range(steps))


def outliers(worker):
    return [event for event in worker.events(Warned) if event.slug == "batch_outlier"]


def with_outlier(steps, at):
    for step, features in enumerate(plain(steps)):
        if step == at:
            features[5, 2] = -4e4
        yield features


@pytest.mark.parametrize(("seconds", "looks"), [(1e-3, 8), (4e-3, 32), (1e-2, 256)])
def test_the_shorter_steps_are_the_fewer_batches_are_looked_at(work, seconds, looks):
    worker = work()
    worker.capture.step_seconds = seconds
    passes = worker.sentinel.early._inputs.passes
    assert sum(not passes(step) for step in range(256, 512)) == looks
    assert not any(map(passes, range(64)))


@pytest.mark.parametrize("at", [150, 153])
def test_an_outlier_is_named_also_where_short_steps_are_sampled(work, at):
    worker = work()
    train(with_outlier(200, at))
    (found,) = outliers(worker)
    assert (found.step, found.name) == (at, "features")
    assert (found.facts["sample"], found.facts["samples"], found.facts["size"]) == (5, 8, 4e4)
    assert found.facts["largest"] < 10
    assert found.facts["deviations"] > 8


def test_a_sample_of_a_data_loader_is_named_by_its_index_also_when_the_tensor_given_is_gone(work):
    worker = work()
    data = torch.randn(800, 4)
    data[707, 1] = 1e6
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    for (features,) in DataLoader(TensorDataset(data), 8, shuffle=True):
        worker.capture.step_seconds = 1.0
        model((features - 0.5) * 2.0).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    (found,) = outliers(worker)
    assert (found.facts["dataset"], found.facts["index"]) == ("TensorDataset", 707)


class Two(nn.Module):
    """Takes two batches."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, image, text):
        return self.layer(image).mean() + text.mean()


PICKED = {
    "a slice": lambda x, rows: x[rows[0] : rows[0] + 8],
    "a slice of a tuple": lambda x, rows: x[rows[0] : rows[0] + 8, :],
    "numbers": lambda x, rows: x[rows],
    "a list": lambda x, rows: x[rows.tolist()],
    "indices that are gone": lambda x, rows: x[ORDER[rows[0] : rows[0] + 8]],
    "selected": lambda x, rows: x.index_select(0, rows),
    "a slice of what was shuffled": lambda x, rows: x[ROLLED][(rows[0] - 40) % 800 :][:8],
    "scaled then": lambda x, rows: ((x[rows] - x[:1].mean(0)) / 2.0).float(),
}
ORDER = torch.arange(800)
ROLLED = ORDER.roll(-40)


@pytest.mark.parametrize("way", PICKED)
def test_a_row_is_told_of_the_argument_itself_and_of_what_it_was_picked_from(work, way):
    worker = work()
    images, texts = torch.randn(800, 4), torch.randn(800, 7) * 3.0
    images[707, 1] = 1e6
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    for step in range(100):
        worker.capture.step_seconds = 1.0
        rows = torch.arange(step * 8, step * 8 + 8)
        model(PICKED[way](images, rows), text=texts[rows]).square().backward()
        optimizer.step()
        optimizer.zero_grad()
    (found,) = outliers(worker)
    known = [found.facts.get(name) for name in ("sample", "samples", "row", "rows")]
    assert (found.name, known) == ("image", [3, 8, 707, 800])


@pytest.mark.parametrize("make", [lambda x: x.flip(0), lambda x: torch.cat([x[4:], x[:4]]), lambda x: x @ x.T @ x])
def test_where_rows_may_be_others_none_is_told(work, make):
    worker = work()
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    for batch in list(with_outlier(80, 70)):
        worker.capture.step_seconds = 1.0
        model(make(batch), batch.clone()[:, :3]).square().backward()
        optimizer.step()
        optimizer.zero_grad()
    told = [one for one in outliers(worker) if one.name == "image"]
    assert [one.facts.get("sample") for one in told] == [None]


def of_dict(model, batch):
    return model(**batch)


CALLED = {
    "images": lambda model, images, texts: model(images, texts),
    "images[:]": lambda model, images, texts: model(text=texts, image=images[:]),
    "batch['image']": lambda model, images, texts: of_dict(model, {"image": images, "text": texts}),
    None: lambda model, images, texts: model(*[images, texts]),
}


@pytest.mark.parametrize("given", CALLED)
def test_what_the_script_hands_in_is_told_as_it_stands_there(work, given):
    worker = work()
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    for images in with_outlier(80, 70):
        worker.capture.step_seconds = 1.0
        CALLED[given](model, images, torch.randn(8, 3)).square().backward()
        optimizer.step()
        optimizer.zero_grad()
    (found,) = outliers(worker)
    assert found.facts.get("given") == given
    assert ("call" in found.facts) is (given is not None)


NATURAL = {
    "tokens": lambda step: torch.randint(0, 49_000 if step > 90 else 3, (8, 6)),
    "mask": lambda step: torch.where(torch.rand(8, 6) < (0.0 if step < 90 else 0.5), -1e9, 0.0),
    "extra": lambda step: {"x": [torch.randn(8) * (1 + step % 3)]},
}


@pytest.mark.parametrize("name", NATURAL)
def test_what_is_natural_does_not_warn(work, name):
    worker = work(thresholds=Thresholds(unchanged_every=0))  # its rate is next to nothing
    train(plain(150), slow=worker, **{name: NATURAL[name]})
    assert worker.events(Warned) == []


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("power", [0.2, 0.4])
def test_heavy_tails_do_not_warn(work, seed, power):
    worker = work()
    torch.manual_seed(seed)
    train((torch.randn(8, 4) * torch.rand(8, 4).clamp_min(1e-7) ** -power for _ in range(300)), slow=worker)
    assert outliers(worker) == []


def test_data_that_comes_to_life_slowly_does_not_warn(work):
    worker = work()
    train((torch.randn(8, 4) * (0.0 if step < 20 else 1.05 ** (step - 20)) for step in range(200)), slow=worker)
    assert outliers(worker) == []


def test_a_channel_that_is_not_normalised_is_named_once(work):
    worker = work()
    train(features * torch.tensor([1.0, 1.0, 9e4, 2.0]) for features in plain(40))
    found = [event for event in worker.events(Warned) if event.slug == "batch_channel"]
    assert [(event.name, event.facts["channel"]) for event in found] == [("features", 2)]
    assert found[0].facts["size"] > 9e4


@pytest.mark.parametrize("seconds", [1e-4, 1.0])
def test_at_a_harm_a_batch_far_less_unusual_is_named(work, seconds):
    """Also where steps are so long that the batch was looked at as it went in: it is no measure for itself."""
    worker = work()

    def batches():
        yield from plain(100)
        yield torch.full((8, 4), 30.0)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for features in batches():
        worker.capture.step_seconds = seconds
        loss = model(features).square().mean()
        (loss * (torch.inf if features.max() == 30 else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    (found,) = outliers(worker)
    assert found.at_harm
    assert found.step == 100


@pytest.mark.parametrize("harm", [True, False])
def test_at_a_harm_an_outlier_that_had_come_before_is_named_all_the_same(work, harm):
    """As in a second epoch. Without harm it has come before, and did none."""
    worker, model = work(), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    for features in with_outlier(40, 20):
        worker.capture.step_seconds = 1.0
        model(features).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for step, features in enumerate(with_outlier(21, 20)):
        loss = model(features).square().mean()
        (loss * (torch.inf if harm and step == 20 else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = outliers(worker)
    assert [(one.step, one.facts["sample"], one.facts["aside"]) for one in found] == ([(60, 5, 1)] if harm else [])
    assert all(one.facts["largest"] < 10 for one in found)
    assert not harm or 60 not in worker.sentinel.early._inputs.as_before()


def test_no_batch_is_kept(work):
    worker = work()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    kept = []
    for features in plain(150):
        kept.append(weakref.ref(features))
        model(features * 2).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    del features
    gc.collect()
    assert [one for one in kept if one() is not None] == []
    assert worker.sentinel.early.waiting() == []


def test_an_evaluation_is_not_looked_at(work):
    worker = work()
    model = Net()
    with torch.no_grad():
        for features in plain(100):
            model(features * 1e3)
    assert worker.sentinel.early.waiting() == []


@pytest.mark.parametrize(("steps", "size", "named"), [(5, 9999.0, 1), (5, 40.0, 0), (2, 9999.0, 0)])
def test_at_a_harm_in_the_first_steps_what_is_out_of_all_proportion_is_named(work, steps, size, named):
    worker = work()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for features in (*plain(steps), torch.full((8, 4), size)):
        loss = model(features).square().mean()
        (loss * (torch.inf if features.max() == size else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [event.step for event in outliers(worker)] == [steps] * named


@pytest.mark.parametrize(("length", "named"), [(40, True), (8, False)])
def test_at_a_harm_a_batch_far_longer_than_all_before_is_named(work, length, named):
    worker = work()
    model = nn.GRU(3, 4, batch_first=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for size in (5, 6, 4, 6, 5, length):
        series = torch.randn(2, size, 3)
        loss = model(series)[0].square().mean()
        (loss * (torch.inf if size == length else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = [event for event in worker.events(Warned) if event.slug == "batch_longer"]
    assert len(found) == named
    for one in found:
        assert (one.step, one.at_harm, one.facts["shape"], one.facts["longest"]) == (5, True, [2, 40, 3], [2, 6, 3])


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(("length", "named"), [(40, True), (8, False)])
def test_token_ids_that_are_far_more_than_all_before_are_named(work, monkeypatch, length, named, quick):
    monkeypatch.setattr("nandiag.runtime.early.data.inputs._ALL_OF_FIRST", 4 if quick else 64)
    worker = work()
    model = nn.Embedding(9, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for size in (5, 6, 4, 6, 5, length):
        ids = torch.randint(9, (2, size))
        loss = model(ids if quick else ids[:, :]).square().mean()
        (loss * (torch.inf if size == length else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = [event for event in worker.events(Warned) if event.slug == "batch_longer"]
    assert [(one.step, one.facts["shape"], one.facts["longest"]) for one in found] == [(5, [2, 40], [2, 6])] * named
    assert worker.events(Compared)[0].batches == (3, 4)


@pytest.mark.parametrize(("length", "by", "named"), [(40, 1e9, True), (40, 1.0, False), (6, 1e9, False)])
def test_where_the_loss_leaps_a_batch_far_longer_than_all_before_is_named_in_its_own_step(work, length, by, named):
    worker = work()
    model = nn.GRU(3, 4, batch_first=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    for step in range(44):
        long = step >= 40
        loss = model(torch.randn(2, length if long else 6, 3))[0].square().mean() * (by if long else 1.0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    found = [(one.step, one.at_harm) for one in worker.events(Warned) if one.slug == "batch_longer"]
    assert found == ([(40, False)] if named else [])


@pytest.mark.parametrize("computed", [True, False])
def test_what_a_loop_computes_of_the_model_or_carries_into_that_is_no_batch(work, computed):
    """A chain that is carried from step to step and runs away, against a batch that is as large."""
    worker = work()
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    carried = torch.randn(8, 4)
    for step in range(20):
        chain = carried if computed else torch.randn(8, 4)
        by = 40.0 if step == 19 else 1.0
        if step == 19:
            chain[:2] = 40.0
        for _ in range(4):
            chain = chain.detach().requires_grad_()
            (slope,) = torch.autograd.grad(model(chain).sum(), chain)
            chain = by * (chain - 1e-3 * slope) if computed else chain
        carried = (chain.detach() / by**4).clone()
        loss = model(chain.detach()).square().mean()
        (loss * (torch.inf if step == 19 else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [event.step for event in outliers(worker)] == ([] if computed else [19])


class Recurrent(nn.Module):
    """Returns what it read, and the state that the loop gives it with the next batch."""

    def __init__(self, *, plain):
        super().__init__()
        self.layer, self.plain = nn.Linear(8, 4), plain

    def forward(self, batch, state):
        hidden = self.layer(torch.cat([batch, state], -1))
        return hidden if self.plain else (hidden, hidden.detach())


def _left_as_it_is(hidden, detached, model, state):
    return detached


def _cut_from_the_graph_in_the_loop(hidden, detached, model, state):
    return hidden.detach()


def _computed_in_the_loop(hidden, detached, model, state):
    return 0.5 * state + 0.5 * (hidden.detach() - 1.0)


def _written_into_memory_of_the_loop(hidden, detached, model, state):
    with torch.no_grad():
        return state.copy_(hidden)


def _of_the_weights(hidden, detached, model, state):
    return 1.0 * model.layer.weight.detach()[:, :4]


def _of_the_batch(hidden, detached, model, state):
    return torch.rand_like(state) * 2.0


CARRIED = [
    (_left_as_it_is, True), (_cut_from_the_graph_in_the_loop, True), (_computed_in_the_loop, True),
    (_written_into_memory_of_the_loop, True), (_of_the_weights, True), (_of_the_batch, False),
]  # fmt: skip


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(("carry", "computed"), CARRIED)
def test_a_state_that_came_of_the_weights_a_step_before_is_no_batch(work, carry, computed, plain, behind):
    """Also where steps are so short that calls are only jotted down, and where it is carried on behind the update."""
    worker = work()
    model = Recurrent(plain=plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    state = torch.rand(4, 4)
    for step in range(20):
        given = state if computed or step < 19 else 1e6 * state
        with torch.no_grad():
            model.layer.weight.mul_(1e6 if step == 18 else 1.0)
        made = model(torch.randn(4, 4).clamp(-1, 1), given)
        hidden, detached = (made, made.detach()) if plain else made
        state = state if behind else carry(hidden, detached, model, state)
        (hidden.square().mean() * (torch.inf if step == 19 else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
        state = carry(hidden, detached, model, state) if behind else state
        del hidden, detached, made
    assert [event.name for event in outliers(worker)] == ([] if computed else ["state"])


class Quartic(nn.Linear):
    def forward(self, x):
        return super().forward(x) + x.pow(4).sum(-1, keepdim=True)


@pytest.mark.parametrize("chained", [True, False])
def test_where_a_model_breaks_by_what_the_loop_made_of_it_that_line_is_told(work, chained):
    worker = work()
    model = Quartic(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    chain = torch.full((2, 4), 1e10 if not chained else 1e2)
    for _ in range(4 if chained else 1):
        chain = chain.detach().requires_grad_()
        value = model(chain)
        if chained:
            (slope,) = torch.autograd.grad(value.sum(), chain)
            chain = chain - slope  # the line
    model(chain.detach()).sum().backward()
    optimizer.step()
    worker.sentinel.finish()
    (looked, *_) = worker.looked
    assert (looked.outcome, looked.source) == ("found", "op"), looked
    file, line = looked.facts.get("looped_at", (__file__, 0))
    assert linecache.getline(file, line).rstrip().endswith("# the line") is chained
