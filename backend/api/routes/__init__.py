"""One file a noun; a route parses, calls and returns."""
