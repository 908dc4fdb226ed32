"""A symmetric matrix whose determinant is below 0: a covariance that is none, and what keeps it one."""

import pytest

from nandiag.analysis.causes import explain
from tests.unit.analysis.mends import told

LINE = "return -0.5 * torch.logdet(K)"
_SOFT = "torch.nn.functional.softplus"


@pytest.fixture
def lost(at, by_hand):
    def lose(made, *names, least=-0.005, largest=34.0):
        facts = at(
            "logdet", (by_hand.fact(shape=(30, 30)),), (by_hand.fact(shape=(), nan=1),),
            **told.placed(LINE, "torch.logdet(K)"),
            extra={} if least is None else {"least_eigenvalue": least, "largest_eigenvalue": largest},
        )  # fmt: skip
        return explain(told.on(facts, ("K", made), *names))[1]

    return lose


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ("k(x, x) + self.noise * torch.eye(n)", f"K = k(x, x) + {_SOFT}(self.noise) * torch.eye(n)"),
        ("k(x, x) + torch.eye(n) * s", f"K = k(x, x) + torch.eye(n) * {_SOFT}(s)"),
        ("w @ w.mT + torch.diag(d)", f"K = w @ w.mT + torch.diag({_SOFT}(d))"),
        ("w @ w.mT - lam * torch.eye(n)", None),
        ("k(x, x) - s * torch.eye(n)", None),
        ("k(x, x) + jitter * torch.eye(n)", None),
        ("k(x, x) + torch.diag(d)", f"K = k(x, x) + torch.diag({_SOFT}(d))"),
        ("k(x, x) + 1e-4 * torch.eye(n)", None),
        ("k(x, x) + v * torch.eye(n)", None),
        ("k(x, x)", None),
    ],
)
def test_what_is_added_to_the_diagonal_is_kept_above_zero(lost, made, code):
    found = lost(made, ("v", "self.raw.exp()"), ("jitter", "1e-4"))
    assert found.slug == "domain_error"
    assert "least eigenvalue is -0.005" in found.evidence[1]
    assert [one.code for one in found.suggestions] == [
        code,
        "return -0.5 * (2 * torch.linalg.cholesky(K).diagonal(dim1=-2, dim2=-1).log().sum(-1))",
    ]


def test_rounding_alone_is_mended_by_a_little_on_the_diagonal(lost):
    found = lost("k(x, x) + self.noise * torch.eye(n)", least=-2e-6)
    code = "return -0.5 * torch.logdet(K + 2e-05 * torch.eye(K.shape[-1], device=K.device))"
    assert found.suggestions[0].code == code
    assert lost("w @ w.mT", least=-2e-6).slug == "linalg_degenerate"


def test_a_matrix_that_is_not_known_to_be_symmetric_is_a_map(lost):
    found = lost("self.w + self.noise * torch.eye(n)", least=None)
    assert found.suggestions[0].code == "return -0.5 * torch.linalg.slogdet(K).logabsdet"


def test_a_symmetric_matrix_of_which_the_text_shows_no_covariance_has_both_readings(at, by_hand):
    facts = at(
        "logdet", (by_hand.fact(shape=(3, 3)),), (by_hand.fact(shape=(), nan=1),),
        **told.placed("l = -torch.logdet(H)", "torch.logdet(H)"),
        extra={"least_eigenvalue": -0.5, "largest_eigenvalue": 3.0},
    )  # fmt: skip
    shown = [
        one
        for made in ("hessian(pot, x)", "w @ w.mT")
        for one in explain(told.on(facts, ("H", made)))[1].suggestions[:1]
    ]
    assert shown[0].code == "l = -torch.linalg.slogdet(H).logabsdet"
    assert shown[0].text.startswith("Where it may have eigenvalues of any sign, as a Hessian:")
    assert "Look at what is added to its diagonal" in shown[1].text
