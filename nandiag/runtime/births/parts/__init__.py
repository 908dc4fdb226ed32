"""Which of several calls that wrote into one memory before training wrote the element that is asked for (worker)."""
