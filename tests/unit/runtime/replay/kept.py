"""Modules that keep something from step to step beside weights, which a batch of one spoils at ``# the line``."""

from collections import deque

import torch
from torch import nn


class Spread:
    """Statistics of the script's own, which a module holds."""

    def __init__(self):
        self.std, self.count = torch.ones(4), 0

    def update(self, x):
        self.count += 1
        self.std = self.std * 0.9 + 0.1 * x.std(0)  # the line


class InPlace(Spread):
    def update(self, x):
        self.count += 1
        self.std.mul_(0.9).add_(0.1 * x.std(0))  # the line


class Norm(nn.Module):
    """Divides by what it keeps of earlier batches, and takes in the present one behind that."""

    def forward(self, x, key):
        y = x / (self.spread(key) + 1e-3)
        with torch.no_grad():
            self.update(x, key)
        return y


class Attribute(Norm):
    def __init__(self):
        super().__init__()
        self.std = torch.ones(4)

    def spread(self, _key):
        return self.std

    def update(self, x, _key):
        self.std = self.std.lerp(x.std(0), 0.1)  # the line


class Buffer(Attribute):
    def __init__(self):
        super().__init__()
        std = self.std
        del self.std
        self.register_buffer("std", std)


class AttributeInPlace(Attribute):
    def update(self, x, _key):
        self.std.lerp_(x.std(0), 0.1)  # the line


class Waits:
    """Begins to take batches in when it has seen a few."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def update(self, x, key):
        self.calls += 1
        if self.calls > 3:
            super().update(x, key)


class Late(Waits, Attribute):
    pass


class Keyed(Norm):
    def __init__(self):
        super().__init__()
        self.kept = {}

    def spread(self, key):
        return self.kept[key] if key in self.kept else torch.ones(4)

    def update(self, x, key):
        self.kept[key] = self.spread(key).lerp(x.std(0), 0.1)  # the line


class Paired(Keyed):
    def __init__(self):
        super().__init__()
        self.kept = {key: (torch.zeros(4), torch.ones(4)) for key in range(2)}

    def spread(self, key):
        return self.kept[key][1]

    def update(self, x, key):
        mean, std = self.kept[key]
        self.kept[key] = mean.lerp(x.mean(0), 0.1), std.lerp(x.std(0), 0.1)  # the line


class Nested(Keyed):
    def __init__(self):
        super().__init__()
        self.kept = {key: {"std": torch.ones(4)} for key in range(2)}

    def spread(self, key):
        return self.kept[key]["std"]

    def update(self, x, key):
        self.kept[key]["std"] = self.spread(key).lerp(x.std(0), 0.1)  # the line


class KeyedInPlace(Keyed):
    def __init__(self):
        super().__init__()
        self.kept = {key: torch.ones(4) for key in range(2)}

    def update(self, x, key):
        self.kept[key].mul_(0.9).add_(x.std(0), alpha=0.1)  # the line


class Queue(Norm):
    def __init__(self):
        super().__init__()
        self.newest = deque([torch.ones(4)], maxlen=4)

    def spread(self, _key):
        return torch.stack(list(self.newest)).mean(0)

    def update(self, x, _key):
        self.newest.append(x.std(0))  # the line


class Listed(Norm):
    def __init__(self):
        super().__init__()
        self.newest = []

    def spread(self, _key):
        return torch.stack(self.newest[-4:]).mean(0) if self.newest else torch.ones(4)

    def update(self, x, _key):
        self.newest.append(x.std(0))  # the line
        del self.newest[:-8]


class Held(Norm):
    def __init__(self, statistics=Spread):
        super().__init__()
        self.statistics = statistics()

    def spread(self, _key):
        return self.statistics.std

    def update(self, x, _key):
        self.statistics.update(x)


class HeldInPlace(Held):
    def __init__(self):
        super().__init__(InPlace)


class OfClass(Norm):
    """What it held before a call cannot be put there for a while."""

    shared = [torch.ones(4)]  # noqa: RUF012 - as scripts have it

    def spread(self, _key):
        return self.shared[-1]

    def forward(self, x, key):
        y = x / (self.spread(key) + 1e-3)
        OfClass.shared[0] = self.spread(key).lerp(x.std(0), 0.1)  # the line
        return y


SHARED = {}


def shared_spread():
    return SHARED.get("std", torch.ones(4))


class Global(Norm):
    def spread(self, _key):
        return shared_spread()

    def forward(self, x, key):
        y = x / (self.spread(key) + 1e-3)
        SHARED["std"] = shared_spread().lerp(x.std(0), 0.1)  # the line
        return y


def take_in(x):
    SHARED["std"] = shared_spread().lerp(x.std(0), 0.1)  # the line


class GlobalOfCalled(Global):
    def forward(self, x, key):
        y = x / (self.spread(key) + 1e-3)
        take_in(x)
        return y


class KeyedLate(Waits, Keyed):
    pass


class KeyedLaterInPlace(Keyed):
    """Its keys come one after another, and what stands there is written into from then on."""

    def update(self, x, key):
        self.kept.setdefault(key, torch.ones(4)).mul_(0.9).add_(x.std(0), alpha=0.1)  # the line


class Watched(Keyed):
    """Keeps a metric besides that is bad in each step, and that nothing comes of."""

    def __init__(self):
        super().__init__()
        self.metric, self.spreads = {}, {}

    def update(self, x, key):
        for group in range(3):
            self.metric[group] = x[:0].mean()  # of nothing
        super().update(x, key)


class Net(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm, self.layer = norm, nn.Linear(4, 1)

    def forward(self, x, key):
        return self.layer(self.norm(x, key))


ONCE_BY_KEY = {Keyed, Paired, Nested, KeyedInPlace, KeyedLate, KeyedLaterInPlace, Watched}
KINDS = [
    Attribute,
    AttributeInPlace,
    Late,
    Queue,
    Listed,
    Held,
    HeldInPlace,
    OfClass,
    Global,
    GlobalOfCalled,
    *sorted(ONCE_BY_KEY, key=str),
]
