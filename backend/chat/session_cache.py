"""Sessions in Redis: only ever a copy, told from a stale one by its version.

The messages of a session are a hash with one field a message, so that writing a turn through costs the same whatever
the length of the session. Every write compares versions inside Redis; a slow reader can never put an old copy over a
newer one. Where a copy was dropped for good a tombstone of a version stays for a while, so that a reader that began
before cannot bring the old copy back.
"""

from uuid import UUID

from backend.chat.records import StoredMessage
from backend.infra.cache import Cache
from backend.metrics import count_cache_read
from backend.schemas.chat import MessageInfo, SessionListResponse

PAGE = 500
"""Messages kept: the default page of a session."""

_TTL = 3600
_TOMBSTONE_TTL = 300

_PUT = """
local have, new = tonumber(redis.call('hget', KEYS[1], 'version') or '-1'), tonumber(ARGV[2])
if have > new or have == new and redis.call('hexists', KEYS[1], 'gone') == 0 then return 0 end
redis.call('del', KEYS[1])
redis.call('hset', KEYS[1], 'owner', ARGV[1], 'version', ARGV[2])
for i = 4, #ARGV, 2 do redis.call('hset', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('expire', KEYS[1], ARGV[3])
return 1
"""

_WRITE_THROUGH = """
redis.call('del', KEYS[2])
local have = redis.call('hget', KEYS[1], 'version')
if not have then return 0 end
if have ~= ARGV[1] then
  if tonumber(have) < tonumber(ARGV[2]) then
    redis.call('del', KEYS[1])
    redis.call('hset', KEYS[1], 'version', ARGV[2], 'gone', '1')
    redis.call('expire', KEYS[1], ARGV[3])
  end
  return 0
end
redis.call('hset', KEYS[1], 'version', ARGV[2])
for i = 5, #ARGV, 2 do
  redis.call('hset', KEYS[1], ARGV[i], ARGV[i + 1])
  redis.call('hdel', KEYS[1], tostring(tonumber(ARGV[i]) - tonumber(ARGV[4])))
end
redis.call('expire', KEYS[1], ARGV[3])
return 1
"""

_BURY = """
for i, key in ipairs(KEYS) do
  if tonumber(redis.call('hget', key, 'version') or '0') < tonumber(ARGV[i]) then
    redis.call('del', key)
    redis.call('hset', key, 'version', ARGV[i], 'gone', '1')
    redis.call('expire', key, ARGV[#ARGV])
  end
end
return 1
"""
"""A copy of the tombstone's own version may be put over it; nothing older."""

_READ = "return redis.call('hgetall', KEYS[1])"


Args = list[bytes | str | int | float]


def messages_key(user_id: UUID, session_id: str) -> str:
    """Where the messages of a session are."""
    return f"chat_messages:{user_id}:{session_id}"


def sessions_key(user_id: UUID) -> str:
    """Where the first page of a user's list is."""
    return f"chat_sessions:{user_id}"


class SessionCache:
    """Reads give ``None`` for a miss: absent, another version, another owner, unreadable, or Redis is gone."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._put = cache.script(_PUT)
        self._write_through = cache.script(_WRITE_THROUGH)
        self._bury = cache.script(_BURY)
        self._read = cache.script(_READ)

    async def messages(self, user_id: UUID, session_id: str, version: int) -> list[StoredMessage] | None:
        """The default page of the session, if the copy has exactly ``version``."""
        fields = await self._fields(messages_key(user_id, session_id), user_id, version)
        found = None if fields is None else _stored_messages(fields)
        count_cache_read("messages", hit=found is not None)
        return found

    async def put_messages(self, user_id: UUID, session_id: str, version: int, page: list[StoredMessage]) -> None:
        """Keep ``page`` unless a copy at least as new, or a tombstone, is there."""
        args = [str(user_id), version, _TTL, *_pairs(page)]
        await self._cache.run_script(self._put, [messages_key(user_id, session_id)], args)

    async def write_through(
        self, user_id: UUID, session_id: str, previous: int, version: int, changed: list[StoredMessage]
    ) -> None:
        """Bring a copy of version ``previous`` to ``version``; an older copy is buried, a newer one left alone.

        The list is forgotten in the same call; its version tells a copy that could not be dropped.
        """
        args = [previous, version, _TTL, PAGE, *_pairs(changed)]
        keys = [messages_key(user_id, session_id), sessions_key(user_id)]
        await self._cache.run_script(self._write_through, keys, args)

    async def bury(self, user_id: UUID, session_id: str, version: int, list_version: int) -> bool:
        """Replace the copies of the session and of the list by tombstones of these versions. Whether Redis did so."""
        keys = [messages_key(user_id, session_id), sessions_key(user_id)]
        return await self._cache.run_script(self._bury, keys, [version, list_version, _TOMBSTONE_TTL]) is not None

    async def list_page(self, user_id: UUID, version: int) -> SessionListResponse | None:
        """The first default page of the user's list, if the copy has exactly ``version``."""
        fields = await self._fields(sessions_key(user_id), user_id, version)
        page = None if fields is None else _stored_list(fields)
        count_cache_read("list", hit=page is not None)
        return page

    async def put_list_page(self, user_id: UUID, version: int, page: SessionListResponse) -> None:
        """Keep the first page unless a newer one is there."""
        args: Args = [str(user_id), version, _TTL, "page", page.model_dump_json()]
        await self._cache.run_script(self._put, [sessions_key(user_id)], args)

    async def drop_list(self, user_id: UUID) -> None:
        """Forget the list; its version tells a copy that could not be dropped."""
        await self._cache.delete(sessions_key(user_id))

    async def _fields(self, key: str, user_id: UUID, version: int) -> dict[str, bytes] | None:
        flat: list[bytes] | None = await self._cache.run_script(self._read, [key], [])
        if not flat:
            return None
        fields = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
        if "gone" in fields:
            return None
        if fields.pop("owner", None) != str(user_id).encode() or fields.pop("version", None) != str(version).encode():
            return None
        return fields


def _stored_messages(fields: dict[str, bytes]) -> list[StoredMessage] | None:
    try:
        found = [StoredMessage(int(name), MessageInfo.model_validate_json(value)) for name, value in fields.items()]
    except ValueError:
        return None
    return sorted(found, key=lambda item: item.seq)


def _stored_list(fields: dict[str, bytes]) -> SessionListResponse | None:
    try:
        return SessionListResponse.model_validate_json(fields.get("page", b""))
    except ValueError:
        return None


def _pairs(page: list[StoredMessage]) -> Args:
    pairs: Args = []
    for item in page:
        pairs += [item.seq, item.info.model_dump_json()]
    return pairs
