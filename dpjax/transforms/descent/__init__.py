"""Steps: clipped displacements."""
