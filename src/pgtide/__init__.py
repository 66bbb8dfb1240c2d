"""pgtide: change data capture for Postgres, on Spark."""

__version__ = "0.1.0"
