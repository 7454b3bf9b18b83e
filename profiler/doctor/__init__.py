"""Diagnoses what this machine can measure, and why it cannot measure the rest."""
