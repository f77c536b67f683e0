"""From the JSON of an event to the bytes of a wire protocol. Pure."""
