"""Data and numbers that came bad, by who made them."""

from dataclasses import replace

import pytest

from nandiag.analysis import analyse
from nandiag.analysis.causes import explain, unknown
from nandiag.analysis.causes.facts import LIKELY
from nandiag.analysis.causes.mends import unwritten
from nandiag.events import Around, Meaning, Site
from nandiag.events.site import Written


def test_data_that_was_bad_before_the_first_step_is_bad_data(at, by_hand):
    made, extra = (by_hand.fact(nan=1),), {"birth": "op", "came_as": "Windows[341]"}
    story, _ = explain(at("fill_", (by_hand.fact(),), made, phase="data", extra=extra))
    assert story.slug == "data_nonfinite"
    assert "Windows[341]" in story.suggestions[0].text
    extra = {"birth": "file", "key": "x", "file": "rows.pt"}
    story, _ = explain(at(None, (), made, phase="data", source="outside", extra=extra))
    assert (story.slug, story.evidence) == ("data_nonfinite", ("It was bad already in x of rows.pt.",))


def test_a_collate_fn_may_have_made_a_bad_batch(at, by_hand):
    bad = by_hand.fact("x", nan=4, first_bad=(1, 2))
    story, _ = explain(at(None, (bad,), (), source="input", extra={"dataset": "Series"}))
    assert story.evidence[0] == "sample 1 of the batch is bad: it came from Series or its collate_fn."
    assert "collate_fn" in story.suggestions[0].text
    zero, extra = by_hand.fact(zeros=1), {"dataset": "Fields", "dataset_index": 5}
    for function, said in (("__getitem__", "The dataset made it"), ("collate", "the batch was fetched again")):
        story, _ = explain(
            at("div", (by_hand.fact(), zero), (by_hand.fact(nan=1),), phase="data", extra=extra, function=function)
        )
        assert said in story.evidence[0]


@pytest.mark.parametrize(
    ("rows", "said"), [(4, "all 4 samples of the batch are bad"), (1, "sample 1 of the batch is bad")]
)
def test_a_column_that_is_bad_in_each_sample_is_not_told_as_one_sample(at, by_hand, rows, said):
    extra = {"dataset": "TensorDataset", "dataset_index": 0, "bad_rows": rows}
    bad = by_hand.fact("x", nan=4, first_bad=(1, 2), shape=(4, 3))
    story, _ = explain(at(None, (bad,), (), source="input", extra=extra))
    assert story.evidence[0].startswith(said)


@pytest.mark.parametrize("rows", [4, 1])
def test_what_is_made_of_a_whole_batch_is_laid_to_no_one_sample(at, by_hand, rows):
    line = "return (block - mu) / sd"
    extra = {"dataset": "Rows", "dataset_index": 80, "bad_rows": rows, "together": True,
             "numpy": "invalid value encountered in divide"}  # fmt: skip
    facts = at(None, (), (by_hand.fact(nan=4, shape=(4, 3)),), phase="data", extra=extra, function="standardise",
               text=line, column=(7, len(line)))  # fmt: skip
    story, _ = explain(facts)
    assert story.suggestions[0].text == "Guard this arithmetic against such values."
    assert story.suggestions[0].code == "return (block - mu) / np.maximum(sd, 1e-6)"
    words = " ".join([*story.evidence, *(one.text for one in story.suggestions)])
    assert ("Rows[80]" in words) is (rows == 1)
    assert ("were put together" in words) is (rows == 4)


def test_where_numpy_left_all_out_0_is_put_in_its_place(at, by_hand):
    extra = {"dataset": "Stations", "dataset_index": 26, "numpy": "Mean of empty slice"}
    line = "mean = np.nanmean(a, axis=0)"
    story, _ = explain(at(None, (), (by_hand.fact(nan=4),), phase="data", extra=extra, text=line, column=(7, len(line)),
                          file="windows.py"))  # fmt: skip
    assert story.evidence[0] == "numpy says: Mean of empty slice"
    assert story.suggestions[0].code == "mean = np.nan_to_num(np.nanmean(a, axis=0))"


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({}, "uninitialised_memory"),
        ({"as_filled": True}, "uninitialised_memory"),
        ({"exposed": True}, "data_nonfinite"),
    ],
)
def test_data_that_torch_alone_was_given_to_write_and_left_are_unwritten(by_hand, more, cause):
    look = by_hand.found(
        3, method="record", phase="data", inputs=(), outputs=(by_hand.fact(nan=4),),
        facts={"birth": "unwritten", "call": "empty", **more},
    )  # fmt: skip
    told = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(3), look, world=1), world=1))
    assert told.verdict.cause == cause


