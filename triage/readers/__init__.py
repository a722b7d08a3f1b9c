"""foreign formats to records; pure."""
