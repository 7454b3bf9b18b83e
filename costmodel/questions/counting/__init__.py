"""What is a count: ours by class, and what other tools count of the same equations?"""
