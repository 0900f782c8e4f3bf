"""Query release."""
