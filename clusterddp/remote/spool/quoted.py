"""What records may quote of a worker, without the run's secrets: the end of its output, its exception's record.

    secrets.json   their values, while the run may start workers
    quoting/       is there as long as something may be quoted that was not compared with them
    quoted/        when the values are removed: the ends of those output files that hold one, redacted

Output files belong to the user and are not changed. Later readers have no secret values to compare with any more, so
redacted copies of the ends are kept.
"""

import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, Tuple

from ..shared.run.plan import SECRETS
from ..shared.schema.json_text import read_json
from ..system.bootstrap import write_private
from ..system.small_files import open_regular_in

if TYPE_CHECKING:
    from ..shared.text.redaction import Redaction

QUOTING, QUOTED = "quoting", "quoted"
SERVER_LOG = "fork-server.log"  # what packages print that are imported for all workers
MAX_QUOTED = 32 << 10  # bytes of an output file's end that are ever quoted
MAX_RECORD_TEXT = 60_000  # characters of a text that may have been cut (LONGEST in worker/hook/sitecustomize.py)


def keep_secrets(spool: str, data: bytes) -> None:
    """Write a spool's file of secrets: JSON, their values by name."""
    os.makedirs(os.path.join(spool, QUOTING), 0o700, exist_ok=True)
    write_private(os.path.join(spool, SECRETS), data, durable=False)


def redaction_of(spool: str) -> "Redaction":
    """A ``Redaction`` of a spool's secret values; an empty one after they were removed."""
    from ..shared.text.redaction import Redaction  # most processes never ask

    try:
        values: Dict[str, str] = read_json(os.path.join(spool, SECRETS)) or {}
    except (OSError, ValueError):  # half a file, after a full disk: no worker has received the values
        values = {}
    return Redaction(values.values())


def output_end(spool: str, name: str, limit: int) -> Tuple[str, bool]:
    """Return the last ``limit`` bytes of ``logs/<name>`` with secrets removed, and whether they are all of the file.

    Empty if the file is missing.
    """
    redaction = redaction_of(spool)
    if redaction.forms:
        text, whole = _redacted_end(spool, name, redaction, max(limit, MAX_QUOTED))
        return text[-limit:], whole and len(text) <= limit
    limit = quotable(spool, limit)
    redacted = file_end(os.path.join(spool, QUOTED, name), limit)
    return redacted if redacted[0] else file_end(os.path.join(spool, "logs", name), limit)


def quotable(spool: str, limit: int) -> int:
    """How many of the last ``limit`` bytes of an output file may be quoted.

    After the end of a run that had secrets, these are MAX_QUOTED: no more was compared with them, or nothing at all.
    """
    if redaction_of(spool).forms:
        return limit
    if os.path.exists(os.path.join(spool, QUOTING)):
        return 0
    return min(limit, MAX_QUOTED) if os.path.exists(os.path.join(spool, QUOTED)) else limit


def exception_record(spool: str, key: str) -> Any:
    """The JSON value of ``errors/<key>.json``, written by the start-up hook or by torch; None if it is missing.

    Raises OSError or ValueError if it cannot be read, or is half a record.
    """
    return redaction_of(spool).value(read_json(os.path.join(spool, "errors", key + ".json")), MAX_RECORD_TEXT)


def redact_record(path: str, redaction: "Redaction") -> None:
    """Replace a record that holds secret values by one without them; remove it where it cannot be replaced."""
    try:
        with open(path, "rb") as stream:
            text = stream.read().decode("utf-8", "surrogateescape")
    except OSError:  # there is none
        return
    import json

    try:
        value = json.loads(text)
        redacted = redaction.value(value, MAX_RECORD_TEXT)
        changed, body = redacted != value, json.dumps(redacted)
    except (ValueError, RecursionError):  # half a record
        body = redaction.text(text, ends=False)
        changed = body != text
    if not changed:
        return
    try:
        write_private(path, body.encode("utf-8", "surrogateescape"), durable=False)
    except OSError:  # a full disk
        os.unlink(path)


def drop_secrets(spool: str) -> None:
    """Remove the secret values, after redacting all that may be quoted of the run from now on.

    Raises OSError if there are none, or their file cannot be removed; then quotes go on being redacted by it.
    """
    redaction = redaction_of(spool)
    os.unlink(os.path.join(spool, SECRETS))  # first: on a full disk that makes room
    try:
        _redact_quotes(spool, redaction)
        os.rename(os.path.join(spool, QUOTING), os.path.join(spool, QUOTED))
    except OSError:  # `quoting/` stays, so nothing is quoted of this run any more
        pass


def _redact_quotes(spool: str, redaction: "Redaction") -> None:
    records = (path for folder in ("errors", "torch") for path in _files(os.path.join(spool, folder)))
    for path in (*records, os.path.join(spool, SERVER_LOG)):
        if path.endswith((".json", SERVER_LOG)):
            redact_record(path, redaction)
    for path in _files(os.path.join(spool, "logs")):
        name = os.path.basename(path)
        redacted, _ = _redacted_end(spool, name, redaction)
        if name.endswith((".out", ".err")) and redacted != file_end(path, MAX_QUOTED)[0]:
            write_private(os.path.join(spool, QUOTING, name), redacted.encode("utf-8", "replace"), durable=False)


def _redacted_end(spool: str, name: str, redaction: "Redaction", limit: int = MAX_QUOTED) -> Tuple[str, bool]:
    text, is_whole = file_end(os.path.join(spool, "logs", name), limit)
    return redaction.text(text, begins=is_whole), is_whole


def file_end(path: str, limit: int) -> Tuple[str, bool]:
    """The last ``limit`` bytes of a file as text, and whether they are all of it; no link is followed."""
    try:
        with open(path, "rb", opener=open_regular_in) as stream:
            size = os.fstat(stream.fileno()).st_size
            stream.seek(max(0, size - limit))
            return stream.read(limit).decode(errors="replace"), size <= limit
    except OSError:
        return "", True


def _files(folder: str) -> Iterator[str]:
    for base, _, names in os.walk(folder):
        yield from (os.path.join(base, name) for name in names)
