"""`python -m rlinf_scheduler PROGRAM`: our face in the place of a checkout's scheduler; all else is plain Python."""

import json
import signal
from textwrap import dedent

import pytest

from rlinf_scheduler import __version__
from rlinf_scheduler.face.command import interpreter_options
from rlinf_scheduler.face.finder import is_ray_environment, ray_environment, variables_of_children
from small_checkout import FACE, SOURCES, plain, run, write

pytestmark = pytest.mark.system

LINE = "rlinf.scheduler of {checkout}/rlinf is replaced by rlinf-scheduler " + f"{__version__} ({SOURCES})\n"
EVERYWHERE = """
    import json, sys
    if __name__ == "__main__":
        import rlinf
        from rlinf.runners import places, places_of_children
        json.dump([rlinf.KIND, places(), places_of_children(("spawn", "forkserver"))], sys.stdout)
"""
ON_OURS = ["a checkout", FACE, [FACE] * 3]
PROBE = """
    import json, sys
    if __name__ == "__main__":
        main = sys.modules["__main__"]
        told = [sys.argv, sys.path, __file__, __package__, __spec__ and __spec__.name, vars(main) is globals()]
        json.dump([*told, repr(sys.flags), "rlinf_scheduler" in sys.modules], sys.stdout)
        sys.exit(7)
"""


@pytest.fixture
def checkout(tmp_path):
    folder = write(tmp_path / "checkout")
    return write(
        folder, {"examples/train.py": EVERYWHERE, "examples/probe.py": PROBE, "train_here.py": EVERYWHERE}
    )


def test_a_program_and_what_it_starts_have_our_face_and_one_line_says_so(checkout):
    done = run(checkout / "examples/train.py", path=[checkout])
    assert (json.loads(done.stdout), done.stderr) == (ON_OURS, LINE.format(checkout=checkout))


@pytest.mark.parametrize(
    ("command", "path", "cwd"),
    [
        (["examples/train.py"], ["{ours}", "{checkout}"], "{checkout}"),
        (["-m", "examples.train"], [], "{checkout}"),
        (["train_here.py"], [], "{checkout}"),
        (["-m", "train_here"], ["{ours}"], "{checkout}"),
    ],
    ids=["ours first", "a module, cwd", "beside the program", "ours before cwd"],
)
def test_whatever_the_order_of_the_path(checkout, command, path, cwd):
    places = {"ours": SOURCES, "checkout": checkout}
    done = run(*command, path=[each.format(**places) for each in path], cwd=cwd.format(**places))
    assert (json.loads(done.stdout), done.stderr) == (ON_OURS, LINE.format(checkout=checkout))


def test_a_checkout_that_a_later_finder_has_as_of_an_editable_install(checkout, tmp_path):
    # A `sitecustomize` of the user's, which ours hides, is run, too.
    hidden = """
        import sys
        from importlib.util import spec_from_file_location

        class Editable:
            def find_spec(name, path=None, target=None):
                if name == "rlinf":
                    return spec_from_file_location(name, {file!r}, submodule_search_locations=[{folder!r}])

        sys.meta_path.append(Editable)
    """
    folder = str(checkout / "rlinf")
    text = dedent(hidden).format(file=f"{folder}/__init__.py", folder=folder)
    write(tmp_path / "site", {"sitecustomize.py": text})
    done = run(checkout / "examples/train.py", path=[tmp_path / "site"])
    assert (json.loads(done.stdout), done.stderr) == (ON_OURS, LINE.format(checkout=checkout))


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ([], ["examples/probe.py", "a", "-m", "b"]),
        (["-X", "utf8", "-u"], ["-m", "examples.probe", "--x", "rlinf_scheduler"]),
    ],
    ids=["a file", "a module"],
)
def test_all_else_is_as_of_plain_python(checkout, options, command):
    path = [checkout / "rlinf", ""]  # as of `PYTHONPATH=$FOLDER:$PYTHONPATH`: the folder that it runs in, too
    ours = run(*command, options=options, cwd=checkout, path=path)
    theirs = plain(*command, options=options, cwd=checkout, path=path)
    assert (ours.returncode, ours.stderr) == (theirs.returncode, theirs.stderr) == (7, "")
    assert json.loads(ours.stdout) == json.loads(theirs.stdout)


