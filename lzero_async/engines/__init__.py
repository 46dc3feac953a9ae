"""Where a role's work is done: child processes and Ray actors. Knows nothing of LightZero."""
