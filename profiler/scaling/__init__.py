"""The growth of measured costs with the sizes, beside the derived growth."""