def test_where_every_op_is_watched_that_is_not_advised(by_hand):
    seen = {"source": "outside", "inputs": (by_hand.fact(nan=4),), "outputs": ()}
    for method, advised in (("replay", True), ("watch", False)):
        run = by_hand.run(by_hand.rank(0, by_hand.loss(3), by_hand.found(3, method=method, **seen), world=1), world=1)
        told = [one.code for one in analyse(run).verdict.suggestions]
        assert ("nandiag run --level op" in told) is advised


@pytest.mark.parametrize(
    ("source", "outputs", "code"),
    [
        ("t = torch.tensor([[float(v) for v in r] for r in rows])", {"nan": 1}, "t = torch.nan_to_num(t, nan=0.0)"),
        (
            "x = torch.tensor(rows)",
            {"nan": 1, "posinf": 2},
            "x = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)",
        ),
        ("return torch.tensor(rows), more", {"posinf": 1}, None),
    ],
)
def test_numbers_that_python_read_bad_are_data(at, by_hand, source, outputs, code):
    bad = by_hand.fact(first_bad=(3, 1), **outputs)
    facts = at("lift_fresh", (bad,), (bad,), text=source, phase="data", file="train.py", line=7)
    story, *_ = explain(facts)
    assert (story.slug, story.strength) == ("data_nonfinite", LIKELY)
    assert story.evidence == ("torch took it as it is from Python's numbers; the first bad one is at [3, 1].",)
    assert story.suggestions[-1].code == code


def test_numbers_that_a_dataset_gave_bad_are_told_with_their_sample(at, by_hand):
    bad, extra = by_hand.fact(posinf=1), {"dataset": "Bags", "dataset_index": 433, "brought": True}
    text = "return torch.from_numpy(row)"
    story, *_ = explain(at("lift_fresh", (bad,), (bad,), text=text, phase="data", file="train.py", line=7, extra=extra))
    assert story.evidence[1].startswith("It came with Bags[433], and was bad when torch took it there")


def test_one_number_that_a_dataset_gave_bad_is_told_with_the_line_that_set_it(at, by_hand):
    bad, extra = by_hand.fact(nan=1, shape=()), {"dataset": "Table", "dataset_index": 207, "brought": True}
    facts = at("lift_fresh", (bad,), (bad,), text="return torch.tensor(row), torch.tensor(cell[3])", phase="data",
               file="train.py", line=7, extra=extra)  # fmt: skip
    story, *_ = explain(facts)
    assert (story.slug, story.evidence[0]) == ("data_nonfinite", "torch took it as it is from a number of Python's.")
    assert story.evidence[1].startswith("It came with Table[207]")
    assert story.suggestions[0].text.startswith("Look at where this number is read or computed, and drop")


def test_one_number_of_the_scripts_own_arithmetic_is_no_data(at, by_hand):
    bad = by_hand.fact(nan=1, shape=())
    facts = at("lift_fresh", (bad,), (bad,), text="scale = torch.tensor(total / count)", file="train.py", line=7)
    assert "data_nonfinite" not in [one.slug for one in explain(facts) if one is not None]


def test_an_array_of_numpys_is_called_so(at, by_hand):
    bad = by_hand.fact(nan=1, first_bad=(2,))
    story, *_ = explain(at("lift_fresh", (bad,), (bad,), text="return torch.from_numpy(self.x[i]), int(self.y[i])"))
    assert story.evidence[0] == "torch took it as it is from an array of numpy's; the first bad one is at [2]."


@pytest.mark.parametrize("step", [5, 8])
def test_what_was_taken_in_before_it_did_harm_is_told_by_that_step_too(by_hand, step):
    extra = {"birth": "op", "call": "__setitem__", "made_at_step": step, "taken_at": ["/a/train.py", 11]}
    look = by_hand.found(8, method="record", phase="data", outputs=(by_hand.fact(nan=1),), facts=extra)
    verdict = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(8), look, world=1), world=1)).verdict
    taken = ", taken in at step 5" if step == 5 else ""
    assert verdict.summary == f"NaN born on rank 0 before the first step{taken}, used at step 8"
    note = "train.py:11 took it in at step 5, and what was kept of that is bad when it is used at step 8."
    assert (note in verdict.evidence) is (step == 5)


