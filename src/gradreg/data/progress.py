"""The bar that shows how far a download is."""

from __future__ import annotations

from typing import Any

from gradreg.data.optional import require


class DownloadBar:
    """A rich progress bar with the four names that pooch expects of one: ``total``, ``update``, ``reset``, ``close``."""

    def __init__(self, title: str) -> None:
        self.total = 0
        rich = require("rich.progress", "cli")
        console = require("rich.console", "cli").Console(stderr=True)
        columns = (
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.DownloadColumn(),
            rich.TimeRemainingColumn(),
        )
        self._progress: Any = rich.Progress(*columns, console=console)
        self._task = self._progress.add_task(title, total=None)

    def update(self, num_bytes: int) -> None:
        """Count bytes that have arrived."""
        self._progress.start()
        self._progress.update(self._task, advance=num_bytes, total=self.total)

    def reset(self) -> None:
        """Begin again from nothing: pooch does so at the end, to fill the bar."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Leave the bar as it is; also after a failure, and more than once."""
        if self._progress.live.is_started:
            self._progress.stop()
