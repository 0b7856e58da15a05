"""`python -m sparsify` is the command."""

from sparsify.cli import main

main()
