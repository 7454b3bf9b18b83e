"""One run of a module without data."""
