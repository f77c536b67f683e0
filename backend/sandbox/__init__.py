"""Where code that a model writes is run: a port, and adapters for it."""
