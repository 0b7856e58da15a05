"""Samples: each folder is one, with the command that runs it in README.md."""
