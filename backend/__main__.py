"""``python -m backend`` is ``citewire``."""

from backend.cli import main

main()
