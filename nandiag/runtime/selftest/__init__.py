"""Doctor's half inside processes that import torch: what is installed, and whether it computes and talks right."""
