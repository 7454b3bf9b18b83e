"""Proofs about one mixer: its equations, derived answers and gradients against execution."""
