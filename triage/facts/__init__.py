"""Pure functions from samples to named facts; one decorated function a fact (registry.py)."""
