"""Built-in patterns, one file per idea; each enters through the entry points of pyproject.toml."""
