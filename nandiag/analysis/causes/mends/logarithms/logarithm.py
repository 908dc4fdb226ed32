"""The logarithm of an expression of the user's, with the exponentials in it undone (reader side).

Only what gives the same numbers wherever the expression itself is finite is written down; a small constant that is
added to a sum of exponentials, lest it be 0, is left out, for such a sum is not 0 any more.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from nandiag.analysis.causes.facts import Facts, dtype_of
from nandiag.analysis.causes.mends.exponentials import forms
from nandiag.analysis.causes.mends.script import fitting, meanings

_DEEPEST, _SHORT = 6, 60
_NEXT_TO_NOTHING = 1e-5
# For the logarithm of 0: its own exponential is 0 beside all others, however large their exponents are.
LEAST, LEAST_OF_HALF = "-1e30", "-6e4"
# Methods and functions that pick, or look at, what there is: the logarithm of what they give is what they give of it.
_PICKS = meanings.VIEWS | meanings.PICKS | {"diag", "diagonal", "clone", "contiguous"}


@dataclass
class Logarithm:
    """Writes down the logarithm of an expression; ``undone`` are the exponentials that it has undone in it.

    ``held`` are names that stand for logarithms already, or functions that hand such back; ``left`` are the expressions
    whose own logarithm it takes. ``facts`` tell what other names stand for; ``None``: nothing is known of them.
    ``summed``: what is written down is a term of a sum, here or in a statement behind; ``least``: what stands for the
    logarithm of 0 in one.
    """

    facts: Facts | None
    held: Collection[str] = ()
    summed: bool = False
    least: str = LEAST
    undone: list[str] = field(default_factory=list)
    left: list[ast.expr] = field(default_factory=list)

    def of(self, node: ast.expr, depth: int = 0) -> str:
        """Return the text of the logarithm of ``node``."""
        value = number(node)
        if value is not None and value > 0:
            return f"{math.log(value):.7g}"
        for form in self._forms() if depth < _DEEPEST else ():
            text = form(node, depth)
            if text is not None:
                return text
        self.left.append(node)
        return f"torch.log({ast.unparse(node)})"

    def _forms(self) -> tuple[Callable[[ast.expr, int], str | None], ...]:
        return self._named, self._exponential, self._product, self._summed, self._added, self._picked, self._filled

    def _of_terms(self, node: ast.expr, depth: int) -> str | None:
        """Return the logarithm of what is summed where that undoes an exponential."""
        outside, self.summed = self.summed, True
        text = self._of_exponentials(node, depth)
        self.summed = outside
        return text

    def _of_exponentials(self, node: ast.expr, depth: int) -> str | None:
        """Return the logarithm of ``node`` where that undoes an exponential; else leave no trace."""
        undone, left = len(self.undone), len(self.left)
        text = self.of(node, depth + 1)
        if len(self.undone) > undone:
            return text
        del self.left[left:]
        return None

    def _named(self, node: ast.expr, depth: int) -> str | None:
        """A name that is held stands for itself; another is written out where that undoes an exponential."""
        name = ast.unparse(node.func if isinstance(node, ast.Call) else node)
        if name in self.held:
            self.undone.append(name)
            return ast.unparse(node)
        if not isinstance(node, ast.Name):
            return None
        made = meanings.behind(self.facts, node) if self.facts is not None else None
        written_out = made is not None and made.meaning is not None and made.inside
        return self._of_exponentials(made.node, depth) if made is not None and written_out else None

    def _exponential(self, node: ast.expr, _: int) -> str | None:
        plain = fitting.target(node, "exp")
        if plain is not None:
            self.undone.append("exp")
            return term(ast.unparse(plain))
        scores = fitting.target(node, "softmax")
        if scores is None or not isinstance(node, ast.Call):
            return None
        rest = [ast.unparse(one) for one in (*node.args, *node.keywords) if one is not scores]
        if not rest:
            return None
        self.undone.append("softmax")
        return f"torch.log_softmax({', '.join((ast.unparse(scores), *rest))})"

    def _product(self, node: ast.expr, depth: int) -> str | None:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult | ast.Div):
            return None
        left = self._factor(node.left, depth)
        if isinstance(node.op, ast.Mult):
            return f"{left} + {self._factor(node.right, depth)}"
        return f"{left} - {term(self.of(node.right, depth + 1))}"

    def _factor(self, node: ast.expr, depth: int) -> str:
        """Return the logarithm of a factor: of a term of a sum it may be 0, a mask's, and whole rows may be.

        The gradient of logsumexp is NaN where all is -inf.
        """
        known = len(self.undone)
        text = self.of(node, depth + 1)
        taken = len(self.undone) == known and text == f"torch.log({ast.unparse(node)})"
        return f"{text}.clamp_min({self.least})" if self.summed and taken else text

    def _summed(self, node: ast.expr, depth: int) -> str | None:
        running = fitting.target(node, "cumsum")
        if running is not None and isinstance(node, ast.Call):
            text = self._of_terms(running, depth)
            rest = [ast.unparse(one) for one in (*node.args, *node.keywords) if one is not running]
            return None if text is None else f"torch.logcumsumexp({text}, {', '.join(rest)})"
        mean = fitting.target(node, "mean")
        if mean is not None and isinstance(node, ast.Call):
            return self._averaged(node, mean, depth)
        along = forms.summed_along(node)
        text = None if along is None else self._of_terms(along[0], depth)
        return None if text is None or along is None else f"torch.logsumexp({text}, dim={along[1]})"

    def _averaged(self, node: ast.Call, given: ast.expr, depth: int) -> str | None:
        """The mean along one dimension: the number of what is summed is that of the zeros whose sum is taken."""
        summed = ast.Call(
            ast.Attribute(given, "sum", ast.Load()), [one for one in node.args if one is not given], node.keywords
        )
        along = forms.summed_along(summed)
        text = None if along is None else self._of_terms(given, depth)
        if text is None or along is None or len(text) > _SHORT:
            return None
        size = f"{bracketed(text)}.size({along[1].partition(',')[0]})"
        return f"torch.logsumexp({text}, dim={along[1]}) - torch.tensor(float({size})).log()"

    def _added(self, node: ast.expr, depth: int) -> str | None:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
            return None
        for one, other in ((node.left, node.right), (node.right, node.left)):
            value = number(one)
            if value is not None:
                return self._and_number(value, other, depth)
        undone, left = len(self.undone), len(self.left)
        texts = [self.of(one, depth + 1) for one in (node.left, node.right)]
        if len(self.undone) > undone:
            return f"torch.logaddexp({texts[0]}, {texts[1]})"
        del self.left[left:]
        return None

    def _and_number(self, value: float, other: ast.expr, depth: int) -> str | None:
        text = self._of_exponentials(other, depth) if value == 1 or 0 < value <= _NEXT_TO_NOTHING else None
        return text if text is None or value != 1 else f"torch.nn.functional.softplus({text})"

    def _picked(self, node: ast.expr, depth: int) -> str | None:
        if isinstance(node, ast.Subscript):
            text = self._of_exponentials(node.value, depth)
            return None if text is None else fitting.picked(text, node.slice)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in _PICKS:
            return None
        inner = node.args[0] if fitting.is_module(node.func.value) and node.args else node.func.value
        text = self._of_exponentials(inner, depth)
        if text is None:
            return None
        rest = [ast.unparse(one) for one in (*node.args, *node.keywords) if one is not inner]
        return f"{bracketed(text)}.{node.func.attr}({', '.join(rest)})"

    def _filled(self, node: ast.expr, depth: int) -> str | None:
        """``x.masked_fill(mask, 0)``."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or len(node.args) != 2:
            return None
        zero = isinstance(node.args[1], ast.Constant) and node.args[1].value == 0
        text = self._of_exponentials(node.func.value, depth) if zero and node.func.attr == "masked_fill" else None
        return None if text is None else f"{bracketed(text)}.masked_fill({ast.unparse(node.args[0])}, {self.least})"


