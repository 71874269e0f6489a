"""Many runs side by side: the cells of a grid, their execution, and their outcomes."""
