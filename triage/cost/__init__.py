"""what the slowdown costs and which step that justifies; pure."""
