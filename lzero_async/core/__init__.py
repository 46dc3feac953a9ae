"""The schedule of an asynchronous run, in terms of the standard library alone: no torch, no LightZero."""
