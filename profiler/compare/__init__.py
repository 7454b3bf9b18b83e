"""Compares the time, memory and energy of several candidates, with tests against noise."""
