"""Commands and shells that the operator runs on this host outside of any run."""
