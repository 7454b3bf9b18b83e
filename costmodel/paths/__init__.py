"""How far: longest paths and reachability in the unrolled equations."""
