"""What takes a tensor may bind the dtype that it is cast to: then no other cast is offered, for it would raise."""

import pytest

from tests.unit.analysis.mends.told import advice, on, placed


def cast(at, by_hand, line, shown, *uses, **extra):
    large = by_hand.fact(max=1e6, absmax=1e6)
    known = {"float64_finite": True, "float64_absmax": 1e6, "of_weights": False, "autocast": False, **extra}
    facts = at("_to_copy", (large,), (by_hand.fact(posinf=4, dtype="float16"),), extra=known, **placed(line, shown))
    return advice(on(facts, uses=uses))


@pytest.mark.parametrize(
    ("line", "shown", "uses"),
    [
        ("x = x.half()", "x.half()", ["loss = net(x).float().pow(2).mean()"]),
        ("x = x.half()", "x.half()", ["loss = net(x[:, 0].unsqueeze(1)).mean()"]),
        ("x = x.half()", "x.half()", ["y = x @ self.w"]),
        ("x = x.half()", "x.half()", ["y = x.matmul(w)"]),
        ("h = x.to(torch.float16)", "x.to(torch.float16)", ["y = F.linear(h, self.w)"]),
        ("y = self.fc(x.half())", "x.half()", []),
        ("y = x.half() @ w", "x.half()", []),
    ],
)
def test_what_is_given_to_weights_in_half_stays_half(at, by_hand, line, shown, uses):
    told = cast(at, by_hand, line, shown, *uses)
    assert all(one.code is None for one in told)
    assert "has its weights in float16" in told[0].text
    assert "bfloat16" in told[1].text
    lifted = cast(at, by_hand, line, shown, *uses, autocast=True)[0].code
    assert lifted == line.replace(".half()", ".float()").replace("float16", "float32")


USES = [
    "y = x.mean()",
    "y = torch.relu(x)",
    "print(x)",
    "y = x * 2",
    "dist.all_reduce(x)",
    "p.grad.copy_(x)",
    "t.add_(x)",
]


@pytest.mark.parametrize("use", USES)
def test_what_is_bound_by_nothing_is_kept_wide(at, by_hand, use):
    assert cast(at, by_hand, "x = x.half()", "x.half()", use)[0].code == "x = x.float()"


@pytest.mark.parametrize(
    ("line", "uses", "extra"),
    [
        ("def put(self, logits): dist.send(logits.half(), self.peer)", [], {}),
        ("out = logits.half()", ["dist.isend(out, 1)"], {"autocast": True}),
        ("out = logits.half()", ["dist.all_gather(parts, out)"], {}),
        ("w.put(logits.half())", [], {"handed_on": ["send", [1, 0]], "own_step": 3}),
    ],
)
def test_what_is_sent_has_the_dtype_of_the_buffer_that_receives_it(at, by_hand, line, uses, extra):
    told = cast(at, by_hand, line, "logits.half()", *uses, **extra)
    assert told[0].code is None
    assert "the buffer that receives it" in told[0].text
    assert not any(".float()" in (one.code or "") for one in told)


def test_what_is_cast_once_more_is_bound_by_nothing(at, by_hand):
    told = cast(at, by_hand, "x = x.half().float()", "x.half()", "z = net(x)")
    assert told[0].code == "x = x.float()"
