"""Which bytes does a call hold, by the allocator's account and tensor by tensor?"""
