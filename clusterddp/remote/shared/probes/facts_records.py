"""The record of the operation ``facts``: what the operator asks of a host before it plans a run."""

from typing import NamedTuple

from ..schema.fields import Fields
from ..schema.record import field, nested, record
from .python_query import PythonQuery


@record
class FactsRequest(NamedTuple):
    """Which facts are asked for, and of which Python."""

    job: PythonQuery = field(nested(PythonQuery), default=PythonQuery())
    fresh: bool = field(Fields.flag, default=False)  # torch is asked anew, whatever is cached
    packages: bool = field(Fields.flag, default=False)  # the interpreter's packages are listed
    alike: bool = field(Fields.flag, default=False)  # torch's cached answer for as many GPUs of the same models counts
