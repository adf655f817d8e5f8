"""The router as Ray ships it to the processes that call Decoders."""

from ray.serve.config import RequestRouterConfig

from serve.replicas import ReplicaLost, members


def test_the_router_that_ray_has_pickled_tells_this_process_who_is_there():
    # Ray pickles it by value, module and all.
    router = RequestRouterConfig(request_router_class="serve.routing.PinnedRouter").get_request_router_class()
    known = router._publish.__globals__
    assert known["members"] is members
    assert router._choose_replica_for_request.__globals__["ReplicaLost"] is ReplicaLost
