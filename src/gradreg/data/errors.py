"""The error that every loader raises on data it cannot use."""


class DataError(ValueError):
    """The data are missing, damaged or unusable; the message gives the value, the reason and the fix."""
