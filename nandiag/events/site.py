"""Where in the user's program something happened: module path, op and user frame, and the text around it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Meaning:
    """``name`` stands for the expression ``text``, at ``line`` of ``file``.

    ``inside`` tells that this is in the function of the expression itself: the text can be put in the name's place.
    Else it is what a caller hands in. ``divides`` tells that the function divides by the name elsewhere as well,
    ``anew`` that each pass of the loop, or each call of the function, that the line stands in computes it before that.
    """

    name: str
    text: str
    file: str
    line: int
    inside: bool = True
    divides: bool = False
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Reduced:
    """The call ``text`` of a collective that tells its operation, and its line."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Written:
    """The lines of the expression's file that write ``name``, a variable or an attribute; it has no others.

    ``reduced`` are those among them that fill it by a collective whose operation is told. ``counts``: all that they do
    is to give it a whole number, and to add whole numbers to it. ``raised`` is the line of the expression's function
    that adds 1 to it behind the expression, where nothing there does so before. ``scaled`` are those among its lines
    that multiply what it was, or divide it.
    """

    name: str
    lines: tuple[int, ...]
    reduced: tuple[Reduced, ...] = ()
    counts: bool = False
    raised: int | None = None
    scaled: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Carried:
    """The statement ``text``, which ends in ``line``: a loop makes ``name`` a multiple of itself by it in each step."""

    name: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Alike:
    """The line ``line`` of the expression's file, whose ``text`` computes the like in the characters ``column``."""

    line: int
    text: str
    column: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of the origin's file, which begins in ``line``, on one line as the parser writes it."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Around:
    """The names in an expression, with what they stand for, nearest first; and what is done with the result.

    ``statement`` is the statement on one line where the expression takes several in the file, ``column`` the
    expression in it. ``uses`` are the statements behind it, in the same function, that use what it is assigned to.
    ``written`` tells where the file writes what the expression names. ``again`` are other lines of the function that
    compute the like, and may break alike, ``alike`` those that call the very same; ``carried`` is what loops up to it
    multiply from step to step. ``ends`` is what the function hands back, wherever it ends: empty for nothing, ``None``
    where that is not known ahead. ``block`` are the statements that run one behind the other with the expression's own,
    from the first that takes an exponential on, where any does and all are short; ``outlive`` are the names that these
    give something and that what stands elsewhere in the function, or a loop's next pass, reads. Where the expression is
    handed back at once, and its function is called in one list of statements alone, these are ``block``, behind the
    ``return``, and ``handed`` is what they call: ``score`` or ``self.score``. ``kinds`` are names of its statement
    that one line of the function alone binds, where it is not known that they stand for its text still: what may have
    been written into that since is of the same kind. ``restored`` is what functions of the file that load a state give
    an attribute or a key of the expression, or one that its names stand for: ``s.get('step', 0)``. ``unkept`` are
    statements that make something of what the expression names and keep it nowhere: ``self.scale.data.clamp(1e-3)``.
    ``torch`` is the name that the file has torch by, empty where it has none, ``None`` where that is not known.
    ``shifts`` are calls that add up over ranks what is subtracted from exponents, the largest of them on each rank.
    """

    names: tuple[Meaning, ...] = ()
    uses: tuple[str, ...] = ()
    statement: str | None = None
    column: tuple[int, int] | None = None
    written: tuple[Written, ...] = ()
    again: tuple[int, ...] = ()
    alike: tuple[Alike, ...] = ()
    carried: tuple[Carried, ...] = ()
    ends: str | None = None
    block: tuple[Statement, ...] = ()
    outlive: tuple[str, ...] = ()
    handed: str | None = None
    torch: str | None = None
    kinds: tuple[Meaning, ...] = ()
    restored: tuple[Meaning, ...] = ()
    unkept: tuple[Meaning, ...] = ()
    shifts: tuple[Reduced, ...] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """One place: module path + op + user frame; every part may be unknown (``None``).

    ``module`` is the fully qualified name without wrapper prefixes: ``""`` is the root module, ``None`` is outside all
    modules. ``op`` is the aten overload (``aten.exp.default``); ``node`` the autograd node in backward
    (``SqrtBackward0``) and ``forward_op`` the aten op that made it. ``column`` is the half-open range ``(from, to)``
    of the expression, 0-based, in characters of ``source``, the text of the line. ``around`` is what the script's text
    says about the names in the expression. ``owner`` is the class that ``function`` is a method of.
    """

    module: str | None = None
    module_class: str | None = None
    op: str | None = None
    node: str | None = None
    forward_op: str | None = None
    file: str | None = None
    line: int | None = None
    column: tuple[int, int] | None = None
    function: str | None = None
    source: str | None = None
    around: Around | None = None
    owner: str | None = None
