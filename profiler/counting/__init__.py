"""Which operations does an implementation perform, and what do other projects' counters print?"""
