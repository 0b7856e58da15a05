"""The built-in matchers and patterns."""
