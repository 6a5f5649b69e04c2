-- +goose NO TRANSACTION
-- +goose Up
-- What of the route's policy finds the apps whose requests may go to other regions: a
-- RoutingPolicy.CrossRegion, 0 for those of before, which had none.
ALTER TABLE app_routes
    ADD COLUMN IF NOT EXISTS cross_region INT NOT NULL DEFAULT 0,
    ADD KEY IF NOT EXISTS routes_across (cross_region);
