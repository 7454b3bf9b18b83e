"""One measurement, from the request to the record."""
