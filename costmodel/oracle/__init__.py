"""The oracle: costs by instrumented execution, entry by entry, to verify the rules against.

It shares no code with the rules: no polynomials, no closed sums, no case distinctions.
"""
