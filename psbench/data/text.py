"""A text as tokens, for models that predict the next one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from psbench.arrays import Array, Integers
from psbench.core.specification import parameter
from psbench.data.base import Dataset, DataSource
from psbench.errors import DataError
from psbench.seeds import Streams
from psbench.system.files import why_missing
from psbench.system.limits import check_memory

if TYPE_CHECKING:
    from torch import Tensor

#: which files of a folder are read
_SUFFIXES = (".txt", ".md", ".rst")
#: bytes of memory that a character takes while it is read: as a code, its place in the vocabulary, a token
_READING = 28


class Text(DataSource):
    """The tokens of a text file: a sample is `context` tokens, its target the same shifted by one.

    Samples follow each other in the text without overlapping. The last ones are for validation, so that what
    is validated on was not read before.

    Parameters
    ----------
    path : str
        A file in UTF-8, or a folder: its text files (.txt, .md, .rst) one after another. Empty: the English
        text that ships with every Python, the help topics in `pydoc_data.topics`, about 700,000 characters;
        another version of Python has another text.
    tokens : "characters" or "bytes"
        The vocabulary are those that occur in the file, in ascending order.

    Raises
    ------
    DataError
        If the file is missing, empty, not UTF-8, or too short for a sample.

    Notes
    -----
    Shardings by label go by the position in the text: `stratified` gives every worker samples of every tenth
    of it, `labels_per_worker` some tenths.

    Examples
    --------
    >>> text = Text()
    >>> text.decode(text.encode("a token"))
    'a token'
    """

    name: ClassVar[str] = "text"
    source: ClassVar[str] = "pydoc_data.topics, or any file"

    path: str = parameter(
        "", "a text file, or a folder of them; empty: the help topics that ship with Python"
    )
    tokens: Literal["characters", "bytes"] = parameter("characters", "unit of a token")
    context: int = parameter(64, "length of a sample", unit="tokens", ge=1, le=65_536)
    val_fraction: float = parameter(0.1, "share of the text, at its end, for validation", ge=0, lt=1)

    def load(self, streams: Streams) -> Dataset:
        """Return the samples, which are views of one tensor; nothing is drawn."""
        import torch

        codes = self._codes()
        found, places = np.unique(codes, return_inverse=True)
        length, count = self.context, (len(codes) - 1) // self.context
        train = count - round(count * self.val_fraction)
        if train < 1:
            raise DataError(
                f"{self._where}: has {len(codes)} {self.tokens}, but a sample takes {length} tokens and "
                "the next one; lower context"
            )
        tokens = torch.from_numpy(places.astype(np.int64))
        x = tokens[: count * length].view(count, length)
        y = tokens[1 : count * length + 1].view(count, length)
        return Dataset(self.name, x[:train], y[:train], x[train:], y[train:], self._names(found))

    def vocabulary(self) -> tuple[str, ...]:
        """Return the texts of tokens 0, 1, ...: one character each, or a byte as 0x61."""
        return self._names(np.unique(self._codes()))

    def encode(self, text: str) -> Tensor:
        """Return the tokens of a text, int64, (length,).

        Raises
        ------
        DataError
            If some character or byte does not occur in the file.
        """
        import torch

        try:
            given = text.encode()
        except UnicodeEncodeError as error:  # half a pair of UTF-16, which no file in UTF-8 has
            raise DataError(f"{self._where}: {text[error.start]!r} does not occur in it") from None
        known, codes = np.unique(self._codes()), self._codes_of(given)
        places = np.minimum(np.searchsorted(known, codes), len(known) - 1)
        strange = codes[known[places] != codes]
        if len(strange):
            raise DataError(f"{self._where}: {self._names(strange[:1])[0]!r} does not occur in it")
        return torch.from_numpy(places.astype(np.int64))

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of some tokens.

        Raises
        ------
        DataError
            If some token is not in the vocabulary.
        """
        known = np.unique(self._codes())
        places = np.array([int(token) for token in tokens], dtype=np.int64)
        strange = places[(places < 0) | (places >= len(known))]
        if len(strange):
            raise DataError(f"{self._where}: has tokens 0 to {len(known) - 1}, but not {strange[0]}")
        codes = known[places]
        if self.tokens == "bytes":
            return codes.astype(np.uint8).tobytes().decode(errors="replace")
        return "".join(map(chr, codes.tolist()))

    @property
    def _where(self) -> str:
        return self.path or "pydoc_data.topics"

    def _names(self, codes: Integers | Array) -> tuple[str, ...]:
        return tuple(map(f"{{:{'#04x' if self.tokens == 'bytes' else 'c'}}}".format, codes.tolist()))

    def _codes(self) -> Array:
        """Return the code of each character or byte of the text."""
        content = _read(self.path)
        if not content:
            raise DataError(f"{self._where}: is empty")
        return self._codes_of(content)

    def _codes_of(self, content: bytes) -> Array:
        if self.tokens == "bytes":
            return np.frombuffer(content, dtype=np.uint8)
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self._where}: byte {error.start} is not UTF-8; convert the file, or set tokens: bytes"
            ) from None
        return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def _read(path: str) -> bytes:
    if not path:
        from pydoc_data.topics import topics

        return "\n".join(topics.values()).encode()
    file = Path(path).expanduser()
    if file.is_dir():
        return _read_folder(file)
    if problem := why_missing(file):
        raise DataError(problem)
    try:
        check_memory(_READING * file.stat().st_size, f"data 'text': {file}", "use a shorter text")
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from None


def _read_folder(folder: Path) -> bytes:
    """Return all text files of a folder and its subfolders, in order of their paths, joined by newlines."""
    files = sorted(each for each in folder.rglob("*") if each.suffix in _SUFFIXES and each.is_file())
    if not files:
        raise DataError(f"{folder}: no file in it ends in {' or '.join(_SUFFIXES)}; name a text file")
    total = sum(each.stat().st_size for each in files)
    check_memory(_READING * total, f"data 'text': {folder}", "use fewer files")
    try:
        return b"\n".join(each.read_bytes() for each in files)
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from None
