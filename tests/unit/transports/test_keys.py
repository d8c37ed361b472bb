"""Key files: for their owner only, and refused where they are not."""

import os
import resource
import stat
from pathlib import Path

import pytest

from samovar.core.errors import InputError
from samovar.transports import keys
from samovar.transports.keys import make_key, read_key


def test_a_key_file_is_for_its_owner_only_and_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    before = os.umask(0)
    try:
        make_key(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_bytes()
    make_key(path)
    assert path.read_bytes() == text
    assert "PRIVATE" not in repr(read_key(path))
    link = tmp_path / "link.pem"
    link.symlink_to(tmp_path / "elsewhere.pem")
    for place in (link, tmp_path / "none" / "key.pem", tmp_path / ("x" * 300)):
        with pytest.raises(InputError, match="cannot be made"):
            make_key(place)


def test_of_programs_that_begin_at_once_one_makes_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have looked for it before it was there."""
    path, made = tmp_path / "key.pem", list[bytes]()
    new_key = keys._new_key

    def new_key_of_the_slower_one() -> bytes:
        if not made:
            made.append(b"")
            make_key(path)
            made.append(path.read_bytes())
        return new_key()

    monkeypatch.setattr(keys, "_new_key", new_key_of_the_slower_one)
    make_key(path)
    assert path.read_bytes() == made[1]


def test_a_part_of_a_key_is_not_left(tmp_path: Path) -> None:
    path, (_, hard) = tmp_path / "key.pem", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(InputError, match="cannot be made"):
            make_key(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key.pem"
    make_key(path)
    path.chmod(mode)
    with pytest.raises(InputError, match=rf"others may read it \(mode {mode:04o}\); say: chmod 600"):
        read_key(path)


def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path = tmp_path / "key.pem"
    make_key(path)
    os.chown(path, 65534, 65534)
    with pytest.raises(InputError, match="belongs to user 65534"):
        read_key(path)


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 100, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InputError, match=r"key file .*key\.pem"):
        read_key(path)


def test_no_file_a_folder_a_pipe_and_a_huge_file_are_no_keys(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "huge").write_bytes(b"-" * 20_000)
    (tmp_path / "huge").chmod(0o600)
    for path, reason in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "is not a file"),
        (tmp_path / "pipe", "is not a file"),
    ):
        with pytest.raises(InputError, match=reason):
            read_key(path)
    with pytest.raises(InputError, match="at most 16,384 bytes"):
        read_key(tmp_path / "huge")


@pytest.mark.parametrize("cut", [100, 300, 500, 700])
def test_a_cut_key_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "key.pem"
    make_key(path)
    text = path.read_bytes()
    for damaged in (text[:cut], text[cut:]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="key file"):
            read_key(path)


@pytest.mark.parametrize("instead", [b"", b"\xff", b"-"])
def test_a_key_that_lost_a_letter_on_its_way_is_refused(tmp_path: Path, instead: bytes) -> None:
    path = tmp_path / "key.pem"
    make_key(path)
    text = path.read_bytes()
    for mark in (b"BEGIN PRIVATE KEY-----\n", b"BEGIN CERTIFICATE-----\n"):
        at = text.index(mark) + len(mark) + 30
        path.write_bytes(text[:at] + instead + text[at + 1 :])
        with pytest.raises(InputError, match=r"key file .* cannot be used"):
            read_key(path)
