"""One run, or a fleet of them: a function of its config."""

from gradreg.training.config import RunConfig
from gradreg.training.fleet import Fleet, shape_of
from gradreg.training.record import RunRecord
from gradreg.training.run import Trained, run

__all__ = ["Fleet", "RunConfig", "RunRecord", "Trained", "run", "shape_of"]
