"""Records: one JSON file a run, named by the hash of its config."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gradreg.training.config import RunConfig
from gradreg.training.record import RunRecord


@dataclass(frozen=True)
class Store:
    """A folder of records. Two folders merge by copying files."""

    folder: Path

    def path(self, config: RunConfig) -> Path:
        return self.folder / f"{config.key}.json"

    def has(self, config: RunConfig) -> bool:
        return self.path(config).is_file()

    def save(self, record: RunRecord) -> Path:
        """Write the record whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(record.config)
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            unfinished.write_text(json.dumps(record.to_data(), allow_nan=False))
            unfinished.replace(path)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            raise OSError(
                f"{path} cannot be written ({error.strerror}). Finished runs are kept: the same command goes on from there."
            ) from error
        return path

    def load(self, config: RunConfig) -> RunRecord:
        return self._read(self.path(config))

    def all(self) -> Iterator[RunRecord]:
        """Every record in the folder, in the order of file names."""
        return map(self._read, sorted(self.folder.glob("*.json")))

    def _read(self, path: Path) -> RunRecord:
        try:
            return RunRecord.from_data(json.loads(path.read_text()))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is no record of this version ({error}): remove it, and the run is made again."
            ) from error


__all__ = ["RunRecord", "Store"]
