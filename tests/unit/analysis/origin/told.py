"""The origin that a record leads to."""

from nandiag.analysis import analyse


def origin(record):
    verdict = analyse(record).verdict
    assert verdict.anomaly
    return verdict.origin
