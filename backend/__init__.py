"""Citewire: a chat backend that answers from documents, with citations that resolve."""
