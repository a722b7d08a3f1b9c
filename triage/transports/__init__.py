"""bytes to a node and back; one file a way."""
