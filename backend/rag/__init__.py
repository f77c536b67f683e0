"""How evidence for a question is found: the retrieval graph and its rules."""
