"""How well a tool names the place where numbers go bad: the corpus, the runs, the grading (scripts/score, tests)."""
