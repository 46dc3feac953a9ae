"""Searches in fewer and larger steps: what LightZero's find, found sooner."""
