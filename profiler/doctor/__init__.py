"""What this machine can measure, and why not the rest."""
