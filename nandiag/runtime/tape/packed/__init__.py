"""The arguments of taped calls, as they are kept until the step is over."""
