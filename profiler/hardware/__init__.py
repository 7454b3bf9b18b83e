"""Which operations did the GPU execute, and how many bytes did its memory move (rung 4)?"""
