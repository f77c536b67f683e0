"""Accounts, passwords and tokens."""
