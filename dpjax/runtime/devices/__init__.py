"""Runs on several devices and hosts."""
