"""The coordinator of a live run: it holds the engine and performs what it decides."""
