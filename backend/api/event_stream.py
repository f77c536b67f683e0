"""A response of server-sent events that ends with ``[DONE]``, and with nothing after it."""

from sse_starlette import EventSourceResponse
from starlette.types import Message, Receive, Scope, Send

from backend.protocols.native import DONE


class EventStream(EventSourceResponse):
    """Keep-alives whose time comes while the end is being sent are left out: a client has read the whole by then."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        over = False

        async def until_done(message: Message) -> None:
            nonlocal over
            body = message.get("body", b"")
            if over and body:
                return
            over = over or body == DONE
            await send(message)

        await super().__call__(scope, receive, until_done)
