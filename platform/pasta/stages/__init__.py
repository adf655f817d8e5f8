"""What every job on disk shares: stages with manifests, shards, records, progress, workers, pipelines."""
