"""How much of the attention in freshly exported models is found: `python -m benchmarks.zoo`."""
