"""Independent noise, of floats and of integers."""
