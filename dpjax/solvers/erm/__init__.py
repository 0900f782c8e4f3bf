"""Empirical risk of linear models, minimised once under one draw of noise."""
