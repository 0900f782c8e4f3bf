"""The vocabulary: transform, aggregator, solver and solution types, the chain and the solve loop."""
