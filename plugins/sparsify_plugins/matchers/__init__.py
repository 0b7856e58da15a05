"""Matchers: each finds one way in which exporters write attention."""
