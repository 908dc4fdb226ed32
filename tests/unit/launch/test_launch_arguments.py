"""The words of `nandiag run` are read as torchrun would read the equivalent words."""

import pytest

from nandiag.errors import UsageError
from nandiag.launch.arguments import changed, read, torchrun_help
from nandiag.settings import Settings

# What is typed after `nandiag run`, and what is typed after `torchrun` to the same effect.
SAME = [
    ("train.py", "train.py"),
    ("train.py --nproc 2", "--nproc-per-node 2 train.py"),
    ("train.py --nproc=2", "--nproc-per-node 2 train.py"),
    ("train.py --nproc auto", "--nproc-per-node auto train.py"),
    ("train.py a --nproc 2 b", "--nproc-per-node 2 train.py a b"),
    ("train.py --nproc 2 --nproc 3", "--nproc-per-node 2 train.py --nproc 3"),
    ("--nproc 2 train.py", "--nproc-per-node 2 train.py"),
    ("--nproc=2 train.py", "--nproc-per-node=2 train.py"),
    ("--nproc 2 train.py --nproc 3", "--nproc-per-node 2 train.py --nproc 3"),
    ("--nproc-per-node 2 train.py --nproc 3", "--nproc-per-node 2 train.py --nproc 3"),
    ("--nproc_per_node=2 train.py --nproc=3", "--nproc_per_node=2 train.py --nproc=3"),
    ("--nproc-per-n 2 train.py --nproc=3", "--nproc-per-n 2 train.py --nproc=3"),
    ("train.py --nproc", "train.py --nproc"),
    ("train.py --nproc many", "train.py --nproc many"),
    ("train.py --nproc-per-node 3", "train.py --nproc-per-node 3"),
    ("train.py -- --nproc 3", "train.py -- --nproc 3"),
    ("train.py --x 1 -- --nproc 3", "train.py --x 1 -- --nproc 3"),
    ("train.py --nproc 2 -- --nproc 3", "--nproc-per-node 2 train.py -- --nproc 3"),
    ("-- train.py --nproc 3", "-- train.py --nproc 3"),
    ("-- train.py -- --nproc 3", "-- train.py -- --nproc 3"),
    ("--standalone -- train.py --nccl off", "--standalone -- train.py --nccl off"),
    ("train.py --lr 0.1 --help", "train.py --lr 0.1 --help"),
    ("train.py -h", "train.py -h"),
    ("train.py -lr 0.1", "train.py -lr 0.1"),
    ("train.py -m x --dry-run", "train.py -m x --dry-run"),
    ("train.py --on-anomaly stop --json x", "train.py --on-anomaly stop --json x"),
    ("-m pkg.mod --nproc 2 --lr 1", "--nproc-per-node 2 -m pkg.mod --lr 1"),
    ("--module pkg.mod -m", "--module pkg.mod -m"),
    ("--no-python ./go.sh --nproc 2 x", "--nproc-per-node 2 --no-python ./go.sh x"),
    ("--no_python ./go.sh -x", "--no_python ./go.sh -x"),
    ("--inject site --standalone --nccl off train.py", "--standalone train.py"),
    ("--nnodes 2 --rdzv-b c10d --rdzv_endpoint=h:1 --rdzv-id 7 train.py",
     "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint h:1 --rdzv-id 7 train.py"),
    ("--max-restarts 2 --max-replays 1 train.py", "--max-restarts 2 train.py"),
    ("--max_restarts=2 train.py", "--max-restarts 2 train.py"),
    ("-r 3 -t 0:1,1:2 train.py", "--redirects 3 --tee 0:1,1:2 train.py"),
    ("-r3 -t1 train.py", "-r3 -t1 train.py"),
    ("--te 3 train.py", "--te 3 train.py"),
    ("--t 3 train.py", "--tee 3 train.py"),
    ("--max-r 2 train.py", "--max-restarts 2 train.py"),
    ("train.py --log x --r=1 --max-r 3 --t", "train.py --log x --r=1 --max-r 3 --t"),
    ("--log-dir logs train.py", "--log-dir logs train.py"),
    ("--log_dir=logs train.py", "--log-dir logs train.py"),
    ("--local-ranks-filter 0 train.py", "--local-ranks-filter 0 train.py"),
    ("--duplicate-stdout-filters a,b train.py", "--duplicate-stdout-filters a,b train.py"),
    ("--master-addr h --master_port 5 --node-rank 1 --nnodes 2 train.py",
     "--master-addr h --master-port 5 --node-rank 1 --nnodes 2 train.py"),
    ("--start-method fork --monitor-interval 0.5 train.py", "--start-method fork --monitor-interval 0.5 train.py"),
]  # fmt: skip


AMBIGUOUS = {word: f"--stand-in{word}" for word in ("--nproc", "--nproc=3", "--log", "--r=1", "--max-r", "--t")}


