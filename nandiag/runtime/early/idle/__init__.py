"""Steps of which nothing is learnt, though all is finite: gradients of 0, and weights that do not change (worker)."""
