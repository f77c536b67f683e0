"""``citewire serve`` that writes no event of a running turn to PostgreSQL: what it saves is what the log costs.

The product has no such switch, as a run could then not be read elsewhere or repaired. Hints to other workers, and the
end of a turn with its last events, are sent and stored as ever.
"""

from backend.chat.events import EventHub
from backend.cli import main


async def _count_as_stored(hub: EventHub) -> None:
    fresh = [log for log in hub._logs.values() if not log.sealed and log.stored < log.last_seq]
    for log in fresh:
        log.stored = log.last_seq
        log.wake()
    hub._wakeups.events(log.run_id for log in fresh)


if __name__ == "__main__":
    EventHub.flush = _count_as_stored
    main()
