"""The energy of a call, from the power over one window of load to the estimate over trials."""
