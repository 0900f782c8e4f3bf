"""Settings as printed, explicit bounds, and variants that lose to the defaults; one module a paper.

The functions return configured solvers with their true epsilon. Nothing here is a default of the
library, nor imported by it.
"""
