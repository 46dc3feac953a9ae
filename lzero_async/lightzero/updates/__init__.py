"""The learner's updates: cheaper where they can be, and left out where they would do harm."""
