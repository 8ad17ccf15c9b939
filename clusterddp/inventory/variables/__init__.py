"""The variables of clusterddp: how each is declared, read and named."""
