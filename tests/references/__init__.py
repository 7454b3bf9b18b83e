"""Whose code does a built-in mixer equal, in float64?"""
