"""Documents: read, cut into chunks, indexed, recalled, removed."""
