"""LightZero and DI-engine, seen through the Protocols of `core`. Nothing outside this folder imports the host."""
