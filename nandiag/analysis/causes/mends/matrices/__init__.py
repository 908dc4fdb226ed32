"""What stands for matrices: determinants, and matrices that are to be positive definite (reader side)."""
