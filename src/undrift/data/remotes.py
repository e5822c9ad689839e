"""Addresses and published checksums of data sets."""

from __future__ import annotations

from undrift.data.fetch import Remote, Remotes


def _files(kind: str, bases: tuple[str, ...], table: dict[str, tuple[int, str]]) -> Remotes:
    return tuple(
        Remote(tuple(base + name for base in bases), name, size, f"{kind}:{digest}")
        for name, (size, digest) in table.items()
    )


REMOTES: dict[str, Remotes] = {
    "mnist": _files(
        "md5",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        {
            "train-images-idx3-ubyte.gz": (9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            "train-labels-idx1-ubyte.gz": (28881, "d53e105ee54ea40749a09fcbcd1e9432"),
            "t10k-images-idx3-ubyte.gz": (1648877, "9fb629c4189551a2d022fa330f9573f3"),
            "t10k-labels-idx1-ubyte.gz": (4542, "ec29112dd5afa0611ce80d1b7f02629c"),
        },
    )
    + _files(  # QMNIST's labels, for the writers of MNIST's images
        "md5",
        ("https://raw.githubusercontent.com/facebookresearch/qmnist/master/",),
        {
            "qmnist-train-labels-idx2-int.gz": (463024, "0058f8dd561b90ffdd0f734c6a30e5e4"),
            "qmnist-test-labels-idx2-int.gz": (526800, "5b5b05890a5e13444e108efe57b788aa"),
        },
    ),
    "fashion-mnist": _files(
        "md5",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
        {
            "train-images-idx3-ubyte.gz": (26421880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            "train-labels-idx1-ubyte.gz": (29515, "25c81989df183df01b3e8a0aad5dffbe"),
            "t10k-images-idx3-ubyte.gz": (4422102, "bef4ecab320f06d8554ea6380940ec79"),
            "t10k-labels-idx1-ubyte.gz": (5148, "bb300cfdad3c16e7a12a480ee83cd310"),
        },
    ),
    "cifar10": _files(
        "md5",
        ("https://www.cs.toronto.edu/~kriz/",),
        {"cifar-10-binary.tar.gz": (170052171, "c32a1d4ab5d03f1284b67883e8d87530")},
    ),
    "cifar100": _files(
        "md5",
        ("https://www.cs.toronto.edu/~kriz/",),
        {"cifar-100-binary.tar.gz": (168513733, "03b5dce01913d631647c71ecec9e9cb8")},
    ),
    "tiny-imagenet": _files(
        "md5",
        ("http://cs231n.stanford.edu/", "https://cs231n.stanford.edu/"),
        {"tiny-imagenet-200.zip": (248100043, "90528d7ca1a48142e341f4ef8d21d0de")},
    ),
    "a9a": _files(
        "sha256",
        ("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",),
        {
            "a9a": (2329875, "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906"),
            "a9a.t": (1164628, "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9"),
        },
    ),
    "imdb": _files(
        "md5",
        (
            "https://ai.stanford.edu/~amaas/data/sentiment/",
            "https://bj.bcebos.com/dataset/imdb%2F",
        ),
        {"aclImdb_v1.tar.gz": (84125825, "7c2ac02c03563afcf9b574c7e56c153a")},
    ),
}

# These have no published checksum, because LEAF's scripts make the files from their sources.
BY_HAND: dict[str, str] = {
    "femnist": "put LEAF's train/*.json and test/*.json there, as its data/femnist/preprocess.sh "
    "makes them.",
    "celeba": "put LEAF's train/*.json and test/*.json there, as its data/celeba/preprocess.sh "
    "makes them, and the aligned images of CelebA into raw/img_align_celeba beside them.",
    "shakespeare": "put Gutenberg's pg100.txt or pg100.txt.gz (number 100, of 1994) there, "
    "or tiny Shakespeare's input.txt, or LEAF's train/*.json and test/*.json.",
}
