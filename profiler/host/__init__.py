"""What is this machine, in which state is it, and what may a paper say of it?"""
