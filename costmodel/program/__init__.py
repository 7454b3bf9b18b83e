"""A form made ready to ask."""
