"""Data from files: every test makes its own small files, none downloads."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from psbench.data import CIFAR10, CIFAR100, MNIST, CropAndFlip, FashionMNIST, Folder, folder
from psbench.data.cifar import FINE, SUPERCLASSES, coarse_of_fine
from psbench.data.mnist import read_idx
from psbench.errors import DataError, ParameterError
from psbench.seeds import Streams

STREAMS = Streams(0)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def pictures(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return Streams(seed).generator("pictures").integers(0, 256, (count, *shape), dtype=np.uint8)


@pytest.fixture
def datasets():
    """Those of torchvision, whose import is slow: not in every process that collects tests."""
    import torchvision.datasets

    return torchvision.datasets


@pytest.fixture
def mnist(tmp_path):
    """A folder with ten training and five validation images in torchvision's layout."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 10), ("t10k", 5)):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(idx(pictures(count, 28, 28)))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(count, dtype=np.uint8) % 10))
    return tmp_path


def pack(folder) -> None:
    for path in list((folder / "MNIST" / "raw").iterdir()):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


@pytest.mark.parametrize("packed", [False, True])
def test_mnist(mnist, packed):
    if packed:
        pack(mnist)
    files = sorted((mnist / "MNIST" / "raw").iterdir())
    data = MNIST(root=str(mnist)).load(STREAMS)
    expected = (torch.from_numpy(pictures(10, 1, 28, 28)).float() / 255 - 0.1307) / 0.3081
    torch.testing.assert_close(data.train_x, expected)
    assert data.train_y.tolist() == list(range(10))
    assert data.val_x.shape == (5, 1, 28, 28)
    assert data.augment is None
    assert sorted((mnist / "MNIST" / "raw").iterdir()) == files


def test_fashion_mnist_lies_beside_mnist(mnist, datasets):
    (mnist / "MNIST").rename(mnist / "FashionMNIST")
    data = FashionMNIST(root=str(mnist)).load(STREAMS)
    assert data.classes == tuple(datasets.FashionMNIST.classes)


def test_the_environment_names_the_folder(mnist, monkeypatch):
    monkeypatch.setenv("PSBENCH_DATA", str(mnist))
    assert len(MNIST().load(STREAMS).train_x) == 10


def test_our_reader_and_that_of_torchvision_agree(mnist, datasets):
    path = mnist / "MNIST" / "raw" / "train-images-idx3-ubyte"
    assert np.array_equal(read_idx(path, 3), datasets.mnist.read_image_file(str(path)).numpy())


def test_a_packed_file_takes_no_memory_for_what_it_only_says(mnist, monkeypatch):
    """A file of 3 MB that says it unpacks to 10 GB, and one that does, are refused before that is read."""
    pack(mnist)
    path = mnist / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    asked = []
    monkeypatch.setattr("psbench.data.mnist._read_most", lambda file, most: asked.append(most) or bytearray())
    head = struct.pack(">BBBB3I", 0, 0, 8, 3, 10, 10**4, 10**5)
    path.write_bytes(gzip.compress(head + bytes(100)))
    with pytest.raises(
        DataError, match="holds fewer values"
    ):  # 1,032 is the most that deflate makes of a byte
        read_idx(path, 3)
    path.write_bytes(gzip.compress(head) + bytes(10**7))
    monkeypatch.setattr("psbench.system.limits.available_memory", lambda: 10**9)
    with pytest.raises(ParameterError, match="would need about 60 GB of memory"):
        read_idx(path, 3)
    assert asked == []


def test_missing_files_say_how_to_get_them(tmp_path):
    with pytest.raises(
        DataError, match=r"train-images-idx3-ubyte is missing.*download: true.*PSBENCH_DATA"
    ) as e:
        MNIST(root=str(tmp_path)).load(STREAMS)
    assert str(tmp_path) in str(e.value)


