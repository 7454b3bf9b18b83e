"""What does it cost to execute equations entry by entry? The oracle, against which rules are held.

It shares no code with the rules: no polynomials, no closed sums, no cases.
"""
