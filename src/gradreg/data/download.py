"""Getting a named dataset from its home."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from gradreg.data.errors import DataError
from gradreg.data.named import NAMED, check_arrays, check_sums, prepared_path, read_prepared
from gradreg.data.npz import write_npz
from gradreg.data.optional import require
from gradreg.data.progress import DownloadBar

#: Bytes to read at once; pooch's own 1 024 would redraw the bar all the time.
CHUNK_SIZE = 2**16


def prepare(name: str, data_dir: Path, progress: bool = True) -> Path:
    """Download, check and decode a named dataset into ``<data_dir>/<name>.npz``; a file that is there is used.

    Args:
        name: ``mnist``, ``fashion_mnist``, ``cifar10``, ``cifar100`` or ``tinyimagenet``.
        data_dir: the archives go to its subfolder ``archives`` and may be deleted afterwards.
        progress: show a bar for each download.
    """
    if name not in NAMED:
        close = "".join(f" Did you mean {match}?" for match in get_close_matches(name, NAMED, n=1))
        raise DataError(f"{name!r} cannot be downloaded: choose one of {', '.join(NAMED)}.{close}")
    path = prepared_path(name, data_dir)
    if path.exists():
        read_prepared(name, data_dir)
        return path
    archives = data_dir / "archives" / name
    for file, md5 in NAMED[name].archives.items():
        download(NAMED[name].home + file, md5, archives / file, progress)
    arrays = NAMED[name].decode(archives)
    check_arrays(name, arrays, str(archives))
    check_sums(name, arrays, str(archives))
    write_npz(path, arrays)
    return path


def download(url: str, md5: str, path: Path, progress: bool) -> None:
    """Fetch one file, unless it is there with the right checksum."""
    pooch = require("pooch", "cli")
    pooch.get_logger().setLevel("WARNING")
    bar = DownloadBar(path.name) if progress else None
    try:
        downloader = pooch.HTTPDownloader(progressbar=bar or False, chunk_size=CHUNK_SIZE)
        pooch.retrieve(url, known_hash=f"md5:{md5}", fname=path.name, path=path.parent, downloader=downloader)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{url} could not be downloaded ({error}). Try again, or copy the archive, downloaded by other means, to {path}."
        ) from error
    finally:
        if bar is not None:
            bar.close()
