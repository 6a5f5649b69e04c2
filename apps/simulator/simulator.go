// Package simulator runs a fleet of thousands of agents on one machine against a real installation, and
// measures what the design promises at scale.
//
//	this process                       child processes
//	  users ------ API ------------->  control plane, 1..n replicas
//	  agents <---- Watch, Report --->    |          |
//	   `- simulated runtimes           MariaDB    Restate
//	  instruments: /proc, /metrics, SQL
//
// Only the executors are simulated. Agents, protocol, control plane and its backends are the shipped code
// over loopback sockets. Every scenario checks that what it timed also happened, and fails otherwise.
//
// Only this file connects the program's packages.
package simulator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"runtime/debug"
	"time"

	"github.com/alecthomas/kong"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/controlplane"
	"github.com/windlass-run/windlass/apps/gateway"
	"github.com/windlass-run/windlass/apps/simulator/internal/chaos"
	"github.com/windlass-run/windlass/apps/simulator/internal/proxies"
	"github.com/windlass-run/windlass/apps/simulator/internal/result"
	"github.com/windlass-run/windlass/apps/simulator/internal/scenario"
	"github.com/windlass-run/windlass/apps/simulator/internal/siege"
	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
)

// common are the flags of every command.
type common struct {
	JSON          bool          `name:"json" help:"Print one JSON object on the last line of stdout, and nothing else there."`
	Seed          uint64        `help:"Seed of everything random." default:"1"`
	ControlPlanes int           `help:"Replicas of the control plane." default:"1"`
	ControlPlane  string        `help:"Binary of the control plane; empty: this program." type:"existingfile"`
	Relaxed       bool          `help:"Let commits survive kill -9 only, not a power failure."`
	Keep          bool          `help:"Keep the folder with data and logs."`
	Pprof         string        `help:"Folder that gets CPU profiles of what is measured." type:"path"`
	MaxMemoryGiB  float64       `name:"max-memory-gib" help:"Fail if all processes together use more memory than this." default:"14"`
	Deadline      time.Duration `help:"Fail if a run takes longer. 0: the scenario's default."`
	Verbose       bool          `help:"Show the warnings of agents."`

	As     string `hidden:"" help:"Name of the scenario in its result."`
	Result string `hidden:"" help:"File that gets the result as JSON, too." type:"path"`
}

type cli struct {
	common

	Latency   scenario.Latency   `cmd:"" help:"Time from commit to agent in a large, quiet fleet."`
	Burst     scenario.Burst     `cmd:"" help:"Changes delivered per second when many are made at once."`
	Snapshot  scenario.Snapshot  `cmd:"" help:"Items per second that an agent without an inbox gets."`
	Ingest    scenario.Ingest    `cmd:"" help:"States of instances per second that become durable."`
	Idle      scenario.Idle      `cmd:"" help:"What agents cost while nothing happens."`
	Converge  scenario.Converge  `cmd:"" help:"Time from a call until all instances are ready."`
	Deploys   scenario.Deploys   `cmd:"" help:"Whole deployments per second."`
	Rollouts  scenario.Rollouts  `cmd:"" help:"What rollouts in waves cost, many at a time."`
	Reconnect scenario.Reconnect `cmd:"" help:"Time until a fleet that was cut is back."`
	Restart   scenario.Restart   `cmd:"" help:"What a rolling restart of the control plane costs agents and users."`
	Slow      scenario.Slow      `cmd:"" help:"What one stalled agent costs the others."`
	Flood     scenario.Flood     `cmd:"" help:"What one workspace's flood of calls costs another."`
	Overload  scenario.Overload  `cmd:"" help:"Delay of important changes while agents report ten times too much."`
	Retention scenario.Retention `cmd:"" help:"What a week of changes leaves in the database."`
	Regions   scenario.Regions   `cmd:"" help:"What a change costs in a small fleet and in a large one."`
	Gateway   scenario.Gateway   `cmd:"" help:"Cost of the gateway compared with nginx and HAProxy, which must be installed."`
	Siege     scenario.Siege     `cmd:"" help:"What attacks of one tenant's clients on a gateway cost another tenant."`
	Zero      scenario.Zero      `cmd:"" help:"An app to zero and back, with real processes: failed requests, lost wakes, overhead of the hold."`
	Watchers  scenario.Watchers  `cmd:"" help:"What one workspace's WatchApp streams cost another."`
	Baselines scenario.Baselines `cmd:"" help:"What the database, Restate and Connect do alone."`
	Chaos     chaos.Chaos        `cmd:"" help:"Breaks everything at random, and checks that no promise breaks."`
	All       all                `cmd:"" help:"Every scenario, one after the other, into a file."`
}

