"""The report as markdown: the same facts, and nothing a script says is read as markdown or HTML."""

from dataclasses import replace

import pytest

from nandiag.analysis.report import Finding, Run
from nandiag.render import markdown

HARMED = """\
## nandiag

:x: **-Inf born on rank 3 at step 417 in forward of blocks.2.attn**

```
nandiag run train.py
```

| | |
|---|---|
| rank | 3 |
| step | 417 |
| phase | forward |
| module | blocks.2.attn (Attention) |
| op | aten.log.default |
| place | /home/u/train.py:88 in forward |
| host | node0 |
| device | cuda:3 |
| input | float32 \\[4x4\\], 3 zeros, 0 to 1 |
| output | float32 \\[4x4\\], 3 -Inf, finite part -2 to 0 |

```python
return torch.log(p) * q
       ^^^^^^^^^^^^
```

**Cause:** log\\_of\\_zero (reproduced)

- the input of log holds 3 zeros in 16 values; log(0) is -inf

**Help:** Keep the argument of the logarithm away from zero.

```python
x.clamp_min(1e-12).log()
```

**Resume** from a checkpoint saved before step 417.

<details><summary>Spread (1)</summary>

- gradients of ranks 0-2 and 4-7 at step 417, through the gradient exchange

</details>

<details><summary>Findings (1)</summary>

- anomaly: NaN loss on rank 3 at step 417 (loss).

</details>
"""


def test_the_whole_page(harmed):
    assert markdown.dumps(harmed) == HARMED


def test_a_healthy_run(healthy):
    assert markdown.dumps(healthy) == "## nandiag\n\n:white_check_mark: no anomaly in 2 ranks, 200 steps\n"


def test_a_failed_rank_is_a_warning(healthy):
    failed = replace(healthy, findings=(Finding("rank_killed", "warning", "Rank 1 was killed."),))
    assert ":warning: no anomaly" in markdown.dumps(failed)


@pytest.mark.parametrize("state", ["failed", "signalled"])
def test_a_run_that_failed_gets_no_tick(healthy, state):
    assert ":warning: no anomaly" in markdown.dumps(replace(healthy, run=Run(state=state)))


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("a_b*c*", r"a\_b\*c\*"),
        ("<script>", "&lt;script&gt;"),
        ("[x](http://evil)", r"\[x\](http&#58;//evil)"),
        ("a|b", r"a\|b"),
        ("@user #12 $x$", r"&#64;user \#12 &#36;x&#36;"),
        ("`code` ~no~ !img", r"\`code\` \~no\~ \!img"),
        (":boom: at a.py:12", "&#58;boom: at a.py:12"),
        ("- item", r"\- item"),
        ("+Inf", "+Inf"),
        ("1. item", r"1\. item"),
        ("\x1b[31mred", "red"),
        ("a\n# title", r"a \# title"),
        ("&amp;", "&amp;amp;"),
    ],
)
def test_escape(text, safe):
    assert markdown.escape(text) == safe


def test_backticks_in_a_source_line_do_not_end_its_block(at_origin):
    text = markdown.dumps(at_origin(source="x = '```'\n# title", column=None))
    assert "\n````python\nx = '```' # title\n````\n" in text


def test_where_a_run_went_on_there_is_nothing_to_resume(harmed):
    note = Finding("went_on", "info", "No weight was seen bad, and so the run was not stopped.")
    assert "**Resume**" in markdown.dumps(harmed)
    assert "**Resume**" not in markdown.dumps(replace(harmed, findings=(note,)))
