"""What jobs find around them: a cluster's address, and the version of the code."""

import pytest

from jobs.cluster import code_version, ray_cluster
from pasta.errors import UserError


@pytest.mark.parametrize("address", ["http://127.0.0.1:8265", "https://cluster.example"])
def test_the_address_of_a_job_server_is_no_cluster_to_join(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with (
        pytest.raises(UserError, match=r"is where jobs are submitted \(python -m jobs.submit\)"),
        ray_cluster(None, 1),
    ):
        pass


def test_where_there_is_no_working_tree_the_environment_says_what_code_runs(monkeypatch):
    monkeypatch.setenv("PASTA_CODE_VERSION", "v1.2-3-gabcdef")
    assert code_version() == "v1.2-3-gabcdef"
