"""Which files are the project's: what git, .gitignore and .clusterddpignore say."""
