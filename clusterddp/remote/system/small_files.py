"""Small files of the kernel's and of settings, which may be missing or refuse to be read."""


def text_of(path: str, most: int = -1) -> str:
    """A file's text, at most so many characters; empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(most)
    except OSError:  # an entry in /sys that is not in use cannot even be read
        return ""
