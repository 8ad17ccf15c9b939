"""A duration in one unit, as a sentence has it. Pure."""


def short_duration(seconds: float) -> str:
    """Seconds roughly, as text in one unit: ``4 s``, ``12 min``, ``3 h``, ``2 d``."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds // unit:.0f} {name}"
    return f"{seconds:.0f} s"


def ago(seconds: float) -> str:
    """Format the time since an event: ``now``, ``4 s ago``, ``12 min ago``."""
    return "%s ago" % short_duration(seconds) if seconds >= 1 else "now"
