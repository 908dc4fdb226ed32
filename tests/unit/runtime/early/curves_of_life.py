"""Loss and gradient norm as training shows them: healthy families, and those that go wrong (by seed)."""

import math


def noisy(rng, value, sigma):
    return value * math.exp(rng.gauss(0, sigma))


def classifier(rng, steps):
    """Cross-entropy that falls by a power law, a norm that rises a little and settles."""
    start, noise = rng.uniform(0.7, 11), rng.uniform(0.02, 0.2)
    for step in range(steps):
        yield noisy(rng, start / (1 + step / 40) ** 0.4, noise), noisy(rng, 1 + 2 * math.exp(-step / 50), 0.25)


def warm_up(rng, steps):
    """A learning rate that rises: first the loss hardly moves, then both fall from a high plateau."""
    length = rng.randint(20, 400)
    for step in range(steps):
        rate = min(1.0, (step + 1) / length)
        yield noisy(rng, 10 * math.exp(-max(0, step - length / 2) / 200) + 2, 0.03), noisy(rng, 6 / (1 + 9 * rate), 0.3)


def big_start(rng, steps):
    """Gradients of a thousand in the first steps, of one afterwards."""
    for step in range(steps):
        yield noisy(rng, 2 + 300 * math.exp(-step / 5), 0.1), noisy(rng, 1 + 3000 * math.exp(-step / 6), 0.3)


def cosine_restarts(rng, steps):
    """Each restart of the rate lifts the loss and the norm again."""
    period = rng.randint(60, 300)
    for step in range(steps):
        rate = 0.5 * (1 + math.cos(math.pi * (step % period) / period))
        floor = 1.5 * math.exp(-step / 600)
        yield noisy(rng, 0.3 + floor * (0.5 + rate), 0.08), noisy(rng, 0.2 + 1.5 * rate, 0.3)


def rate_drops(rng, steps):
    """A rate divided by ten twice: the loss falls at once, the norm too."""
    for step in range(steps):
        part = 3 * step // steps
        yield noisy(rng, 2 / 2.2**part, 0.1), noisy(rng, 1.5 / 2**part, 0.3)


def accumulated(rng, steps):
    """Batches of very different length, the last of each epoch tiny."""
    for step in range(steps):
        tiny = step % 37 == 36
        noise = 0.5 if tiny else 0.1
        yield noisy(rng, 3 / (1 + step / 100) ** 0.5, noise), noisy(rng, 3.5 if tiny else 1, 0.3)


def saddle(rng, steps):
    """Hardly any gradient for long, then it grows a thousandfold while the loss falls."""
    for step in range(steps):
        out = 1 / (1 + math.exp(-(step - steps / 2) / 15))
        yield noisy(rng, 1 - 0.95 * out, 0.01), noisy(rng, 1e-3 + 4 * out * (1 - out) + 0.05 * out, 0.3)


def converged(rng, steps):
    """A problem solved to the last digit: both fall through many powers of ten, with late ripples."""
    for step in range(steps):
        size = math.exp(-step / 60) + 1e-9
        ripple = 30 if rng.random() < 0.01 and step > 200 else 1
        yield noisy(rng, size * ripple, 0.3), noisy(rng, math.sqrt(size * ripple), 0.4)


def sparse_regularisation(rng, steps):
    """Each 16th step has a penalty whose gradient is twentyfold."""
    for step in range(steps):
        yield noisy(rng, 0.9, 0.2), noisy(rng, 20 if step % 16 == 0 else 1, 0.3)


def adversaries(rng, steps):
    """A critic and its opponent: the loss wanders through zero, the norm swings by tens."""
    mood = 0.0
    for _ in range(steps):
        mood = 0.97 * mood + rng.gauss(0, 0.2)
        yield rng.gauss(mood, 0.5), noisy(rng, math.exp(mood), 0.4)


def policy(rng, steps):
    """Returns that grow by bursts, advantages with heavy tails."""
    returns = 10.0
    for _ in range(steps):
        returns = min(200.0, max(5.0, returns * math.exp(rng.gauss(0.01, 0.15))))
        tail = 1 / max(rng.random(), 1e-3) ** 0.33
        yield rng.gauss(0, 1) * tail + 0.5 * (returns / 50) ** 2, noisy(rng, returns / 20 * tail, 0.5)


def heavy_tails(rng, steps):
    """Single hard samples: the loss of one batch in a while is many times the usual."""
    for _ in range(steps):
        tail = 1 / max(rng.random(), 1e-6) ** 0.33
        yield 0.4 * tail, noisy(rng, tail, 0.3)


def hinge(rng, steps):
    """A margin loss that is exactly zero on most batches in the end."""
    for step in range(steps):
        hit = rng.random() < math.exp(-step / 80) + 0.02
        yield (rng.uniform(0.05, 0.6) if hit else 0.0), (rng.uniform(0.2, 2) if hit else 0.0)


def two_tasks(rng, steps):
    """Two losses of different size in turn."""
    for step in range(steps):
        yield noisy(rng, 3 if step % 2 else 0.02, 0.2), noisy(rng, 5 if step % 2 else 0.1, 0.3)


def likelihood(rng, steps):
    """A negative log density, which falls below zero without end."""
    for step in range(steps):
        yield 3 - 8 * (1 - math.exp(-step / 300)) + rng.gauss(0, 0.6), noisy(rng, 4, 0.5)


HEALTHY = (
    classifier, warm_up, big_start, cosine_restarts, rate_drops, accumulated, saddle, converged, sparse_regularisation,
    adversaries, policy, heavy_tails, hinge, two_tasks, likelihood,
)  # fmt: skip


def one_spike(rng, steps):
    """The gradient of one step is a hundredfold."""
    for step, (loss, norm) in enumerate(classifier(rng, steps)):
        yield loss, norm * (300 if step == steps // 2 else 1)


def divergence(rng, steps):
    """Fine for long, then loss and norm grow by a half each step."""
    for step, (loss, norm) in enumerate(classifier(rng, steps)):
        late = max(0, step - steps // 2)
        yield loss * 1.5 ** min(late, 60), norm * 2.0 ** min(late, 60)


def early_divergence(rng, steps):
    """A rate far too high: it runs away from the first step on."""
    for step in range(min(steps, 20)):
        yield 2.3 * 2.5**step, 1.5 * 3.0**step


def lasting_jump(rng, steps):
    """The loss jumps far above where it began and stays there."""
    for step, (loss, norm) in enumerate(classifier(rng, steps)):
        yield loss + (200 if step > steps // 2 else 0), norm


SICK = {
    "one_spike": (one_spike, {"grad_norm_spike"}),
    "divergence": (divergence, {"grad_norm_spike", "grad_norm_growth", "loss_spike"}),
    "early_divergence": (early_divergence, {"grad_norm_growth"}),
    "lasting_jump": (lasting_jump, {"loss_spike"}),
}
