"""Finite numbers that a call refused, as the report tells them."""

import pytest

from nandiag.analysis import analyse
from nandiag.events import Warned

MATRIX = {
    "at": ["/home/ada/gp.py", 9], "source": "L = torch.linalg.cholesky(K)", "name": "K", "call": "cholesky", "size": 6,
    "dtype": "float32", "of": 1, "index": 0, "least": -2.4e-8, "largest": 6.0, "turned": False,
}  # fmt: skip
SCALE = {
    "at": ["/home/ada/policy.py", 9], "source": "law = Normal(mean, torch.exp(s))", "param": "scale", "law": "Normal",
    "constraint": "GreaterThan(lower_bound=0.0)", "invalid": 1, "of": 6, "zeros": 1, "least": 0.0, "most": 0.0,
    "name": "torch.exp(s)", "small": True,
}  # fmt: skip
VANISHED = "the exponential is so small that it is 0"


@pytest.fixture
def verdict(by_hand):
    def found(slug, **facts):
        report = analyse(by_hand.run(by_hand.rank(0, Warned(slug, 7, facts, at_harm=True), world=1)))
        (told,) = [one for one in report.findings if one.slug == slug]
        return told.text, report.verdict.suggestions

    return found


@pytest.mark.parametrize(
    ("facts", "said", "code"),
    [
        ({}, "its least eigenvalue is -2.4e-8, its largest 6.",
         "K = K + 1e-5 * torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)"),
        ({"least": -3e-4}, "its least eigenvalue is -0.0003, its largest 6.",
         "K = K + 1e-3 * torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)"),
        ({"rows": [0, 1]}, "; rows 0 and 1 are equal.",
         "K = K + 1e-5 * torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)"),
        ({"least": -2.0}, "its least eigenvalue is -2, its largest 6.", None),
        ({"turned": True}, "; it is not its own transpose.", "K = (K + K.mT) / 2"),
    ],
)  # fmt: skip
def test_a_matrix(verdict, facts, said, code):
    text, suggestions = verdict("matrix_refused", **{**MATRIX, **facts})
    assert text.startswith("Rank 0, step 7: cholesky refused K (6 x 6, float32) (at gp.py:9): ")
    assert text.endswith(said)
    assert suggestions[0].code == code


def test_one_of_many_matrices(verdict):
    text, _ = verdict("matrix_refused", **{**MATRIX, "of": 8, "index": 3, "call": "inv", "least": 0.0})
    assert "inv refused K 3 of 8 (6 x 6" in text
    assert "its least singular value is 0" in text


@pytest.mark.parametrize(
    ("facts", "said", "code"),
    [
        ({}, f", torch.exp(s) (at policy.py:9): 1 value of 6 is not above 0 (0): {VANISHED}.",
         "scale = torch.exp(s).clamp_min(1e-6)"),
        ({"name": "std", "made": "s.exp()", "made_at": ["/home/ada/policy.py", 8], "zeros": 0, "least": -1.0},
         ", std (at policy.py:9): 1 value of 6 is not above 0 (-1 to 0); it is s.exp() (set at policy.py:8).",
         "scale = std.clamp_min(1e-6)"),
        ({"name": "a - b", "small": False, "zeros": 0, "invalid": 2, "least": -2.0, "most": -1.0},
         ", a - b (at policy.py:9): 2 values of 6 are not above 0 (-2 to -1).", "scale = (a - b).clamp_min(1e-6)"),
        ({"name": None, "small": False, "constraint": "Simplex()"},
         " (at policy.py:9): 1 value of 6 is not as Simplex() asks (0).", None),
    ],
)  # fmt: skip
def test_an_argument(verdict, facts, said, code):
    text, suggestions = verdict("argument_refused", **{**SCALE, **facts})
    assert text.endswith(f"Normal refused its scale{said}")
    assert suggestions[0].code == code


def test_of_a_matrix_in_float64_no_wider_dtype_is_told(verdict):
    _, suggestions = verdict("matrix_refused", **{**MATRIX, "dtype": "float64"})
    assert not any("float64" in one.text for one in suggestions)
    assert any("float64" in one.text for one in verdict("matrix_refused", **MATRIX)[1])


@pytest.mark.parametrize("slug", ["matrix_refused", "argument_refused"])
@pytest.mark.parametrize("odd", [None, "nan", "inf", -1, 10**400, [], {}, True])
@pytest.mark.parametrize("key", sorted({*MATRIX, *SCALE}))
def test_what_no_worker_writes_is_told_all_the_same(verdict, slug, key, odd):
    facts = MATRIX if slug == "matrix_refused" else SCALE
    text, suggestions = verdict(slug, **{**facts, "of": 8, key: odd})
    assert "refused" in text
    assert suggestions


@pytest.mark.parametrize("slug", ["matrix_refused", "argument_refused"])
def test_facts_that_are_lost_are_left_out(verdict, slug):
    text, suggestions = verdict(slug, of=8)
    assert "refused" in text
    assert suggestions