@pytest.mark.parametrize(
    ("op", "line", "expression", "name"),
    [
        ("div", "series = torch.tensor(load(rank)) / 0", "torch.tensor(load(rank)) / 0", "series"),
        ("log", "x = torch.log(counts).float()", "torch.log(counts)", "x"),
        ("log", "self.x = torch.log(counts)", "torch.log(counts)", "self.x"),
        ("log", "x, y = torch.log(a), torch.exp(b)", "torch.log(a)", "x"),
        ("fill_", 'rows[3, 2] = float("nan")', 'rows[3, 2] = float("nan")', "rows"),
        ("fill_", 'batch["x"][3] = torch.nan', 'batch["x"][3] = torch.nan', "batch['x']"),
        ("fill_", "x[3].fill_(torch.nan)", "x[3].fill_(torch.nan)", "x"),
        ("mul_", "x *= torch.inf", "x *= torch.inf", "x"),
        ("log", "rows[0] = torch.log(a)", "torch.log(a)", "rows[0]"),
        ("div", 'rows[3, 1] = float("nan")  # a sensor', "rows[3, 1]", "rows"),
        ("div", "x = (a / b).reshape(4, 2)", "a / b", "x"),
        ("log", "data = TensorDataset(torch.log(a))", "torch.log(a)", None),
        ("log", "return torch.log(a)", "torch.log(a)", None),
    ],
)
def test_data_that_a_line_makes_bad_are_checked_by_the_name_that_it_has_for_them(
    at, by_hand, op, line, expression, name
):
    first = line.index(expression)
    story, _ = explain(at(op, (by_hand.fact(),), (by_hand.fact(nan=1),), phase="data", extra={"birth": "op"}, text=line,
                          column=(first, first + len(expression))))  # fmt: skip
    assert story.suggestions[0].code == (name and f"assert torch.isfinite({name}).all()")
    assert story.suggestions[0].text.startswith("Check the data right after this line")


@pytest.mark.parametrize(("world", "phase", "sent"), [(2, "data", True), (1, "data", False), (2, "forward", False)])
def test_memory_that_one_rank_left_unwritten_may_be_meant_for_what_another_sends(at, by_hand, world, phase, sent):
    line = "return torch.empty(6, 16)"
    facts = at("empty", (), (by_hand.fact(nan=16),), phase=phase, text=line, column=(7, len(line)), file="train.py",
               extra={"as_filled": True, "birth": "unwritten"} if phase == "data" else {})  # fmt: skip
    texts = [one.text for one in unwritten.left(replace(facts, world=world), "empty").suggestions]
    assert texts[0].startswith("If rank 0 is to receive it from another rank") is sent


def test_an_input_that_a_call_wrote_over_is_told_to_be_filled_in(by_hand):
    look = by_hand.found(3, method="record", phase="data", facts={"birth": "op", "stood_in": True})
    told = analyse(by_hand.run(by_hand.rank(0, by_hand.loss(3), look, world=1), world=1)).verdict.evidence
    assert any(one.startswith("It wrote over its own input: where that is bad now") for one in told)


def test_of_a_row_of_an_attribute_the_line_that_read_the_whole_is_told(at, by_hand):
    bad, extra = by_hand.fact(nan=1, shape=(4,)), {"dataset": "Shard", "dataset_index": 18, "brought": True}
    text = "return torch.from_numpy(row[:4])"
    facts = at("lift_fresh", (bad,), (bad,), text=text, column=(7, 32), phase="data", file="t.py", line=17, extra=extra)
    names = (Meaning("row", "self.rows[i]", "t.py", 16),)
    around = Around(names=names, written=(Written("row", (16,)), Written("self.rows", (12,))))
    story, *_ = explain(replace(facts, look=replace(facts.look, site=Site(around=around))))
    assert "read or computed, in line 12, and" in story.suggestions[0].text


@pytest.mark.parametrize(("by", "may_pass_on"), [("add_", True), ("copy_", False)])
def test_a_write_that_reads_what_was_there_may_have_passed_it_on(at, by_hand, by, may_pass_on):
    facts = at(None, (by_hand.fact("x", nan=4),), (), phase="data", source="input", extra={"written_in_place": by})
    told = " ".join(one.text for one in unknown.explain(facts).suggestions)
    assert ("may have been bad already" in told) is may_pass_on, told
