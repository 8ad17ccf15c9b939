"""What `clusterddp doctor` does besides checking facts: rehearsal, benchmark, `--explain`, the HTML page."""
