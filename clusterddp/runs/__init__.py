"""Starting, following, judging and stopping a run, as the operator sees it."""
