"""Socket behaviour that asyncio does not offer."""

import asyncio
import socket
import struct


def reset(transport: asyncio.BaseTransport) -> None:
    """Ends a TCP connection with RST instead of FIN."""
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if isinstance(transport, asyncio.WriteTransport):
        transport.abort()
