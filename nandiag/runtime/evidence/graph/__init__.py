"""What autograd's graph tells of an op."""
