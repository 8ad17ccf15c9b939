"""One command, one module: `clusterddp NAME` has the options of `NAME.command`."""