def test_download_is_left_to_torchvision(mnist, tmp_path, monkeypatch, datasets):
    asked = []

    def fetch(root, download):
        asked.append((root, download))
        (mnist / "MNIST").rename(tmp_path / "new" / "MNIST")

    (tmp_path / "new").mkdir()
    monkeypatch.setattr(datasets, "MNIST", fetch)
    data = MNIST(root=str(tmp_path / "new"), download=True).load(STREAMS)
    assert len(data.train_x) == 10
    assert asked == [(str(tmp_path / "new"), True)]


def test_a_failed_download_is_a_data_error(tmp_path, monkeypatch, datasets):
    def fetch(root, download):
        raise RuntimeError("no route")

    monkeypatch.setattr(datasets, "MNIST", fetch)
    with pytest.raises(DataError, match=r"mnist: download to .* failed: no route"):
        MNIST(root=str(tmp_path), download=True).load(STREAMS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            idx(pictures(10, 28, 28))[:-100],
            "holds fewer values, but its header declares 10 x 28 x 28; it is truncated",
        ),
        (idx(pictures(10, 28, 28)) + b"x", "holds more than 7,840 values"),
        (struct.pack(">BBBB65I", 0, 0, 8, 65, *[1] * 65) + b"x", "not an IDX file of bytes in 3 dimensions"),
        (struct.pack(">BBBB3I", 0, 0, 8, 3, 10, 2**32 - 1, 2**32 - 1), "its header declares 10 x 4294967295"),
        (struct.pack(">BBBB3I", 0, 0, 8, 3, 10, 0, 2**32 - 1), "its header declares 10 x 0 x 4294967295"),
        (b"<html>not found</html>", "not an IDX file of bytes"),
        (b"", "not an IDX file of bytes"),
        (b"\0\0\x08\x03\0\0", "not an IDX file of bytes"),
        (idx(pictures(9, 28, 28)), "has 9 images, but there are 10 labels"),
    ],
)
def test_damaged_files_are_named(mnist, content, message):
    path = mnist / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        MNIST(root=str(mnist)).load(STREAMS)
    assert str(path) in str(error.value)
    assert "again" in str(error.value)


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:40], lambda raw: b"not packed", lambda raw: raw[:30] + raw]
)
def test_damaged_packed_files_are_named(mnist, damage):
    pack(mnist)
    path = mnist / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: cannot be read"):
        MNIST(root=str(mnist)).load(STREAMS)


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """Return a function that writes a small CIFAR and makes its checksums the published ones."""

    def write(reader, batches, labels_key, names_key, names):
        folder = tmp_path / reader.base_folder
        folder.mkdir()
        sums = {}

        def store(file, content):
            raw = pickle.dumps(content)
            (folder / file).write_bytes(raw)
            sums[file] = hashlib.md5(raw, usedforsecurity=False).hexdigest()

        for number, (file, labels) in enumerate(batches.items()):
            flat = pictures(len(labels), 3072, seed=number)
            store(file, {"data": flat, labels_key: list(labels)})
        store(reader.meta["filename"], {names_key: list(names)})
        train = [[file, sums[file]] for file in batches if "test" not in file]
        test = [[file, sums[file]] for file in batches if "test" in file]
        monkeypatch.setattr(reader, "train_list", train)
        monkeypatch.setattr(reader, "test_list", test)
        monkeypatch.setattr(reader, "meta", {**reader.meta, "md5": sums[reader.meta["filename"]]})
        return tmp_path

    return write


TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@pytest.fixture
def cifar10(cifar, datasets):
    batches = {"data_batch_1": range(10), "data_batch_2": range(10), "test_batch": range(5)}
    return cifar(datasets.CIFAR10, batches, "labels", "label_names", TEN)


@pytest.fixture
def cifar100(cifar, datasets):
    return cifar(
        datasets.CIFAR100, {"train": range(100), "test": range(5)}, "fine_labels", "fine_label_names", FINE
    )


