"""The commands, one file each: parse, call, print, exit. No logic; what is heavy is imported inside the bodies.

A command is a function of typer with `add(app)` below it; triage/cli.py names the file once, where `--help` shall list it.
"""
