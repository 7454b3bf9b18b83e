"""Does a module compute its equations, do the work that its description says, and hold the state
derived?"""
