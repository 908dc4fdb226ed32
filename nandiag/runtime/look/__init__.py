"""What is looked at round a step, and how: losses, gradients, weights, state and buffers, by few numbers each."""
