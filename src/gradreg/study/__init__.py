"""Many runs: configs in, records out, statistics from records."""
