"""Numbers with what they count: ``1 rank``, ``2 ranks``. Pure."""


def counted(number: int, what: str, several: str = "") -> str:
    """A number and its noun, ``what`` for one and ``several`` (by default with an ``s``) for any other number."""
    return "%d %s" % (number, what if number == 1 else several or what + "s")
