"""The coordinator of a live run: the engine, and the driver that performs its actions."""
