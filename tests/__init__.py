"""Tests of clusterddp."""
