"""Published experiments as data, each number beside the configuration that should yield it."""
