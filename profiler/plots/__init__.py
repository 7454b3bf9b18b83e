"""Figures: values of records and of equations, and how they are drawn."""
