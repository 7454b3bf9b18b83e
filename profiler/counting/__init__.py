"""Which operations does an implementation perform, and what do other people's counters say?"""
