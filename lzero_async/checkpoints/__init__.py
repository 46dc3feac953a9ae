"""Resumable states on disk: whole or not at all, checked before use, and nothing in them is ever executed."""
