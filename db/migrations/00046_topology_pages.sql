-- +goose NO TRANSACTION
-- +goose Up
-- For reading a region's desired state in pages, by key.
ALTER TABLE deployment_topology
    ADD KEY IF NOT EXISTS topology_in_region (region, deployment_id);
