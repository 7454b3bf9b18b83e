"""Which published implementations equal a built-in mixer in float64?"""
