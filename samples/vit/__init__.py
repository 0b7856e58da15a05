"""A trained vision transformer at 4097 tokens, before and after."""
