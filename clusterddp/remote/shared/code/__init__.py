"""Our own code packed into an archive together with its byte code."""
