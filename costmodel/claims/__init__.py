"""Published figures, and anybody's formulas, checked."""
