"""Reconciliation: the counts on each rung of a ladder, and the causes of the gaps between rungs."""
