"""How a host finds the training interpreter: settings of its inventory that several operations are given."""

from typing import Dict, NamedTuple, Optional, Tuple

from ..schema.fields import Fields
from ..schema.record import by_key, field, record


@record
class PythonQuery(NamedTuple):
    """The interpreter that workers run, and the environment in which it is looked for."""

    setup: Tuple[str, ...] = field(Fields.texts, default=())  # lines of shell
    env: Dict[str, str] = field(by_key(Fields.text), default={})  # clusterddp_env
    python: Optional[str] = field(Fields.maybe_text, default=None)  # clusterddp_python
    workdir: Optional[str] = field(Fields.maybe_text, default=None)
