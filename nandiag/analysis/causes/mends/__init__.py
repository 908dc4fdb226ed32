"""Mends of causes: the user's own line written again so that it holds (reader side).

Each file knows one shape of what breaks, and answers with a Suggestion, or with text for one; none where the mend would
give other numbers wherever the line itself is finite.
"""
