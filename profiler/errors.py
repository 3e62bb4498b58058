"""Errors that a person is meant to read: one full sentence that names the next step."""


class FusionScopeError(Exception):
    """Wrong use or unreadable input; the command line prints the message and exits with code 2."""


class UnreadableTrace(FusionScopeError):
    """A file that cannot be read as a trace, with the place where that shows."""

    def __init__(self, sentence: str) -> None:
        # What libraries say, and names in files, can have lines of their own.
        super().__init__(" ".join(sentence.splitlines()))


class GraphModeTrace(FusionScopeError):
    """A trace without kernels, because the profiler recorded whole graphs."""