def least(facts: Facts) -> str:
    """Return what stands for the logarithm of 0 in a sum, in the dtype of the origin."""
    given = (*facts.origin.inputs, *facts.origin.outputs)
    return LEAST_OF_HALF if any(dtype_of(fact) == "float16" for fact in given) else LEAST


def term(text: str) -> str:
    """Return ``text`` as one term of a sum."""
    node = ast.parse(text, mode="eval").body
    summed = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)
    return f"({text})" if summed or isinstance(node, ast.UnaryOp | ast.IfExp | ast.Lambda | ast.Compare) else text


def bracketed(text: str) -> str:
    """Return ``text`` as what a method can be called of."""
    return fitting.bracketed(ast.parse(text, mode="eval").body)


def number(node: ast.expr) -> float | None:
    """Return the value of an expression of numbers and of ``math`` alone, such as ``math.sqrt(2 * math.pi)``."""
    if isinstance(node, ast.Constant):
        value = node.value
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    if isinstance(node, ast.Attribute):
        return math.pi if ast.unparse(node) in {"math.pi", "torch.pi", "np.pi"} else None
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "math.sqrt" and len(node.args) == 1:
        value = number(node.args[0])
        return math.sqrt(value) if value is not None and value > 0 else None
    if not isinstance(node, ast.BinOp):
        return None
    left, right = number(node.left), number(node.right)
    both = None if left is None or right is None or not 0 < left < _FAR or not 0 < right < _FAR else (left, right)
    return None if both is None else _computed(node.op, *both)


def _computed(kind: ast.operator, left: float, right: float) -> float | None:
    if isinstance(kind, ast.Mult):
        return left * right
    if isinstance(kind, ast.Div):
        return left / right
    return left**right if isinstance(kind, ast.Pow) and left < _BASE and right < _BASE else None


_FAR, _BASE = 1e6, 100.0