def torchruns(words):
    from torch.distributed.run import get_args_parser

    # argparse refuses a word of the script that looks like an ambiguous abbreviation; we do not.
    values = vars(get_args_parser().parse_args([AMBIGUOUS.get(word, word) for word in words]))
    back = {stand_in: word for word, stand_in in AMBIGUOUS.items()}
    return {**values, "training_script_args": [back.get(word, word) for word in values["training_script_args"]]}


@pytest.mark.parametrize(("ours", "torchrun"), SAME, ids=[pair[0] for pair in SAME])
def test_reads_as_torchrun_does(ours, torchrun):
    arguments = read(ours.split(), Settings())
    expected = torchruns(torchrun.split())
    assert vars(arguments.torchrun) == expected
    assert arguments.script == expected["training_script"]
    assert list(arguments.script_args) == expected["training_script_args"]


@pytest.mark.parametrize("option", ["--nproc-per-node=3", "--max-restarts=4", "--standalone", "--rdzv-id=x"])
def test_every_value_can_be_given_by_environment(option, monkeypatch):
    name, _, value = option.removeprefix("--").partition("=")
    monkeypatch.setenv("PET_" + name.upper().replace("-", "_"), value or "1")
    assert vars(read(["train.py"], Settings()).torchrun) == torchruns([option, "train.py"])


def test_command_line_goes_before_the_environment(monkeypatch):
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")
    assert read(["train.py"], Settings()).torchrun.nproc_per_node == "3"
    assert read(["train.py", "--nproc", "2"], Settings()).torchrun.nproc_per_node == "2"


def test_knows_every_option_of_the_installed_torch():
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    ending = {"help", "print_completion"}  # what these print is all that is done
    flags = [
        (flag, action) for action in parser._actions for flag in action.option_strings if action.dest not in ending
    ]
    assert len(flags) > 30
    for flag, action in flags:
        value = [] if action.nargs == 0 else [str(action.choices[0]) if action.choices else "1"]
        assert vars(read([flag, *value, "t.py"], Settings()).torchrun) == torchruns([flag, *value, "t.py"])


def test_own_options_before_the_script():
    words = "--on-anomaly stop --nccl=full --inject exec --fail-on warning --max-replays 0 --dry-run"
    arguments = read([*words.split(), "--json", "r.json", "--log-dir", "logs", "t.py", "--nccl", "x"], Settings())
    settings = arguments.settings
    assert (settings.on_anomaly, settings.nccl, settings.inject) == ("stop", "full", "exec")
    assert (settings.fail_on, settings.max_replays, settings.launcher) == ("warning", 0, "torchrun")
    assert (arguments.dry_run, arguments.json, arguments.log_dir) == (True, "r.json", "logs")
    assert arguments.script_args == ("--nccl", "x")


def test_defaults_are_those_of_the_settings():
    arguments = read(["t.py"], Settings(inject="exec", nccl="off", max_replays=7))
    assert (arguments.settings.inject, arguments.settings.nccl, arguments.settings.max_replays) == ("exec", "off", 7)
    assert read(["--nccl", "full", "t.py"], Settings(nccl="off")).settings.nccl == "full"


def test_no_option_is_offered_that_nothing_heeds():
    with pytest.raises(UsageError, match="no option --strength "):
        read(["--strength", "op", "t.py"], Settings())


def test_nothing_needs_saying_where_the_script_has_no_arguments_of_its_own():
    assert read(["t.py", "--nproc", "2"], Settings()).notes == ()


def test_says_how_words_after_the_script_were_read():
    taken, left = read(["t.py", "--lr", "1", "--nproc", "2", "--on-anomaly", "stop"], Settings()).notes
    assert "--nproc 2 was taken" in taken
    assert "the script's arguments are: --lr 1 --on-anomaly stop" in taken
    assert "--on-anomaly stands after the script" in left


@pytest.mark.parametrize(
    "words",
    [
        "--nproc 2 t.py",
        "t.py",
        "t.py --lr 1",
        "-- t.py --nccl off",
        "t.py -- --nccl off",
    ],
)
def test_is_silent_where_nothing_was_taken_or_misplaced(words):
    assert read(words.split(), Settings()).notes == ()


def test_tells_of_own_options_that_were_left_to_the_script():
    (note,) = read(["t.py", "--on-anomaly=stop"], Settings()).notes
    assert "--on-anomaly=stop" in note
    assert "before the script" in note


