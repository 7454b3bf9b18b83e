"""One question about a mixer per file, one rule per kind of node."""
