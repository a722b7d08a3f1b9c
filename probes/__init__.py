"""The programs that run on the nodes; see `man 7 triage-probes`."""
