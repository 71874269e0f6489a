"""Many runs side by side: the cells of a grid, their execution, and what came of them."""
