"""from a job id to its nodes; one file a scheduler."""
