"""``python -m clusterddp``: the command line."""

from clusterddp.cli.entry import main

main()