// Main runs the program with the command line's arguments until ctx ends.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == stack.ControlPlaneCommand {
		return controlplane.Main(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == proxies.GatewayCommand {
		return gateway.Main(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == scenario.ZeroAgentCommand {
		return agent.Main(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == scenario.ZeroInstanceCommand {
		return scenario.ColdInstance(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == siege.AttackCommand {
		return siege.Attack(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == siege.InstancesCommand {
		return siege.Instances(ctx, args[1:], stdout)
	}
	if len(args) > 0 && args[0] == scenario.ViewersCommand {
		return scenario.Viewers(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == proxies.BareCommand {
		return proxies.Bare(ctx, args[1:])
	}
	flags, name, chosen, err := parse(args, stdout, stderr)
	if err != nil {
		return err
	}
	if name == "all" {
		return flags.All.run(ctx, flags.common, stdout, stderr)
	}
	r, err := flags.run(ctx, cmp.Or(flags.As, name), chosen, stderr)
	if err != nil {
		return err
	}
	if err := flags.show(r, stdout); err != nil {
		return err
	}
	if r.Error != "" {
		return errors.New(r.Scenario + " failed")
	}
	return nil
}

// parse parses the command line. chosen is nil for a command that is no scenario.
func parse(args []string, stdout, stderr io.Writer) (flags *cli, name string, chosen scenario.Scenario, err error) {
	flags = &cli{}
	parser, err := kong.New(flags, kong.Name("simulator"), kong.Writers(stdout, stderr),
		kong.Description("Measures Windlass with a simulated fleet on this machine."), kong.ConfigureHelp(kong.HelpOptions{Compact: true}))
	if err != nil {
		return nil, "", nil, fmt.Errorf("flags: %w", err)
	}
	command, err := parser.Parse(args)
	if err != nil {
		return nil, "", nil, fmt.Errorf("%w (try --help)", err)
	}
	chosen, _ = reflect.TypeAssert[scenario.Scenario](command.Selected().Target.Addr())
	return flags, command.Selected().Name, chosen, nil
}

// run runs a scenario within its deadline. The result contains the scenario's error.
func (f common) run(ctx context.Context, name string, chosen scenario.Scenario, stderr io.Writer) (*result.Result, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	limit := int64(f.MaxMemoryGiB * (1 << 30))
	// The garbage collector of this process works harder before the run fails because of its memory.
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(limit * 3 / 4))
	begin := time.Now()
	options := testbed.Options{
		Self: self, ControlPlane: f.ControlPlane, ControlPlanes: f.ControlPlanes, Seed: f.Seed,
		Relaxed: f.Relaxed, Keep: f.Keep, Pprof: f.Pprof, MaxMemory: limit,
		Progress: func(line string) {
			_, _ = fmt.Fprintf(stderr, "%7.1fs %s: %s\n", time.Since(begin).Seconds(), name, line)
		},
	}
	if f.Verbose {
		options.Log = slog.NewTextHandler(stderr, nil)
	}
	deadline := f.Deadline
	if deadline == 0 {
		deadline = chosen.Deadline()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, deadline, fmt.Errorf("gave up after %s", deadline))
	defer cancel()
	r := result.New(name, f.Seed)
	if err := chosen.Run(ctx, scenario.Env{Options: options, Result: r}); err != nil {
		r.Error = err.Error()
	}
	return r, nil
}

func (f common) show(r *result.Result, stdout io.Writer) error {
	line, err := json.Marshal(r)
	if err == nil && f.Result != "" {
		err = os.WriteFile(f.Result, append(line, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	if !f.JSON {
		return r.Table(stdout)
	}
	_, err = fmt.Fprintln(stdout, string(line))
	return err
}
