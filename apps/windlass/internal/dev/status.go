package dev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/windlass-run/windlass/pkg/localstack/kubelab"
	"github.com/windlass-run/windlass/pkg/localstack/mariadb"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
	"github.com/windlass-run/windlass/pkg/localstack/restate"
)

// Status is the output of `dev status -o json`.
type Status struct {
	// Running reports whether a dev holds the data directory.
	Running bool `json:"running"`
	// Healthy reports whether the dev and every process run, and each process does its work.
	Healthy bool   `json:"healthy"`
	DataDir string `json:"dataDir"`
	// API is the URL of the control plane.
	API string `json:"api,omitempty"`
	// Left are the processes that a killed dev left running.
	Left []string `json:"left,omitempty"`
	State
	layout layout
}

func statusCommand(cfg Config, opts *options) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the Windlass of this machine: processes, ports, health",
		Long: `Show the Windlass of this machine: processes, ports, health. Ends with code 1
when it does not run or is not healthy.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.completeDataDir(cfg); err != nil {
				return err
			}
			printer, ok := statusPrinters[output]
			if !ok {
				return fmt.Errorf("--output: %q is not table, json or yaml", output)
			}
			cmd.SilenceUsage = true
			s, err := readStatus(cmd.Context(), opts.dataLayout())
			if err != nil {
				return err
			}
			if err := printer(cmd.OutOrStdout(), s); err != nil {
				return err
			}
			if !s.Healthy {
				cmd.SilenceErrors = true
				return ExitCode(1)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table, json or yaml")
	return cmd
}

// probeDeadline bounds the probe of one process. Local processes answer much faster.
const probeDeadline = 3 * time.Second

func readStatus(ctx context.Context, l layout) (Status, error) {
	s := Status{DataDir: l.root, layout: l}
	var err error
	if s.State, err = loadState(l.statePath()); err != nil {
		return s, err
	}
	if s.Running, err = l.isRunning(); err != nil {
		return s, err
	}
	if !s.Running {
		s.Phase, s.PID, s.Birth, s.Processes = phaseStopped, 0, "", nil
		s.Left, err = l.listStrays()
		return s, err
	}
	s.API = urlOf(s.TLS, s.Ports[portAPI])
	var wg sync.WaitGroup
	for i := range s.Processes {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, probeDeadline)
			defer cancel()
			p := &s.Processes[i]
			if err := s.probeProcess(ctx, l, *p); err != nil {
				p.Health = err.Error()
				return
			}
			p.Health = "ok"
		})
	}
	wg.Wait()
	s.Healthy = s.Phase == phaseReady
	for _, p := range s.Processes {
		s.Healthy = s.Healthy && p.Health == "ok"
	}
	return s, nil
}

// probeProcess asks the process itself, because the state file may be older than the process's end.
func (s Status) probeProcess(ctx context.Context, l layout, p ProcessState) error {
	record, ask := "", func() error { return nil }
	ca := s.caFile(l)
	region, isAgent := strings.CutPrefix(p.Name, "agent/")
	gateway, isGateway := strings.CutPrefix(p.Name, "gateway/")
	cluster, isCluster := strings.CutPrefix(p.Name, "kubelab/")
	switch {
	case isCluster:
		record = kubelab.RecordFile(l.kubelabDir(cluster))
		ask = func() error { return clusterReady(ctx, p.Kubeconfig) }
	case isGateway:
		record = recordFile(l.gatewayDir(gateway))
		ask = func() error { return checkReady(ctx, urlOf(s.TLS, s.Ports[portGatewayMetrics(gateway)]), ca) }
	case isAgent:
		record = recordFile(l.agentDir(region))
		ask = func() error { return checkReady(ctx, urlOf(s.TLS, s.Ports[portAgent(region)]), ca) }
	case p.Name == "mariadb":
		record = mariadb.RecordFile(l.mariaDBDir())
		ask = func() error { return mariadb.Ping(ctx, l.mariaDBDir(), s.Ports[portMariaDB], ca) }
	case p.Name == "restate":
		record = restate.RecordFile(l.restateDir())
		ask = func() error {
			if s.TLS {
				return restate.PingSockets(ctx, l.restateDir())
			}
			return restate.Ping(ctx, urlOf(false, s.Ports[portRestateIngress]), urlOf(false, s.Ports[portRestateAdmin]))
		}
	case p.Name == "restate-tls":
		record = recordFile(l.restateFrontDir())
		ask = func() error {
			return frontReady(ctx, ca, urlOf(true, s.Ports[portRestateIngress]), urlOf(true, s.Ports[portRestateAdmin]))
		}
	case p.Name == "controlplane":
		record = recordFile(l.controlPlaneDir())
		ask = func() error { return checkReady(ctx, urlOf(s.TLS, s.Ports[portMetrics]), ca) }
	}
	if _, runs, err := proc.Find(record); err != nil {
		return err
	} else if !runs {
		return errors.New("does not run")
	}
	return ask()
}

var statusPrinters = map[string]func(io.Writer, Status) error{
	"json": func(w io.Writer, s Status) error {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(s)
	},
	"yaml": func(w io.Writer, s Status) error {
		b, err := yaml.Marshal(s)
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	},
	"table": printStatus,
}

func printStatus(w io.Writer, s Status) error {
	if !s.Running {
		line := "windlass dev does not run on " + shortPath(s.DataDir)
		if len(s.Left) > 0 {
			line += "\nprocesses that a killed dev left: " + strings.Join(s.Left, ", ") + "; `" + s.layout.shellCommand(programName(), "stop") + "` ends them"
		}
		_, err := fmt.Fprintln(w, line)
		return err
	}
	uptime := time.Since(s.StartedAt).Round(time.Second)
	if _, err := fmt.Fprintf(w, "windlass dev is %s: pid %d, up %s, API %s, data in %s\n\n",
		s.Phase, s.PID, uptime, s.API, shortPath(s.DataDir)); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(t, "PROCESS\tPID\tSTATE\tRESTARTS\tHEALTH\tADDRESS\tLOG")
	for _, p := range s.Processes {
		pid := "-"
		if p.PID != 0 {
			pid = fmt.Sprint(p.PID)
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n",
			p.Name, pid, p.State, p.Restarts, p.Health, s.addressOf(p), shortPath(p.Log))
	}
	if hints := clusterHints(s.Processes); len(hints) > 0 {
		_, _ = fmt.Fprintf(t, "\n%s\n", strings.Join(hints, "\n"))
	}
	return t.Flush()
}

// addressOf returns the address of a process as the start of dev prints it.
func (s Status) addressOf(p ProcessState) string {
	admin := urlOf(s.TLS, s.Ports[portRestateAdmin])
	switch {
	case len(p.URLs) == 0:
		return "-"
	case slices.Contains(p.URLs, admin):
		return restateAddress(admin)
	}
	return p.URLs[0]
}
