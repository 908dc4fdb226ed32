"""Presets of the NCCL environment never change what the user set."""

from pathlib import Path

import pytest

from nandiag.launch.nccl import nan_check, preset

FOLDER = Path("/logs/run/nccl")
NO_FILE = {"NCCL_CONF_FILE": "/no/such/file"}


def test_off_adds_nothing():
    assert preset("off", FOLDER, NO_FILE, "2.13.0") == {}


def test_light_and_full():
    light = preset("light", FOLDER, NO_FILE, "2.13.0")
    assert light["NCCL_DEBUG"] == "WARN"
    assert light["NCCL_DEBUG_FILE"] == "/logs/run/nccl/%h.%p.log"
    full = preset("full", FOLDER, NO_FILE, "2.13.0")
    assert full["NCCL_DEBUG"] == "INFO"
    assert set(light) < set(full)
    # Both cost the run: a slower all-reduce, and a device assert that kills the CUDA context.
    assert not {"TORCH_DISTRIBUTED_DEBUG", "TORCH_NCCL_NAN_CHECK"} & set(full)


@pytest.mark.parametrize("name", ["light", "full"])
def test_the_users_values_stay(name):
    user = dict.fromkeys(preset(name, FOLDER, NO_FILE, "2.13.0"), "mine")
    assert preset(name, FOLDER, {**NO_FILE, **user}, "2.13.0") == {}
    for key in user:
        assert key not in preset(name, FOLDER, {**NO_FILE, key: "mine"}, "2.13.0")


def test_output_that_the_user_asked_for_is_not_led_elsewhere():
    assert "NCCL_DEBUG_FILE" not in preset("light", FOLDER, {**NO_FILE, "NCCL_DEBUG": "INFO"}, "2.13.0")


@pytest.mark.parametrize(
    ("torch", "name"),
    [
        ("2.13.0+cpu", "TORCH_FR_DUMP_TEMP_FILE"),
        ("2.6.0", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        (None, "TORCH_FR_DUMP_TEMP_FILE"),
        ("weird", "TORCH_FR_DUMP_TEMP_FILE"),
    ],
)
def test_the_dump_path_has_the_name_that_this_torch_reads(torch, name):
    names = {key for key in preset("light", FOLDER, NO_FILE, torch) if "TEMP_FILE" in key}
    assert names == {name}


@pytest.mark.parametrize("alias", ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"])
@pytest.mark.parametrize("torch", ["2.6.0", "2.13.0"])
def test_a_deprecated_name_counts_as_set(alias, torch):
    assert not [key for key in preset("light", FOLDER, {**NO_FILE, alias: "/x"}, torch) if "TEMP_FILE" in key]


def test_nccls_own_file_counts_as_set(tmp_path):
    conf = tmp_path / "nccl.conf"
    conf.write_text("# NCCL_DEBUG_FILE=x\nNCCL_DEBUG=INFO\n")
    added = preset("light", FOLDER, {"NCCL_CONF_FILE": str(conf)}, "2.13.0")
    assert "NCCL_DEBUG" not in added
    assert "NCCL_WARN_ENABLE_DEBUG_INFO" in added


@pytest.mark.parametrize(
    ("choice", "environ", "torch", "added"),
    [
        ("off", {}, "2.14.0", {}),
        ("collectives", {}, "2.14.0+cu130", {"TORCH_DIST_NAN_CHECK": "1"}),
        ("collectives", {}, "2.13.0", {"TORCH_NCCL_NAN_CHECK": "1"}),
        ("collectives", {}, None, {"TORCH_DIST_NAN_CHECK": "1"}),
        ("collectives", {"TORCH_NCCL_NAN_CHECK": "0"}, "2.14.0", {}),
        ("collectives", {"TORCH_DIST_NAN_CHECK": "1"}, "2.14.0", {}),
    ],
)
def test_torchs_nan_check_is_set_only_where_asked_for_and_only_one(choice, environ, torch, added):
    assert nan_check(choice, environ, torch) == added
