"""One run: a function of its config."""
