"""Numbers with what they count: ``1 rank``, ``2 ranks``. Pure."""


def counted(number: int, what: str, several: str = "") -> str:
    """A number and its noun.

    Args:
        number: How many.
        what: The noun for one.
        several: The noun for any other number; by default with an ``s`` behind it.
    """
    return "%d %s" % (number, what if number == 1 else several or what + "s")
