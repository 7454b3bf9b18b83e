"""One request measured: its plan, the prepared call, and the record of all readings."""
