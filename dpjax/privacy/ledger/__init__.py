"""A budget that is spent over several releases."""
