"""One protocol of energy, from window to estimate."""
