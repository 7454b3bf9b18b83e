"""Which operations did the GPU execute in a call, and how many bytes did its memory move?"""
