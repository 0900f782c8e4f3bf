"""Online learners as transformations."""
