"""The bytes that a call holds: the peak by the allocator, and the tensors at the peak."""
