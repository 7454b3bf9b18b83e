"""Measurements as records, and the file they are kept in."""
