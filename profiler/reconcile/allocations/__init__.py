"""The order in which an implementation allocates and frees."""
