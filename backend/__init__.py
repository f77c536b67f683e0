"""Citewire: a chat backend that answers from documents, with citations that resolve."""

__version__ = "0.1.0"
