"""Which of several candidates is faster, or needs less: how is that told from noise?"""
