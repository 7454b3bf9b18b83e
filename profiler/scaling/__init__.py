"""How do measured costs grow with the sizes, beside what is derived?"""
