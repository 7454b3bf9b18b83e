"""What authors write."""
