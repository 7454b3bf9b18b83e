"""The language of equations that authors write."""
