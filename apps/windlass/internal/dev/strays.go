package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/windlass-run/windlass/pkg/flock"
	"github.com/windlass-run/windlass/pkg/localstack/kubelab"
	"github.com/windlass-run/windlass/pkg/localstack/mariadb"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
	"github.com/windlass-run/windlass/pkg/localstack/restate"
)

// stopAgents stops the agents that a killed dev left running.
func (s sweeper) stopAgents(ctx context.Context) error {
	regions, err := s.layout.everyRegion()
	for _, region := range regions {
		_, stopErr := proc.StopStray(ctx, recordFile(s.layout.agentDir(region)), programGrace)
		err = errors.Join(err, stopErr)
	}
	return err
}

// stopProcesses stops the children that a killed dev left running, in the order of a normal stop. Instances
// keep running, because the next agent takes them over.
func (s sweeper) stopProcesses(ctx context.Context) error {
	regions, err := s.layout.everyRegion()
	if err != nil {
		return err
	}
	var stopped []string
	stray := func(title string, stop func() (int, error)) {
		pid, stopErr := stop()
		if stopErr != nil {
			err = errors.Join(err, fmt.Errorf("%s of an earlier run: %w", title, stopErr))
		}
		if pid != 0 {
			stopped = append(stopped, fmt.Sprintf("%s (pid %d)", title, pid))
		}
	}
	gateways, gatewaysErr := s.layout.everyGateway()
	err = errors.Join(err, gatewaysErr)
	for _, region := range gateways {
		stray("gateway "+region, func() (int, error) {
			return proc.StopStray(ctx, recordFile(s.layout.gatewayDir(region)), programGrace)
		})
	}
	for _, region := range regions {
		stray("agent "+region, func() (int, error) {
			return proc.StopStray(ctx, recordFile(s.layout.agentDir(region)), programGrace)
		})
	}
	stray("control plane", func() (int, error) {
		return proc.StopStray(ctx, recordFile(s.layout.controlPlaneDir()), programGrace)
	})
	clusters, clustersErr := s.layout.everyCluster()
	err = errors.Join(err, clustersErr)
	for _, region := range clusters {
		stray("Kubernetes "+region, func() (int, error) { return kubelab.StopStray(ctx, s.layout.kubelabDir(region)) })
	}
	stray("Restate TLS", func() (int, error) {
		return proc.StopStray(ctx, recordFile(s.layout.restateFrontDir()), programGrace)
	})
	stray("Restate", func() (int, error) { return restate.StopStray(ctx, s.layout.restateDir()) })
	stray("MariaDB", func() (int, error) { return mariadb.StopStray(ctx, s.layout.mariaDBDir()) })
	if len(stopped) > 0 {
		s.note("stopped what an earlier run left behind: " + strings.Join(stopped, ", "))
	}
	return err
}

// hasState reports whether a dev ever ran in this directory.
func (l layout) hasState() bool {
	_, err := os.Stat(l.statePath())
	return err == nil
}

// listStrays returns the children that still run although no dev runs.
func (l layout) listStrays() ([]string, error) {
	regions, err := l.everyRegion()
	if err != nil {
		return nil, err
	}
	files := map[string]string{
		"MariaDB": mariadb.RecordFile(l.mariaDBDir()), "Restate": restate.RecordFile(l.restateDir()),
		"Restate TLS": recordFile(l.restateFrontDir()), "control plane": recordFile(l.controlPlaneDir()),
	}
	order := []string{"MariaDB", "Restate", "Restate TLS", "control plane"}
	for _, region := range regions {
		files["agent "+region] = recordFile(l.agentDir(region))
		order = append(order, "agent "+region)
	}
	gateways, err := l.everyGateway()
	if err != nil {
		return nil, err
	}
	for _, region := range gateways {
		files["gateway "+region] = recordFile(l.gatewayDir(region))
		order = append(order, "gateway "+region)
	}
	clusters, err := l.everyCluster()
	if err != nil {
		return nil, err
	}
	for _, region := range clusters {
		files["Kubernetes "+region] = kubelab.RecordFile(l.kubelabDir(region))
		order = append(order, "Kubernetes "+region)
	}
	var out []string
	for _, title := range order {
		rec, ok, err := proc.Find(files[title])
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, fmt.Sprintf("%s (pid %d)", title, rec.PID))
		}
	}
	return out, nil
}

// isRunning reports whether a dev holds the lock of the data directory.
func (l layout) isRunning() (bool, error) {
	if _, err := os.Stat(l.root); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	lock, err := flock.Try(l.lockPath())
	if errors.Is(err, flock.ErrHeld) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return false, lock.Unlock()
}

func (l layout) alreadyRuns() error {
	where := ""
	if s, err := loadState(l.statePath()); err == nil && s.PID != 0 {
		where = fmt.Sprintf(" (pid %d, %s)", s.PID, urlOf(s.TLS, s.Ports[portAPI]))
	}
	name := programName()
	return fmt.Errorf("windlass dev already runs on %s%s; see `%s`, or end it with `%s`",
		shortPath(l.root), where, l.shellCommand(name, "status"), l.shellCommand(name, "stop"))
}
