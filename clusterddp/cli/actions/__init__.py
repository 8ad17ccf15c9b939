"""What each command does; its options are in cli/commands, which imports the action when it is called."""
