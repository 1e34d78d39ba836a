"""The site changes one thing in a page: links out of `docs/` lead to the repository, as they do where one reads the page there."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, *, config: Any, **_: object) -> str:
    """Lets links such as `../examples/ddp.py` lead to the repository; called by MkDocs for each page."""
    return re.sub(r"\]\(\.\./(?!reference/)", f"]({config.extra['source']}/blob/main/", markdown)
