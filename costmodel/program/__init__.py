"""A form prepared for questions: lowered and checked, with its loops, tokens, owners and phases."""
