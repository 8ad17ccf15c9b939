"""``python -m clusterddp``: the command line."""

from clusterddp.cli.main import main

main()
