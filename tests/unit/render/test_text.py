"""Unsafe text is made safe; safe text stays as it is."""

import pytest

from nandiag.render.snippet import snippet
from nandiag.render.text import clean, clean_line, encodable


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain words, größe 数", "plain words, größe 数"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1bPq#1\x1b\\sixel", "sixel"),
        ("\x9b2Jwiped", "wiped"),
        ("\x1bcreset", "reset"),
        ("cut\x1b[", "cut"),
        ("cut\x1b", "cut"),
        ("two\nlines\r\nand\ttab", "two lines  and tab"),
        ("bell\x07 null\x00 del\x7f", "bell null del"),
        ("right\u202eleft\u200b", "rightleft"),
        ("lone \udc80 half", "lone  half"),
    ],
)
def test_clean(text, safe):
    assert clean(text) == safe


def test_a_source_line_keeps_its_columns():
    line = "a\x1b[0m\tb\u202ec"
    assert clean_line(line) == "a?[0m b?c"
    assert len(clean_line(line)) == len(line)


def test_encodable():
    assert encodable("ö", "ascii") == "\\xf6"
    assert encodable("ö", None) == "ö"


def cut_out(piece):
    return piece.code[piece.start : piece.start + piece.width]


def test_the_indent_goes_and_the_underline_stays():
    piece = snippet("        return torch.log(p) * q\n", (15, 27), 80)
    assert (piece.code, cut_out(piece)) == ("return torch.log(p) * q", "torch.log(p)")


def test_a_long_line_is_cut_round_its_expression():
    source = "    y = " + "x + " * 40 + "torch.log(p)" + " + x" * 40
    piece = snippet(source, (168, 180), 40)
    assert len(piece.code) <= 40
    assert piece.code.startswith("...")
    assert piece.code.endswith("...")
    assert cut_out(piece) == "torch.log(p)"


def test_a_long_line_whose_expression_is_near_is_cut_behind():
    piece = snippet("y = torch.log(p)" + " + x" * 40, (4, 16), 40)
    assert piece.code.startswith("y = torch.log(p)")
    assert cut_out(piece) == "torch.log(p)"


def test_an_expression_longer_than_the_width_is_underlined_as_far_as_it_shows():
    piece = snippet("y = " + "x + " * 60 + "x", (4, 245), 40)
    assert len(piece.code) <= 40
    assert piece.start + piece.width <= len(piece.code)
    assert piece.width > 20


def test_of_an_expression_longer_than_the_width_both_ends_are_shown():
    inner = "torch.stack([snr, gamma * torch.ones_like(timesteps)], dim=1).min(dim=1)[0] / snr"
    for rest in ("", " + more"):
        piece = snippet(f"    weights = {inner}{rest}", (14, 14 + len(inner)), 60)
        assert len(piece.code) <= 60
        assert piece.code.endswith(f"[0] / snr{'...' if rest else ''}")
        shown = cut_out(piece)
        assert shown.startswith("torch.stack(")
        assert shown.endswith("[0] / snr")
        assert "..." in shown


def test_wide_characters_take_two_cells():
    piece = snippet("数 = log(数)", (4, 10), 80)
    assert (piece.start, piece.width) == (5, 7)


def test_an_endless_line_costs_no_time():
    piece = snippet("x" * 5_000_000, (4_000_000, 4_000_001), 80)
    assert len(piece.code) <= 80
    assert len(clean("x" * 5_000_000)) < 5_000


@pytest.mark.parametrize("column", [(50, 60), (0, 0), (5, 2), (-4, -1), None])
def test_a_column_that_does_not_fit_underlines_nothing_wrong(column):
    piece = snippet("    y = x", column, 80)
    assert piece.code == "y = x"
    assert piece.width == 0
