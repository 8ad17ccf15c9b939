"""Manifests of folders, differences between manifests, and names of workdirs."""
