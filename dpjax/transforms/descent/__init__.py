"""Steps: mirror descent, anytime averages, clipped displacements."""
