"""Longest paths and reachability in the equations of a mixer, all rows of its loops unrolled."""
