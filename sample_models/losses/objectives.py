"""Losses for models of counts, shared by the training scripts of this folder."""

from torch import nn


def count_loss(log_rate, counts):
    """The negative log likelihood of the counts under a Poisson law; the model gives the logarithm of its rate."""
    return nn.functional.poisson_nll_loss(log_rate, counts, log_input=True, full=False)
