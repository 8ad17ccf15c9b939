"""What the operator asks of a host before it plans a run: the records of the operation ``facts``."""

from typing import Dict, NamedTuple, Optional, Tuple

from ..schema.fields import Fields
from ..schema.record import by_key, field, nested, record


@record
class PythonQuery(NamedTuple):
    """The interpreter that workers run, and the environment in which it is looked for."""

    setup: Tuple[str, ...] = field(Fields.texts, default=())  # lines of shell
    env: Dict[str, str] = field(by_key(Fields.text), default={})  # clusterddp_env
    python: Optional[str] = field(Fields.maybe_text, default=None)  # clusterddp_python
    workdir: Optional[str] = field(Fields.maybe_text, default=None)


@record
class FactsRequest(NamedTuple):
    """Which facts are asked for, and of which Python."""

    job: PythonQuery = field(nested(PythonQuery), default=PythonQuery())
    fresh: bool = field(Fields.flag, default=False)  # torch is asked anew, whatever is cached
    packages: bool = field(Fields.flag, default=False)  # the interpreter's packages are listed
    alike: bool = field(Fields.flag, default=False)  # torch's cached answer for as many GPUs of the same models counts
