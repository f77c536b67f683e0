"""The native stream: each event is ``data: <one-line JSON>`` and a blank line, LF only; the end is ``data: [DONE]``."""

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"


def frame(data: bytes, seq: int | None = None) -> bytes:
    """One event. With ``seq`` it carries an ``id`` line, which a client gives back as ``Last-Event-ID``."""
    if seq is None:
        return b"data: %b\n\n" % data
    return b"id: %d\ndata: %b\n\n" % (seq, data)