LOGS = """
    import logging, sys
    from rlinf.scheduler import Worker

    Worker.logger.info("begun")
    Worker.logger.debug("more")
    logging.getLogger("another").info("not shown by Python")
    logging.getLogger("another").warning("shown by Python")
    logging.basicConfig(level=logging.WARNING, format="%(message)s of the program", force=True)
    Worker.logger.info("less than the program wants")
    Worker.logger.warning("a warning")
"""


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        (None, ["INFO:rlinf.worker:begun"]),
        ("debug", ["INFO:rlinf.worker:begun", "DEBUG:rlinf.worker:more"]),
        ("ERROR", []),
    ],
)
def test_what_the_driver_logs_is_shown_until_the_program_configures_logging(checkout, level, shown):
    write(checkout, {"logs.py": LOGS})
    done = run("logs.py", cwd=checkout, env={"RLINF_LOG_LEVEL": level} if level else {})
    told = done.stderr.removeprefix(LINE.format(checkout=checkout)).splitlines()
    assert told == [*shown, "shown by Python", "a warning of the program"]


def test_a_level_that_there_is_not_is_told(checkout):
    write(checkout, {"logs.py": LOGS})
    done = run("logs.py", cwd=checkout, env={"RLINF_LOG_LEVEL": "loud"})
    assert done.returncode == 1
    assert "ConfigError: RLINF_LOG_LEVEL='loud': it is a number from 0, or one of" in done.stderr