def test_cifar10(cifar10):
    data = CIFAR10(root=str(cifar10), normalise="none").load(STREAMS)
    assert data.train_x.shape == (20, 3, 32, 32)
    first = torch.from_numpy(pictures(10, 3, 32, 32)).float() / 255
    torch.testing.assert_close(data.train_x[:10], first)
    assert data.train_y.tolist() == [*range(10), *range(10)]
    assert data.classes == TEN
    assert data.augment == CropAndFlip(4)
    assert CIFAR10(root=str(cifar10), augment=False).load(STREAMS).augment is None


def test_channel_normalisation_uses_the_published_constants(cifar10):
    plain = CIFAR10(root=str(cifar10), normalise="none").load(STREAMS).val_x
    normal = CIFAR10(root=str(cifar10)).load(STREAMS).val_x
    torch.testing.assert_close(normal[:, 1], (plain[:, 1] - 0.4822) / 0.2435)


def test_mean_image_normalisation_takes_it_from_training_images(cifar10):
    plain, normal = (
        CIFAR10(root=str(cifar10), normalise=how).load(STREAMS) for how in ("none", "mean_image")
    )
    torch.testing.assert_close(normal.val_x, plain.val_x - plain.train_x.mean(0))
    assert normal.train_x.mean(0).abs().max() < 1e-6


def test_cifar100_fine_and_coarse(cifar100):
    fine = CIFAR100(root=str(cifar100)).load(STREAMS)
    coarse = CIFAR100(root=str(cifar100), labels="coarse").load(STREAMS)
    assert torch.equal(fine.train_x, coarse.train_x)
    assert fine.train_y.tolist() == list(range(100))
    assert (len(fine.classes), len(coarse.classes)) == (100, 20)
    for f, c in zip(fine.train_y.tolist(), coarse.train_y.tolist(), strict=True):
        assert fine.classes[f] in SUPERCLASSES[coarse.classes[c]]
    assert torch.bincount(coarse.train_y).tolist() == [5] * 20


def test_coarse_numbers_are_those_in_the_published_files():
    # coarse_labels of the images whose fine_labels are 0, 1, ..., 99 in the original distribution
    published = (
        "4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 6 13 15 3 15 0 11 1 10 12 14 16 9 11 5 "
        "5 19 8 8 15 13 14 17 18 10 16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 2 10 0 1 16 12 9 13 "
        "15 13 16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13"
    )
    assert coarse_of_fine().tolist() == [int(number) for number in published.split()]


def test_missing_cifar_says_how_to_get_it(tmp_path):
    with pytest.raises(
        DataError, match=r"data_batch_1 is missing; set download: true, or put cifar-10-batches-py"
    ):
        CIFAR10(root=str(tmp_path)).load(STREAMS)


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


@pytest.mark.parametrize("file", ["data_batch_2", "test_batch", "batches.meta"])
def test_a_file_that_is_not_the_published_one_is_never_opened(cifar10, file):
    (cifar10 / "cifar-10-batches-py" / file).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match=f"{file} is damaged: its checksum.*not opened; remove it"):
        CIFAR10(root=str(cifar10)).load(STREAMS)


def test_cifar_download_is_left_to_torchvision(cifar10, datasets, monkeypatch):
    asked = []
    monkeypatch.setattr(datasets.CIFAR10, "download", lambda self: asked.append(self.root))
    assert len(CIFAR10(root=str(cifar10), download=True).load(STREAMS).train_x) == 20
    assert asked == [str(cifar10)] * 2


def test_limits_keep_the_proportions_and_the_order(cifar10):
    source = CIFAR10(root=str(cifar10), limit=10, val_limit=3, normalise="none")
    data = source.load(STREAMS)
    assert sorted(data.train_y.tolist()) == list(range(10))
    assert len(data.val_x) == 3
    whole = CIFAR10(root=str(cifar10), normalise="none").load(STREAMS).train_x
    places = [next(i for i, other in enumerate(whole) if torch.equal(image, other)) for image in data.train_x]
    assert places == sorted(places)
    assert not torch.equal(data.train_x, source.load(Streams(1)).train_x)


def test_a_limit_beyond_the_data_takes_all(cifar10):
    assert len(CIFAR10(root=str(cifar10), limit=1000).load(STREAMS).train_x) == 20


