"""The shapes that cross a boundary: requests, responses, events, traces. pydantic only."""
