"""Stop a worker where it is, for ``clusterddp debug``: its Python runs this file when ``sys.remote_exec`` says so.

Its variables are its own, and the frame below is the one that was interrupted. Nothing is imported that the worker has
not: the hook's functions are found by the function for ``breakpoint()`` that it has put in place.
"""  # noqa: INP001 - a data file, run by its path

import sys

hook = getattr(sys.__breakpointhook__, "__globals__", {})  # without, where the host's own code has put one in place
if "load_stops" in hook:
    try:
        hook["load_stops"](hook["_worker"]).stop_on_request(sys._getframe(1))  # noqa: SLF001 - the documented way
    except Exception as error:  # noqa: BLE001 - the script goes on
        sys.stderr.write("clusterddp: it is not stopped for `clusterddp debug`: %s\n" % error)
