"""playbooks: conditions, load checks, the walk; pure."""
