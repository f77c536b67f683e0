"""The agent: its state, its tools and the rules of its loop."""
