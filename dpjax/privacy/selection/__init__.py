"""Private selection: the best of a random number of runs, and what it costs."""
