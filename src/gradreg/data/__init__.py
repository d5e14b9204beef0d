"""Where examples come from: embedded, named and own datasets, their splits and their scaling."""

from gradreg.data.dataset import Dataset
from gradreg.data.doubts import check_subset, doubts
from gradreg.data.download import prepare
from gradreg.data.encode import encode_images, encode_rows
from gradreg.data.errors import DataError
from gradreg.data.load import DatasetInfo, available, find_data_dir, load
from gradreg.data.scaling import Scaler
from gradreg.data.splits import Split, default_sizes, split

__all__ = [
    "DataError",
    "Dataset",
    "DatasetInfo",
    "Scaler",
    "Split",
    "available",
    "check_subset",
    "default_sizes",
    "doubts",
    "encode_images",
    "encode_rows",
    "find_data_dir",
    "load",
    "prepare",
    "split",
]
