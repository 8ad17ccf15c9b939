"""Our own code as an archive, with its byte code."""
