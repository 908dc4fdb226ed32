"""The replay: a harmful step runs again in place under an op tracer, and the origin is found by walking back."""
