"""Exact arithmetic over sizes."""
