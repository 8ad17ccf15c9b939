"""What both sides say when old or all files of clusterddp are listed and removed on hosts."""
