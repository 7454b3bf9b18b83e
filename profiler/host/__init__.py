"""What is this machine, what can it measure, and what would a paper say of it?"""
