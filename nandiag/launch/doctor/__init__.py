"""``nandiag doctor`` as the launcher sees it: it looks around, starts processes that import torch, and sums up."""
