"""One private minimiser of a convex loss of one inner product: the account of its one draw."""
