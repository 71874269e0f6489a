"""What comes from the page: each message goes to its handler, and no failure prints into a cell."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from psbench.errors import PsbenchError

Handlers: TypeAlias = Mapping[str, Callable[[dict[str, Any]], Any]]


def dispatch(
    handlers: Handlers, answer: Callable[[str, bool], None], show_error: Callable[[str], None]
) -> Callable[[Any, Any, Any], None]:
    """Return a callable that receives the page's messages.

    Parameters
    ----------
    handlers : mapping of kind to callable
    answer : callable
        Called with what the user did wrong, in one line, and True.
    show_error : callable
        Called with the traceback of a failure of the panel itself.
    """

    def receive(_widget: Any, content: Any, _buffers: Any) -> None:
        handler = handlers.get(content.get("kind", "")) if isinstance(content, dict) else None
        if handler is None:
            return
        try:
            handler(content)
        except (PsbenchError, OSError) as error:
            answer(str(error), True)
        except Exception:  # a message must never print into a cell
            show_error(traceback.format_exc())

    return receive
