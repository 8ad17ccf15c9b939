"""What each command does: `clusterddp NAME` calls `NAME_action.act` with the options of cli/commands."""
