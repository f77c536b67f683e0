"""One conversation: the turn, its storage and its stream."""
