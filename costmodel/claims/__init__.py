"""Checks of published figures, and of formulas that users claim."""