def save(path, size=(6, 4), value=100, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (value,) * 3 if mode == "RGB" else value).save(path)


@pytest.fixture
def parts(tmp_path):
    """A folder with the parts train and test, two classes, three and one images each."""
    for number, name in enumerate(("cat", "dog")):
        for image in range(3):
            save(tmp_path / "train" / name / f"{image}.jpg", value=50 * number + 10 * image)
        save(tmp_path / "test" / name / "0.png", value=200)
    return tmp_path


def test_folder_with_parts(parts):
    data = Folder(path=str(parts), normalise="none").load(STREAMS)
    assert data.train_x.shape == (6, 3, 4, 6)
    assert data.train_y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.val_y.tolist() == [0, 1]
    assert data.classes == ("cat", "dog")
    torch.testing.assert_close(data.val_x, torch.full((2, 3, 4, 6), 200 / 255))
    brightness = (data.train_x.mean(dim=(1, 2, 3)) * 255).tolist()
    assert brightness == pytest.approx([0, 10, 20, 50, 60, 70], abs=2)


def test_folder_takes_val_before_test(parts):
    save(parts / "val" / "dog" / "a.jpg")
    assert Folder(path=str(parts)).load(STREAMS).val_y.tolist() == [1]


def test_folder_sets_a_share_aside(parts):
    data = Folder(path=str(parts / "train"), val_fraction=1 / 3).load(STREAMS)
    assert (data.train_y.tolist(), data.val_y.tolist()) == ([0, 0, 1, 1], [0, 1])


def test_folder_normalises_by_its_own_training_images(parts):
    data = Folder(path=str(parts)).load(STREAMS)
    assert data.train_x.mean(dim=(0, 2, 3)).abs().max() < 1e-5
    torch.testing.assert_close(data.train_x.std(dim=(0, 2, 3), correction=0), torch.ones(3))


def test_images_of_one_colour_are_no_reason_to_divide_by_zero(tmp_path):
    for name in ("a", "b"):
        save(tmp_path / name / "0.png")
    data = Folder(path=str(tmp_path), val_fraction=0).load(STREAMS)
    assert not data.train_x.any()


def test_decoded_images_are_kept_until_a_file_changes(parts, tmp_path, monkeypatch):
    """Where nothing can be written, or a file is damaged, they are decoded again, with a warning."""
    monkeypatch.setattr(folder, "KEPT_FROM", 1)
    read = []
    usual = folder.read_image
    monkeypatch.setattr(folder, "read_image", lambda *about, **how: read.append(1) or usual(*about, **how))
    plain = Folder(path=str(parts), limit=100).load(STREAMS)
    kept = {"path": str(parts), "cache": str(tmp_path / "cache")}
    for seed in (0, 1):  # the second is another split, of the same images
        read.clear()
        data = Folder(**kept).load(Streams(seed))
        assert torch.equal(data.train_x, plain.train_x)
        assert torch.equal(data.val_x, plain.val_x)
        assert (len(read) > 1) == (seed == 0)  # the first says what shape they have
    one = next((parts / "train").rglob("*.*"))
    os.utime(one, ns=(1, 1))
    Folder(**kept).load(STREAMS)
    assert read
    for damage in (
        lambda raw: raw[:-5],
        lambda raw: b"",
        lambda raw: raw.replace(b"}", b"(", 1),
        lambda raw: raw.replace(b"(8,", b"(9,", 1),
    ):
        for file in (tmp_path / "cache").rglob("*.npy"):
            file.write_bytes(damage(file.read_bytes()))
        with pytest.warns(UserWarning, match=r"is damaged .* images are decoded again"):
            again = Folder(**kept).load(STREAMS)
        assert torch.equal(again.train_x, plain.train_x)
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="so the next run decodes them again"):
        Folder(path=str(parts), cache=str(tmp_path / "file")).load(STREAMS)


