"""What a call holds, by the allocator and by tensors."""
