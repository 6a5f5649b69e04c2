// Package dev runs the whole of Windlass on one machine: MariaDB, Restate, the control plane, and an agent and a
// gateway for each region. Each is a separate process. A region is this host, or its own Kubernetes cluster.
//
//	windlass dev
//	├── mariadbd             private data directory, one account with a password
//	├── restate-server
//	├── windlass dev __restate-tls          with --tls: Restate's server has no TLS for clients
//	├── kubelab                            one for each region, if they are clusters
//	├── windlass dev __controlplane
//	├── windlass dev __agent                one for each region
//	└── windlass dev __gateway              one for each region
//	    └── shims, instances                in sessions of their own
//
// What a user may rely on, and why it holds:
//
//   - One `dev` runs for each data directory, because it holds a lock on it. The kernel releases the lock whenever dev
//     ends, even after a kill.
//   - A child that dies is started again on the same ports, so that the other
//     programs notice only a pause.
//   - After a stop nothing of dev runs any more. First the gateways end, and then the
//     agents, because they would start instances again. The instances, the control
//     plane, Restate and MariaDB follow. The desired state stays on disk, so the next
//     dev brings it back.
//   - kill -9 of dev leaves its children running. The next dev or `dev stop` finds each child by its record, which
//     package proc keeps.
//   - Ports, and the networks of clusters, stay the same from one run to the next,
//     unless another process uses one.
//   - The data of a cluster is kept. Its pods end whenever kubelab ends, and start again with the next kubelab.
//
// The control plane, the agents and the gateways are this same program, run again with
// hidden commands, so that there is one binary to install and to rebuild.
package dev

import (
	"context"
	"log/slog"
)

// Programs are the programs that dev runs besides MariaDB and Restate. The hidden commands call the first three in
// separate processes.
type Programs struct {
	// ControlPlane, Agent and Gateway run with a command line's arguments until ctx ends.
	ControlPlane func(ctx context.Context, args []string) error
	Agent        func(ctx context.Context, args []string) error
	Gateway      func(ctx context.Context, args []string) error
	// Bootstrap migrates the database, and creates the workspace, keys and regions that are missing. It may be called
	// again.
	Bootstrap func(ctx context.Context, cfg Bootstrap) (Bootstrapped, error)
	// StopInstances stops the instances that an agent left running on its data directory. The agent itself
	// has ended. The next agent on that directory starts them again.
	StopInstances func(ctx context.Context, agentDir string, log *slog.Logger) error
}

// Bootstrap describes the content of a new installation.
type Bootstrap struct {
	MySQLDSN string
	// MySQLCA is a PEM file with the CA of the database's certificate. Empty: no TLS.
	MySQLCA   string
	Workspace string
	Regions   []string
	// APIKey and OperatorKey are keys of an earlier run. Empty: new keys are created.
	APIKey, OperatorKey string
}

// Bootstrapped holds the secrets that Bootstrap returns and nothing else shows.
type Bootstrapped struct {
	APIKey, OperatorKey string
	// JoinTokens are the join tokens by region.
	JoinTokens map[string]string
}

// Config is the configuration of the dev commands.
type Config struct {
	Programs Programs
	// Getenv is os.Getenv, except in tests.
	Getenv func(string) string
}

// These names are created by bootstrap, and used by the CLI's context.
const (
	workspace   = "default"
	project     = "default"
	environment = "production"
)

// ExitCode is an error that was reported already. The program exits with this code, and prints nothing more.
type ExitCode int

func (ExitCode) Error() string { return "already reported" }
