-- +goose NO TRANSACTION
-- +goose Up
-- What a region should run is read in pages, by key.
ALTER TABLE deployment_topology
    ADD KEY IF NOT EXISTS topology_in_region (region, deployment_id);
