#!/bin/sh
# Two Ray nodes of one host share a directory of unpacked packages. When the second node gets its first actor, the first
# node's actor, which runs all the while, stands in a directory that no longer exists.
#
# Versions: ray 2.60.0.
#
# Each node unpacks the `working_dir` of a job below the session's directory, which nodes of one host share. The node that
# needs it next finds it there, removes it, and unpacks it again. An actor that started before keeps the removed directory
# as its own: a relative path, or an import of a module that it has not imported yet, fails, and while files are being
# unpacked another actor may find half of a package. Tests on a cluster of several nodes on one machine meet this, as
# errors that come and go. `runtime_env_dir_name`, a directory for each node, prevents it.
#
# A guess: a directory that was unpacked for the same package is used again.
#
# Seen: what the actors find where they run, before and after the second node has an actor
#     first: helper.py
#     second: helper.py
#     first again: FileNotFoundError
#
# Installs ray in a temporary folder; PYTHON=/path/to/python uses an interpreter that has it. Exits with 1 if the
# behaviour is another.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet ray==2.60.0
    PYTHON=$folder/venv/bin/python
fi
mkdir "$folder/job"
echo "answer = 42" > "$folder/job/helper.py"
cat > "$folder/nodes.py" <<'END'
import logging
import os
import sys

import ray
from ray.cluster_utils import Cluster


@ray.remote(num_cpus=1)
class Actor:
    def look(self):
        try:
            return " ".join(sorted(os.listdir(os.getcwd())))
        except FileNotFoundError as error:
            return type(error).__name__


cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
cluster.add_node(num_cpus=1)
job = {"working_dir": sys.argv[1]}
ray.init(address=cluster.address, runtime_env=job, log_to_driver=False, logging_level=logging.ERROR)
first = Actor.remote()
print("first:", ray.get(first.look.remote()))
cluster.add_node(num_cpus=1)
second = Actor.remote()
print("second:", ray.get(second.look.remote()))
print("first again:", ray.get(first.look.remote()))
ray.shutdown()
cluster.shutdown()
END
RAY_USAGE_STATS_ENABLED=0 "$PYTHON" "$folder/nodes.py" "$folder/job" > "$folder/all" 2> "$folder/log"
grep -E "^(first|second)" "$folder/all" | tee "$folder/seen"
printf 'first: helper.py\nsecond: helper.py\nfirst again: FileNotFoundError\n' | diff - "$folder/seen"
