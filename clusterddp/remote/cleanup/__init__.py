"""What is removed from a host: old spools by retention, all of ours by `down`."""
