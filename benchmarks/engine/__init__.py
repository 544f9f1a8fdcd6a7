"""Clients that read the same chunks over HTTP: `engine` measures their costs, and `simulation` extrapolates them."""
