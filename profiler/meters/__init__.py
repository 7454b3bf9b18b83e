"""Meters of one call: its duration, the memory that it holds, and its energy."""
