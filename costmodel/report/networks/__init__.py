"""What networks cost and hold, as documents."""
