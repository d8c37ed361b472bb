"""LevelDB folders copied into LMDBs. The one here was written by LevelDB itself, with its last changes in its log."""

import importlib
import io
import zipfile
from base64 import b85decode
from pathlib import Path

import numpy as np
import pytest

from samovar.core.errors import InputError
from samovar.data.databases import copy_leveldb
from samovar.formats.caffe.datum import decode_datum
from samovar.formats.lmdb_file import LmdbFile

# Records 00000000 to 00000079, each 1 x 2 x 2 with the values n, n + 1, n + 2, n + 3 and the label n % 10; of these 11
# and 12 were removed, the second in the log, and 3 was written over with n = 99.
LEVELDB = (
    r"P)h>@6aWAK2moYpc3tbP(H(06006lI000UA001yBFfcGQE^KdSZPB?(17Q?~;hD(}qN&tE8!>Psg;_L-VAe?{>tr)kz(O=4C>8<1"
    r"O2p+V1jXeFg5H2_8XF~rg%B))jbNcz`ML1_7UzT0J=J;pf$6qKQDe&Q)bDfpeirf#J5{$fu1#4Nqp>(Crz_7xuyM}%g#}HJ+HZ8;"
    r"VH2DU2n(7d&30uTz$Q5x6c#i^mI?JR2AksSoUoueS#3{+7g(LM^TL9r$rfq#E@0D~4G9aHA^TV*e*~N1Y*<)OgB+dX`x#h+vk_rI"
    r"v*aASo!`M`IlCY%XpUTaTJHlk$Jns!2AU^jWP3x0&2v_E11*r+zWj8<7C0-rffh;Y8o_1QB4=ec&=Ogiw<f`sI4iq>nq<AXeze1y"
    r"oR!@`%VcXz?nYtDoR!@`D`f9_XE$LhoR!@`tK?Wd(a&J3oR!@`Yvd$Pa|^b{S=kM=POkFngBP~WSfBja>RM}^T*hE$e^gPI{#oVE"
    r"`U783O9KQH000080Az7?UH(ZpM+E`^0Hy-~015yA05C8xFfcVPY-D1E(7SFEK@@=Db8PQ=9giJ5ak9SU;v|kIi8tBx-MLVtfr1Fp"
    r"z#||^3PelK6Qn{ENJun10-~a!NAL!ev=s0kA<?q3tnWWF*3S5=b5g6O6^&FS(EE|ra?RXcK{S{5QY=+7%>}KE_K+@kWiZnGtSv(_"
    r"@Hu*{1#2?&d3vIOHCglpda9u{8To*oY0;W2`H-G#WKFL4BE8U(HCgr%z0?&tC7myYE7dI3@~k6{uJi&YnOs%cE~=`ll#^q}w3^hU"
    r"!fza0#Z@z`;Z@v#bzhj?x@@YoSx+3jmc&xGjc^^WnPCI3o8bm-nBitWcB51`>?l;+iyi;frma%V#7S(1E!;H2Hg1_==cX%dGwddT"
    r"bj)xIcg=7cZ<*l^-ZsPCe&EKb?(p^|)$=0HuH87(UAqp0Jzmta&2S&@nc)H6H^V+YFvCOKH^Tuw#M%=7)XTuehXa4a*qh;T-?>Su"
    r"M|OMa<fbmiwgiV9^Tce#Lo+<Zi5Z^ZQ!`BQ8E(SNhmyT>lewmL4+bM%n%Pb`#v?PFaDZv5V><vfWocqdaE7O5IL9+HT;RDGF7d()"
    r"&+*a>FSy9L8D4U*3p2dJm$(M+__t3kZ&l<vFY==x!bkM=`%f>#U|%19zWE@fe5SwuKJq#Iw|4L0gGXP&=vx@ef1k&{UcNebe)szy"
    r"P)h>@6aWAK2moYpc3piT$GZ;z000mG000L7002W(Qc^`uRP%N8^K^3!4$(CL0V6H|P)h>@6aWAK2moYpc3q68T5DDS003wJ000jF"
    r"002!vPDw^ZQ&cT5FfcGMG7I~;<A)3bBcoJKYFTPdN|K&aWl3szW^t->er`cxQDRAc(ULjc`#2aFnV2~lm|0jD=3DKWpbzA-0J&@|"
    r"w(Lx-%h&}Bpn#E)0Sur5rk0F05CH&CO928D0~7!N00;nNadutnuF)N90RRBG0{{RD00000000000001_fdBvi05C8xFfcSOY;R{!"
    r"O928D0~7!N00;nNadut)NjOIZ0ssJ}0{{RD00000000000001_fs+9M05C8xFfcVPY-D0kO928D0~7!N00;nNadusOA;-H90000G"
    r"0000700000000000001_fxrU*07F$$QbkTwP)h*<6ay3h000O8WN~&~jHg;_RsaA1XaE2J4*&oF0000000000q=EDU002!vPDw^Z"
    r"Q&cT5FfcGMGEhqe1^@s600aO80O9}u0Cxlc0000"
)
NUMBERS = [99 if n == 3 else n for n in range(80) if n not in (11, 12)]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    folder = tmp_path / "images_leveldb"
    with zipfile.ZipFile(io.BytesIO(b85decode("".join(LEVELDB)))) as files:
        files.extractall(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_records_and_their_order(database: Path, tmp_path: Path) -> None:
    before = contents(database)
    written = copy_leveldb(database, tmp_path / "images_lmdb")
    assert (written.num_records, written.already_there) == (78, False)
    with LmdbFile(written.folder) as file:
        keys = [file.key(index) for index in range(len(file))]
        images = [decode_datum(record) for record in file.values(np.arange(len(file)))]
    assert keys == [b"%08d" % n for n in range(80) if n not in (11, 12)]
    for number, (image, label) in zip(NUMBERS, images, strict=True):
        assert image.tolist() == [[[number, number + 1], [number + 2, number + 3]]]
        assert label == number % 10
    assert contents(database) == before, "the LevelDB is only read"
    assert copy_leveldb(database, tmp_path / "images_lmdb").already_there


@pytest.mark.parametrize("name", ["000004.log", "000005.ldb", "MANIFEST-000002", "CURRENT"])
def test_damaged_or_missing_files(database: Path, tmp_path: Path, name: str) -> None:
    whole = contents(database)[name]
    for content in (whole[: len(whole) // 2], bytes([whole[20 % len(whole)] ^ 0xFF]) * len(whole), None):
        (database / name).unlink()
        if content is not None:
            (database / name).write_bytes(content)
        if name == "000004.log" and content is None:  # as if the database were older: nothing else tells of it
            assert copy_leveldb(database, tmp_path / "older").num_records == 59
        else:
            with pytest.raises(InputError, match=database.name):
                copy_leveldb(database, tmp_path / "out")
            assert not (tmp_path / "out").exists()
        (database / name).write_bytes(whole)


def test_a_damaged_block_is_not_the_end(database: Path, tmp_path: Path) -> None:
    table = database / "000005.ldb"
    content = bytearray(table.read_bytes())
    content[len(content) // 4] ^= 1
    table.write_bytes(content)
    with pytest.raises(InputError, match=rf"{database.name}: cannot be read as a LevelDB: Corruption"):
        copy_leveldb(database, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_leveldb_and_no_library(tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="is not a LevelDB"):
        copy_leveldb(tmp_path, tmp_path / "out")

    def absent(_name: str) -> None:
        raise ModuleNotFoundError

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(InputError, match=r"pip install 'samovar\[leveldb\]'"):
        copy_leveldb(database, tmp_path / "out")
    assert not (tmp_path / "out").exists()
