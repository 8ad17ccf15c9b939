"""The request that tells a URL one event of a run (``--notify``); both sides send it."""

import base64
import http.client
import json
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import IO, Any, Dict, Mapping, Optional, Tuple
from urllib.parse import unquote, urlsplit, urlunsplit

from .run_record import RunRecord
from .run_state import ENDED_STATES, end_event

END_EVENTS = [end_event(state) for state in ENDED_STATES]  # events that are the last of a run


def notice_of(run: str, record: RunRecord, event: str, text: str, now: int) -> Dict[str, Any]:
    """One event of a run as it is sent: what happened, and in which run.

    ``record`` is that of the run's latest attempt, without secret values. If ``event`` is one of END_EVENTS it is the
    run's end, and the line ``text`` is the verdict. ``now`` is when it happened, in ns by the operator's clock.
    """
    return {
        "run": run,
        "event": event,
        "text": text,
        "name": record.name,
        "script": record.script,
        "verdict": text if event in END_EVENTS else None,
        "duration": None if record.started is None else round(max(0, now - record.started) / 1e9, 1),
        "hosts": list(record.hosts),
    }


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Sends a notice to where its server says that the webhook has moved.

    urllib would ask there by GET, without the notice, and take the answer for a success. Only 303, and 302 to another
    host, mean that the notice was taken, and the answer lies there: Google's Apps Script says it so. No redirect leads
    from HTTPS to HTTP: it counts as a failure.
    """

    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302  # unknown to Python before 3.11

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> Optional[urllib.request.Request]:
        """The request that follows an answer with this code; None: there is none."""
        asked, place = urlsplit(req.full_url), urlsplit(newurl)
        if place.scheme not in (asked.scheme, "https"):
            return None
        if code == HTTPStatus.SEE_OTHER or (code == HTTPStatus.FOUND and place.hostname != asked.hostname):
            return super().redirect_request(req, fp, code, msg, headers, newurl)
        return urllib.request.Request(newurl, req.data, req.headers)  # noqa: S310 - http or https alone


def request_of(url: str, notice: Mapping[str, Any]) -> urllib.request.Request:
    """A POST of ``notice`` as JSON. User and password of the URL go as Basic authorization, which no redirect has."""
    plain, authorization = _split_account(url)
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(plain, json.dumps(notice).encode(), head)  # noqa: S310 - http or https alone
    if authorization:
        request.add_unredirected_header("Authorization", "Basic " + authorization)
    return request


def post(url: str, notice: Mapping[str, Any], patience: float) -> Tuple[str, bool]:
    """Send a notice as JSON; ``patience`` is the timeout in seconds.

    Returns why it failed (empty if it did not; never with the URL), and whether another try may help.
    """
    try:
        with urllib.request.build_opener(_Redirects).open(request_of(url, notice), timeout=patience):
            return "", False
    except urllib.error.HTTPError as error:
        error.close()
        return "HTTP %d" % error.code, error.code >= 500 or error.code == 429
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        return getattr(reason, "strerror", None) or type(reason).__name__, isinstance(error, OSError)


def secrets_of(url: str) -> Tuple[str, ...]:
    """The parts of a URL that no log may contain: the URL itself, and its user's password and authorization."""
    try:
        _, authorization = _split_account(url)
        password = urlsplit(url).password or ""
    except ValueError:
        return (url,)
    return tuple(filter(None, (url, password, unquote(password), authorization)))


def _split_account(url: str) -> Tuple[str, str]:
    """A URL without user and password, and these as Basic authorization writes them; empty where there are none."""
    parts = urlsplit(url)
    account, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, ""
    user, _, password = account.partition(":")
    data = "%s:%s" % (unquote(user), unquote(password))
    return urlunsplit(parts._replace(netloc=host)), base64.b64encode(data.encode()).decode()
