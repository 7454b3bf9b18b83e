"""How does one request become one measurement's record?"""
