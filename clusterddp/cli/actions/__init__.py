"""What each command does, once its options are read: cli/commands declares them and imports one of these to do it."""