def test_folder_scales_and_turns_grey(parts):
    save(parts / "train" / "cat" / "large.png", size=(50, 40), mode="L")
    data = Folder(path=str(parts), image_size=8, grayscale=True).load(STREAMS)
    assert data.train_x.shape == (7, 1, 8, 8)


@pytest.mark.parametrize("grayscale", [True, False])
def test_images_of_sixteen_bits_are_as_bright_as_those_of_eight(tmp_path, grayscale):
    for place, value in enumerate((0, 100, 255)):
        save(tmp_path / "a" / f"{place}.png", value=value, mode="L")
        wide = np.full((6, 4), 257 * value, dtype=np.uint16)
        (tmp_path / "b").mkdir(exist_ok=True)
        Image.fromarray(wide.T).save(tmp_path / "b" / f"{place}.{'tif' if place else 'png'}")
    data = Folder(path=str(tmp_path), grayscale=grayscale, val_fraction=0, normalise="none").load(STREAMS)
    assert torch.equal(data.train_x[data.train_y == 1], data.train_x[data.train_y == 0])


def test_folder_reads_only_what_the_limit_leaves(parts):
    for name in ("cat", "dog"):
        for number in range(1, 3):
            (parts / "train" / name / f"{number}.jpg").unlink()
        (parts / "train" / name / "9.jpg").write_bytes(b"broken")
    train = parts / "train"
    chosen = Folder(path=str(parts), limit=2)
    seeds = [s for s in range(40) if _loads(chosen, s)]
    assert 0 < len(seeds) < 40
    assert not any(_loads(Folder(path=str(train), val_fraction=0), s) for s in range(3))


def _loads(source, seed):
    try:
        return len(source.load(Streams(seed)).train_x) == 2
    except DataError:
        return False


def test_other_files_are_passed_over(parts):
    (parts / "train" / "cat" / "notes.txt").write_text("hello")
    (parts / "train" / "cat" / ".hidden.jpg").write_text("hello")
    (parts / "train" / ".cache").mkdir()
    assert len(Folder(path=str(parts)).load(STREAMS).train_x) == 6


def _says(path, pixels):
    """Save an image whose header says more pixels than it has."""
    save(path, mode="P")
    raw = path.read_bytes()
    path.write_bytes(raw[:6] + struct.pack("<HH", pixels, pixels) + raw[10:])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: (p / "train/cat/1.jpg").write_bytes(b"no image"), r"cat/1\.jpg: not a readable image"),
        (
            lambda p: (p / "train/cat/1.jpg").write_bytes((p / "train/cat/1.jpg").read_bytes()[:-60]),
            r"cat/1\.jpg: not a readable image .*[Tt]runcated",
        ),
        (
            lambda p: _says(p / "train/cat/9.gif", 5000),
            r"5000 x 5000 pixels, which \d+ bytes cannot contain",
        ),
        (lambda p: save(p / "train/cat/9.tif", mode="F"), r"cat/9\.tif: not a readable image .*8 or 16 bits"),
        (lambda p: save(p / "train/dog/9.jpg", (5, 5)), r"dog/9\.jpg: 5 x 5 pixels, but .* set image_size"),
        (lambda p: (p / "train/emu").mkdir(), r"emu: holds no images"),
        (
            lambda p: save(p / "test/emu/0.jpg"),
            r"test: class 'emu' has no training images \(classes: cat, dog\)",
        ),
    ],
    ids=["no image", "truncated", "too few bytes", "floats", "sizes", "empty class", "unknown class"],
)
def test_what_is_wrong_in_a_folder_is_named(parts, spoil, message):
    spoil(parts)
    with pytest.raises(DataError, match=message):
        Folder(path=str(parts)).load(STREAMS)


def test_no_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("PSBENCH_DATA", raising=False)
    with pytest.raises(DataError, match="no path given; set path"):
        Folder().load(STREAMS)
    with pytest.raises(DataError, match="nowhere is not a folder"):
        Folder(path=str(tmp_path / "nowhere")).load(STREAMS)
    with pytest.raises(DataError, match="has no subfolders"):
        Folder(path=str(tmp_path)).load(STREAMS)
