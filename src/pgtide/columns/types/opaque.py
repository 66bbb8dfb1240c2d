"""Types that no other module reads.

Wire: unknown. Arrow: binary, the bytes as sent, in whichever form. Types that Postgres only sends as
text are not opaque: `text` reads them.
"""

from __future__ import annotations

import pyarrow as pa

from pgtide.columns.kernel import Kernel
from pgtide.columns.types import bytea


def kernel(type_name: str, modifier: int) -> Kernel:
    return Kernel(type_name, pa.binary(), bytea.decode, bytea.decode)
