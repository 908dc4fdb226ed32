"""Whether a bad answer was read in an evaluation: where nothing trained, nor may by its text (worker)."""

from __future__ import annotations

import ast

from nandiag.runtime.guard import guarded
from nandiag.runtime.tape.entries import Tape
from nandiag.runtime.watch.told.answers.asked import Question
from nandiag.runtime.watch.told.answers.by_text.passed_over import is_decided, may_train
from nandiag.runtime.watch.told.answers.by_text.trains import any_trains
from nandiag.runtime.watch.told.answers.trained import Trained
from nandiag.runtime.watch.told.ways.follow import Ways


@guarded("questions")
def is_of_evaluation(question: Question, ways: Ways, trained: Trained, tape: Tape) -> bool:
    """Whether the loop around the ``question`` trained nothing, nor the line that made what it asks of.

    A phase of the training whose losses are all bad has trained nothing either: there the text has the update.
    """
    if ways.has_trained(question.step):
        return False
    made = tape.maker(question.tensor)
    if made is not None and trained.has_trained(made[0]):
        return False
    around = ways.around()
    if may_train(question) or any(any_trains(ast.walk(node), file) is True for file, node in around):
        return False
    return ways.has_loop() or not is_decided(question)
