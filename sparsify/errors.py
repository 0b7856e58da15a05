"""The one exception whose message is written for users."""


class SparsifyError(Exception):
    """A failure that the user can act on: one sentence with file or site, cause and next step.

    The command line shows only this exception without a traceback, as one line, and exits 1.
    """
