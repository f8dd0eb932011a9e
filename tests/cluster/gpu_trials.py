"""Reserves what Ray Tune would for each of several trials; prints where each is and what it sees.

`python gpu_trials.py HOST:PORT NUMBER GPUS`; a line of JSON: node and GPU ids of each.
"""

import json
import os
import sys
from typing import Any

from tune_speed.tuning.ray.token import agree_on_token


def main(address: str, number: int, gpu: float) -> None:
    agree_on_token(address)
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from tune_speed.study.settings import ResourceConfig
    from tune_speed.tuning.ray import cluster
    from tune_speed.tuning.ray.node_query import alive_nodes
    from tune_speed.tuning.ray.trial_process import TrialProcess

    resources = ResourceConfig(cpu=0.1, gpu=gpu)
    cluster.connect(address, resources=resources)
    config = {
        "devices": 1,
        "resources": resources.model_dump_json(),
        "node_ids": [node.node_id for node in alive_nodes()],
    }

    @ray.remote
    class Seen:
        def ids(self) -> tuple[str, list[str], str]:
            ids = [str(each) for each in ray.get_gpu_ids()]
            visible = os.environ["CUDA_VISIBLE_DEVICES"]
            return ray.get_runtime_context().get_node_id(), ids, visible

    actors: list[Any] = []
    for _ in range(number):
        group = TrialProcess.default_resource_request(config).to_placement_group()
        ray.get(group.ready(), timeout=60)
        there = PlacementGroupSchedulingStrategy(group)
        options = {"num_cpus": resources.cpu, "num_gpus": resources.gpu}
        actors.append(Seen.options(scheduling_strategy=there, **options).remote())
    print(json.dumps(ray.get([actor.ids.remote() for actor in actors], timeout=200)))


main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
