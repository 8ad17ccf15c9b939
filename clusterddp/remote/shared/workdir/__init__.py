"""A folder's manifest, two manifests compared, the names of workdirs."""
