"""PriorZero: a language model's opinion of the actions of a text game, as the prior of UniZero's search."""
