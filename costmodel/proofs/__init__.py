"""What is proven of one mixer."""
