"""What does a user type to measure? One file a family of commands; torch loads when one runs."""
