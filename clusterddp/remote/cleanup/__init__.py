"""Remove files from a host: old spools by retention, everything of clusterddp by `down`."""
