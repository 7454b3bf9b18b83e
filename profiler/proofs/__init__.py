"""What is proven of one module."""
