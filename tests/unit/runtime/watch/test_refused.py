"""Errors about finite numbers that a call refused: what they were is told, and no harm is."""

import pytest
import torch
from torch import nn

from nandiag.events import ProbeDark, Warned


def trained():
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(3, 2)).sum().backward()
        optimizer.step()
    return net, optimizer


def raised(function, *words):
    try:
        function(*words)
    except Exception as error:  # noqa: BLE001 - of any kind
        return error
    pytest.fail("nothing was raised")


def told(work, function, *words):
    worker, kept = work(), trained()
    worker.sentinel.last.take(raised(function, *words))
    assert (worker.harms, worker.events(ProbeDark)) == ([], [])
    assert kept
    return worker.events(Warned)


def kernel(x):
    return torch.exp(-(x[:, None] - x[None]).square().sum(-1))


def factor(x):
    gram = kernel(x)
    return torch.linalg.cholesky(gram)


def learnt_factor(x):
    net = nn.Module()
    net.noise, net.amp = nn.Parameter(torch.tensor(-0.1)), nn.Parameter(torch.tensor(1.0))
    matrix = net.amp.exp() * kernel(x) + net.noise * torch.eye(len(x))
    return torch.linalg.cholesky(matrix)


def factor_of_many(x):
    many = torch.stack([torch.eye(3), kernel(x) - torch.eye(3)])
    return torch.linalg.cholesky(many)


def inverse(x):
    gram = x.t() @ x
    return gram.inverse()


def turned(x):
    matrix = torch.tensor([[1.0, 9.0], [0.0, 1.0]]) - x
    return torch.linalg.cholesky(matrix)


def test_a_matrix_that_has_equal_rows_is_told_with_them(work):
    x = torch.randn(4, 3)
    x[2] = x[0]
    (warned,) = told(work, factor, x)
    facts = warned.facts
    assert (warned.slug, warned.at_harm, warned.step) == ("matrix_refused", True, 3)
    assert (facts["name"], facts["call"], facts["size"], facts["rows"]) == ("gram", "cholesky", 4, [0, 2])
    assert facts["source"] == "return torch.linalg.cholesky(gram)"
    assert abs(facts["least"]) < 1e-6 < facts["largest"]
    assert not facts["turned"]


def test_of_many_matrices_the_worst_is_told(work):
    (warned,) = told(work, factor_of_many, torch.randn(3, 2))
    assert (warned.facts["of"], warned.facts["index"]) == (2, 1)
    assert warned.facts["least"] < -1e-3


def test_a_matrix_whose_method_is_called_is_found(work):
    (warned,) = told(work, inverse, torch.zeros(5, 3))
    facts = warned.facts
    assert (facts["name"], facts["call"], facts["least"], facts["largest"]) == ("gram", "inverse", 0.0, 0.0)


def test_a_matrix_that_is_not_symmetric_is_told_to_be_none(work):
    (warned,) = told(work, turned, 2.0 * torch.eye(2))
    assert warned.facts["turned"]


def policy(s):
    return torch.distributions.Normal(torch.zeros(3), torch.exp(s))


def policy_by_name(s):
    scale = s.exp()
    return torch.distributions.Normal(loc=torch.zeros(3), scale=scale)


def chance(s):
    return torch.distributions.Bernoulli(s + 1.5)


def own_law(s):
    return made(torch.distributions.Gamma, s)


def made(law, rate):
    return law(torch.ones(3), rate.exp())


@pytest.mark.parametrize(
    ("function", "known"),
    [
        (policy, {"law": "Normal", "param": "scale", "name": "torch.exp(s)", "small": True, "zeros": 1}),
        (policy_by_name, {"name": "scale", "made": "s.exp()", "small": True}),
        (chance, {"law": "Bernoulli", "param": "probs", "name": "s + 1.5", "small": False, "invalid": 3}),
        (own_law, {"law": "Gamma", "param": "rate", "invalid": 1}),
    ],
)
def test_an_argument_out_of_its_range_is_told_with_what_it_was_made_of(work, function, known):
    (warned,) = told(work, function, torch.tensor([0.0, -1000.0, 0.5]))
    assert warned.slug == "argument_refused"
    assert {name: warned.facts.get(name) for name in known} == known
    assert warned.facts["of"] == 3


def of_a_key(_):
    raise ValueError("Expected parameter scale to satisfy the constraint of ours")


def of_the_script(_):
    raise torch.linalg.LinAlgError("the matrix is singular")


@pytest.mark.parametrize("function", [of_a_key, of_the_script])
def test_an_error_of_the_scripts_own_is_none(work, function):
    assert told(work, function, None) == []


def in_a_large_batch(x):
    return torch.linalg.cholesky(input=torch.cat([torch.eye(3).expand(100, 3, 3), -torch.eye(3)[None]]) + 0 * x[0, 0])


def test_the_one_of_a_large_batch_that_was_refused_is_told(work):
    (warned,) = told(work, in_a_large_batch, torch.zeros(1, 1))
    assert (warned.facts["index"], warned.facts["of"], warned.facts["least"]) == (100, 101, -1.0)


def of_what_torch_made(x):
    return torch.distributions.MultivariateNormal(torch.zeros(2, 2), covariance_matrix=x, validate_args=False)


def of_a_number(_):
    scale = 0.5
    scale -= 0.5
    return torch.distributions.Normal(torch.zeros(3), scale)


def of_beta(x):
    return torch.distributions.Beta(x, torch.ones(3))


@pytest.mark.parametrize(("function", "words"), [(of_what_torch_made, -torch.eye(2)), (of_beta, torch.zeros(3))])
def test_what_the_scripts_line_does_not_hold_is_not_told(work, function, words):
    assert told(work, function, words) == []


def test_a_number_has_no_text_of_a_tensor(work):
    (warned,) = told(work, of_a_number, None)
    assert not {"name", "made", "small"} & warned.facts.keys()


def test_what_is_wrong_of_events_is_counted_by_values(work):
    (warned,) = told(work, dirichlet, torch.tensor([[1.0, 2.0], [-1.0, 9.0]]))
    assert (warned.facts["invalid"], warned.facts["of"], warned.facts["most"]) == (1, 4, -1.0)


def dirichlet(x):
    return torch.distributions.Dirichlet(x)


def test_a_weight_below_0_on_the_diagonal_of_a_refused_matrix_is_named(work):
    (one,) = told(work, learnt_factor, torch.tensor([[0.0], [1.0], [1.0]]))
    name, least = one.facts["diagonal"]
    assert (name, round(least, 6)) == ("net.noise", -0.1)
    assert one.facts["diagonal_least"] == pytest.approx([-0.1, 0.1], abs=1e-5)


def test_a_weight_that_is_as_good_as_0_is_not_blamed_for_a_refused_matrix(work):
    (one,) = told(work, hardly_learnt_factor, torch.tensor([[0.0], [1.0], [1.0]]))
    assert one.facts["least"] == pytest.approx(-0.5001, abs=1e-5)
    assert "diagonal" not in one.facts


def hardly_learnt_factor(x):
    noise = torch.tensor(-1e-4, requires_grad=True)
    matrix = kernel(x) - 0.5 * torch.eye(len(x)) + noise * torch.eye(len(x))
    return torch.linalg.cholesky(matrix)
