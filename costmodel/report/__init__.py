"""Documents, and one writer per format."""
