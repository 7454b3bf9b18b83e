"""How long a kernel takes on a board: from operations, bytes and the board's figures."""
