"""Does a module compute its equations, dispatch the operations that its description names, and hold
the state that the equations need?"""
