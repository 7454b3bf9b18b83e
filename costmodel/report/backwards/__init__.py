"""Documents of the questions asked backwards."""
