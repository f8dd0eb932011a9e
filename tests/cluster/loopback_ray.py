"""Ray's own command, whose nodes listen on 127.0.0.1 alone: `python loopback_ray.py start …`.

Ray replaces a loopback address by an outer one wherever a cluster may have several nodes.
With RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 it does not, but then lets no second node join.
"""

from ray._private import ray_constants, services
from ray.scripts.scripts import main

ray_constants.ENABLE_RAY_CLUSTER = True
services.get_node_ip_address = lambda address=None: "127.0.0.1"
services.resolve_ip_for_localhost = lambda host: host

if __name__ == "__main__":
    main()
