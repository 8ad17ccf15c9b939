"""A run as the operator sees it: started, followed, judged, stopped."""
