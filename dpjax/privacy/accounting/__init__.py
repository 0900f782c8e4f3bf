"""From events to epsilon and delta."""
