"""One command, one module: `clusterddp NAME` runs `NAME.command`."""
