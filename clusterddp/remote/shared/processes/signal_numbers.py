"""The numbers and handlers of signals, without the module ``signal``.

Making that module's enums takes half as long as starting Python, and each command would pay it on every host.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal
else:
    try:
        import _signal as signal  # what it is made of: the same functions, and numbers in place of enums
    except ImportError:  # another Python than CPython
        import signal

__all__ = ["signal"]
