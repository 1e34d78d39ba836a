"""The site changes one thing in a page: links out of `docs/` lead to the repository, as they do where one reads the page there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: object) -> str:
    """Lets links such as `../examples/ddp.py` lead to the repository; called by MkDocs for each page."""
    docs = Path(config.docs_dir).resolve()

    def linked(link: re.Match[str]) -> str:
        place = (docs / page.file.src_uri).parent.joinpath(link[1]).resolve()
        if place.is_relative_to(docs):
            return link[0]
        return f"]({config.extra['source']}/blob/main/{place.relative_to(docs.parent)}"

    return re.sub(r"\]\((\.\./[^)#]*)", linked, markdown)
