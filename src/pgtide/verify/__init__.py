"""`pgtide verify`: source against sink, row by row, under live writes."""

from pgtide.verify.result import TableResult, VerifyResult
from pgtide.verify.run import Progress, verify

__all__ = ["Progress", "TableResult", "VerifyResult", "verify"]
