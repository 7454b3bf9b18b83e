"""Grids of measurements: planned, interleaved, resumed, on every device, into one file."""