@pytest.mark.parametrize(
    ("words", "what", "todo"),
    [
        ("--nprocs 2 t.py", "no option --nprocs ", "--nproc?"),
        ("--on-anomoly stop t.py", "no option --on-anomoly ", "--on-anomaly?"),
        ("--nproc_pernode=2 t.py", "no option --nproc_pernode ", "--nproc_per_node?"),
        ("--rdvz-endpoint h:1 t.py", "no option --rdvz-endpoint ", "--rdzv-endpoint?"),
        ("--lr 0.1 t.py", "no option --lr ", "go after the script"),
        ("-x t.py", "no option -x ", "go after the script"),
        ("--nccl loud t.py", "--nccl", "nandiag run"),
        ("--max-replays -1 t.py", "--max-replays", ""),
        ("--max-restarts two t.py", "--max-restarts", ""),
        ("--nproc", "--nproc", ""),
        ("--nproc 2", "No script was given", "nandiag run"),
        ("", "No script was given", "nandiag run"),
        ("--rdzv x t.py", "Ambiguous option: --rdzv", ""),
        ("--launcher none --nproc 2 python t.py", "--nproc-per-node is torchrun's", ""),
        ("--launcher none", "No script was given", ""),
        ("--launcher slurm t.py", "--launcher", ""),
    ],
)
def test_words_that_do_not_fit(words, what, todo):
    with pytest.raises(UsageError) as caught:
        read(words.split(), Settings())
    text = " ".join(caught.value.sentences())
    assert what in text
    assert todo in text


def test_a_launcher_that_does_not_exist_in_the_environment():
    with pytest.raises(UsageError, match="NANDIAG_LAUNCHER='slurm'"):
        read(["t.py"], Settings(launcher="slurm"))


@pytest.mark.parametrize("words", ["--help", "-h", "--nproc 2 -h", "--nccl off --help", "--standalone -h t.py"])
def test_help_before_the_script_is_ours(words):
    assert read(words.split(), Settings()).show == "help"


@pytest.mark.parametrize("words", ["--torchrun-help", "--nproc 2 --torchrun-help t.py"])
def test_torchruns_help(words):
    assert read(words.split(), Settings()).show == "torchrun_help"
    assert "--rdzv-backend" in torchrun_help()


def test_without_torchrun_all_words_are_the_commands():
    arguments = read(
        ["--launcher", "none", "--nccl", "off", "srun", "-n", "2", "python", "t.py", "--nproc", "3"],
        Settings(),
    )
    assert arguments.torchrun is None
    assert (arguments.script, arguments.settings.launcher) == ("srun", "none")
    assert arguments.script_args == ("-n", "2", "python", "t.py", "--nproc", "3")


@pytest.mark.parametrize(
    ("words", "title"),
    [
        ("src/train.py --nproc 2", "src/train.py"),
        ("-m pkg.tool.train", "pkg.tool.train.py"),
        ("--launcher none python -u src/train.py x.py", "src/train.py"),
        ("--launcher none ./go", "./go"),
    ],
)
def test_a_run_is_named_after_its_script(words, title):
    assert read(words.split(), Settings()).title == title


def test_changed_gives_the_words_back():
    words = ["--nproc-per-node", "2", "--standalone", "--module", "--tee", "0:1", "--log-dir", "x", "pkg"]
    arguments = read(words, Settings())
    again = changed(arguments.torchrun)
    assert torchruns([*again, "pkg"]) == vars(arguments.torchrun)


def test_config_and_set_before_the_script_are_ours_and_behind_it_the_scripts_without_a_word():
    found = read(["--config", "a.yaml", "--set", "x=1", "--set=y=2", "train.py", "--config", "b.yaml"], Settings())
    assert (found.config, found.given) == ("a.yaml", ("x=1", "y=2"))
    assert found.script_args == ("--config", "b.yaml")
    assert found.notes == ()


@pytest.mark.parametrize("words", [["--sentinel-lag", "2"], ["--sentinel-lag", "1", "--on-anomaly", "skip"]])
def test_a_lag_that_cannot_be_is_refused(words):
    with pytest.raises(UsageError, match="--sentinel-lag"):
        read([*words, "train.py"], Settings())


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("t.py --nprocs 2", "--nprocs 2"),
        ("t.py --lr 1 --nprocs=4", "--nprocs 4"),
        ("t.py --nproc_per_node 2", "--nproc_per_node 2"),
        ("t.py --nproc-per-node gpu", "--nproc-per-node gpu"),
        ("--nproc 1 t.py --nprocs 2", "--nprocs 2"),
    ],
)
def test_says_that_a_misspelt_number_of_workers_is_the_scripts(words, name):
    arguments = read(words.split(), Settings())
    (note,) = arguments.notes
    assert note.startswith(f"{name} is the script's own there, and one worker is started")
    assert arguments.script_args[-2:] in {tuple(name.split()), ("1", name.replace(" ", "="))}


@pytest.mark.parametrize(
    "words",
    [
        "--nproc 2 t.py --nprocs 2",
        "t.py --nprocs 1",
        "t.py --num-proc 4",
        "t.py --processes 4",
        "t.py --nprocs many",
        "t.py -- --nprocs 2",
        "-- t.py --nprocs 2",
        "--launcher none t.py --nprocs 2",
    ],
)
def test_is_silent_on_what_is_hardly_meant_for_it(words):
    assert read(words.split(), Settings()).notes == ()