def test_a_traceback_and_a_signal_are_those_of_the_program(checkout):
    write(
        checkout, {"fails.py": "1 / 0", "dies.py": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"}
    )
    fails = run("fails.py", cwd=checkout)
    assert (fails.returncode, fails.stderr) == (1, plain("fails.py", cwd=checkout).stderr)
    assert run("dies.py", cwd=checkout).returncode == -signal.SIGTERM


def test_pytest_runs_tests_of_the_checkout(checkout):
    write(
        checkout,
        {
            "tests/test_it.py": f"""
        from rlinf.runners import places, places_of_children

        def test_it():
            assert [places(), *places_of_children()] == [{FACE!r}] * 3
    """
        },
    )
    done = run("-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "tests/test_it.py", cwd=checkout)
    assert done.returncode == 0, done.stdout
    assert done.stderr == LINE.format(checkout=checkout)


def test_the_testing_package_is_ours_where_the_checkout_has_none(checkout):
    write(checkout, {"asks.py": "import rlinf.testing as t, rlinf.testing.local; print(t.__file__)"})
    assert run("asks.py", cwd=checkout).stdout.startswith(str(SOURCES))
    write(checkout, {"rlinf/testing/__init__.py": "", "rlinf/testing/local.py": ""})
    assert run("asks.py", cwd=checkout).stdout.startswith(str(checkout))


FAILS = """
    import sys
    from rlinf.scheduler import Cluster, NodePlacementStrategy, Worker

    class Env(Worker):
        def interact(self):
            raise LookupError("no such episode")

        def get(self):
            return self.recv("env", 0)

    if __name__ == "__main__":
        section = {"num_nodes": 1, **({"fail_fast": False} if "values" in sys.argv else {})}
        cluster = Cluster(cluster_cfg=section)
        env = Env.create_group().launch(cluster, name="env", placement_strategy=NodePlacementStrategy([0]))
        if "values" in sys.argv:
            try:
                env.interact().wait()
            except Exception as error:
                sys.exit("a value" if "no such episode" in str(error) else str(error))
        actor = Env.create_group().launch(cluster, name="actor", placement_strategy=NodePlacementStrategy([0]))
        handle = env.interact()
        actor.get().wait()  # what the environment never sends
"""


@pytest.mark.ray
@pytest.mark.parametrize("how", ["by default", "values"])
def test_a_call_that_fails_and_is_not_waited_for_ends_a_program_of_rlinfs(checkout, ray_address, how):
    write(checkout, {"fails.py": FAILS})
    done = run("fails.py", how, cwd=checkout, env={"RAY_ADDRESS": ray_address}, timeout=240)
    assert done.returncode == 1
    assert ("a value" if how == "values" else "LookupError: no such episode") in done.stderr
    assert ("ends this driver" in done.stderr) == (how == "by default")


@pytest.mark.ray
def test_ranks_and_actors_of_rlinfs_own_on_a_ray_that_runs_already(checkout, ray_address):
    write(
        checkout,
        {
            "examples/ranks.py": """
        import json, sys
        from rlinf.runners import places
        from rlinf.scheduler import Cluster, NodePlacementStrategy
        from rlinf.workers import Env, Simulator

        if __name__ == "__main__":
            with Cluster() as cluster:
                import ray
                group = Env.create_group().launch(cluster, NodePlacementStrategy([1]), name="env")
                mine = places(), ray.get(Simulator.remote().places.remote())
                json.dump([mine, group.places().wait()], sys.stdout)
    """
        },
    )
    done = run(checkout / "examples/ranks.py", path=[checkout], env={"RAY_ADDRESS": ray_address}, timeout=240)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[FACE, FACE], [[FACE, [FACE, FACE], FACE]]]
    assert done.stderr.count("is replaced by") == 1


def test_a_rank_has_it_whatever_its_variables_are(checkout):
    write(
        checkout,
        {
            "host.py": """
        import sys
        from rlinf_scheduler.comm import ClusterSecret, Messenger
        from rlinf_scheduler.host.host import Hosting
        from rlinf_scheduler.host.protocol import HostSpec

        if __name__ == "__main__":
            secret = ClusterSecret.generate()
            home = Messenger(secret, name="home", machine_id=None, tcp=False)
            ours = home.endpoint, home.endpoint, secret, "127.0.0.1", False, True
            Hosting(HostSpec("launch", "env", 0, *ours, tuple(sys.path), 30, 60.0, replaces_rlinf=True))
            from rlinf.runners import places, places_of_children
            print([places(), *places_of_children()])
            home.close()
    """
        },
    )
    done = plain("host.py", cwd=checkout)
    assert (done.stdout, done.stderr) == (f"{[FACE] * 3}\n", "")


def test_without_a_program_it_says_how_it_is_used():
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: python -m rlinf_scheduler PROGRAM")
    assert run("--help").stdout == done.stderr


@pytest.mark.parametrize(
    ("command", "num_arguments", "options"),
    [
        ("python -m rlinf_scheduler train.py", 1, ""),
        ("python -X dev -um rlinf_scheduler -m pytest -m x", 4, "-X dev -u"),
        ("python -mrlinf_scheduler train.py", 1, ""),
        ("python -m pdb -m rlinf_scheduler train.py", 1, "-m pdb"),
        (
            "python -m debugpy --listen 5678 -m rlinf_scheduler train.py rlinf_scheduler",
            2,
            "-m debugpy --listen 5678",
        ),
        ("python /somewhere/rlinf_scheduler train.py", 1, ""),
        ("python starts_it_inside.py", 1, ""),
        ("python", 0, ""),
    ],
)
def test_options_of_the_interpreter_are_kept(command, num_arguments, options):
    assert interpreter_options(command.split(), num_arguments) == options.split()


def test_children_of_children_get_the_variables_once():
    once = variables_of_children({"PYTHONPATH": "/a::/b"}, 7)
    assert once["PYTHONPATH"].endswith("/first:/a::/b")
    assert variables_of_children(once, 7) == once
    none = variables_of_children({"PYTHONPATH": ""}, 7)
    assert none == variables_of_children({}, 7)
    assert none["PYTHONPATH"].endswith("/first")


def test_a_job_on_a_ray_that_runs_has_the_variables_and_a_hook_and_what_was_submitted_comes_first():
    assert ray_environment({"PYTHONPATH": "/a"}) == {}
    variables = variables_of_children({"PYTHONPATH": "/a"}, 7)
    wanted = ray_environment(variables)
    assert wanted["env_vars"] == {**variables, "PYTHONPATH": variables["PYTHONPATH"] + ":${PYTHONPATH}"}
    assert "worker_process_setup_hook" in wanted
    submitted = {"runtime_env": {"env_vars": {"PYTHONPATH": "/theirs"}, "worker_process_setup_hook": "a.b"}}
    variables["RAY_JOB_CONFIG_JSON_ENV_VAR"] = json.dumps(submitted)
    assert ray_environment(variables) == {"env_vars": {"RLINF_FACE_DRIVER": "7"}}


def test_a_job_with_only_that_environment_is_told_from_one_with_another(monkeypatch):
    for name, value in variables_of_children({"PYTHONPATH": "/a"}, 7).items():
        monkeypatch.setenv(name, value)
    ours = ray_environment()
    told = {**ours, "env_vars": {**ours["env_vars"], "RAYS_OWN": ours["worker_process_setup_hook"]}}
    assert is_ray_environment(json.dumps(told))
    assert not is_ray_environment(json.dumps({**told, "py_executable": "/other/python"}))
    assert not is_ray_environment(json.dumps({"env_vars": {"X": "1"}}))
    assert not is_ray_environment("{}")
