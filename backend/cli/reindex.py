"""``citewire reindex``: its options only. What it does is heavy, so no other command loads it."""

from importlib import import_module


def reindex() -> None:
    """Make the search index anew from the database, beside the one that answers; needed after EMBEDDING_MODEL changed.

    Servers may run meanwhile. A stopped run is taken up by the next one.
    """
    reindexing = import_module("backend.cli.reindexing")
    reindexing.run_reindex()
