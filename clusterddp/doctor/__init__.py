"""What `clusterddp doctor` does beyond judging facts: the rehearsal, the bench, `--explain`, the HTML page."""
