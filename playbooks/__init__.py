"""Decision trees, log signatures and thresholds, as YAML."""
