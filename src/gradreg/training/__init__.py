"""One run: a function of its config."""

from gradreg.training.config import RunConfig
from gradreg.training.record import RunRecord
from gradreg.training.run import Trained, run

__all__ = ["RunConfig", "RunRecord", "Trained", "run"]
