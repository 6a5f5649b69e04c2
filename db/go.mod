module github.com/windlass-run/windlass/db

go 1.26.0

require github.com/pressly/goose/v3 v3.28.0

require (
	github.com/mfridman/interpolate v0.0.2 // indirect
	github.com/sethvargo/go-retry v0.4.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	golang.org/x/sync v0.22.0 // indirect
)
