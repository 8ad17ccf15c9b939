"""Which files are the project's: what git and .gitignore say."""
