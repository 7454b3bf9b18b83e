"""One run of a module on the meta device, without data: dispatched operations and live tensors."""
