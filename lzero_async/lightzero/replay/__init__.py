"""The replay buffer: what it holds, what is drawn from it, and what is written down of it."""
