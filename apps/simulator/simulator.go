// Package simulator runs a fleet of thousands of agents on one machine against a real installation, and
// measures whether the installation keeps the promises of the design at scale.
//
//	this process                       child processes
//	  users ------ API ------------->  control plane, 1..n replicas
//	  agents <---- Watch, Report --->    |          |
//	   `- simulated runtimes           MariaDB    Restate
//	  instruments: /proc, /metrics, SQL
//
// Only the runtimes are simulated. Agents, protocol, control plane and its backends are the shipped code, and talk
// over loopback sockets. A scenario fails if a change that it timed did not happen.
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
	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/proxies"
	"github.com/windlass-run/windlass/apps/simulator/internal/result"
	"github.com/windlass-run/windlass/apps/simulator/internal/scenario"
	"github.com/windlass-run/windlass/apps/simulator/internal/siege"
	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
)

// common are the flags of every command.
type common struct {
	JSON          bool          `name:"json" help:"Print the result to stdout as one line of JSON, and nothing else."`
	Seed          uint64        `help:"Seed of all random numbers." default:"1"`
	ControlPlanes int           `help:"Replicas of the control plane." default:"1"`
	ControlPlane  string        `help:"Binary of the control plane. Default: this program." type:"existingfile"`
	Relaxed       bool          `help:"Do not flush commits to the disk. They survive kill -9, but not a power failure."`
	Keep          bool          `help:"Keep the folder with data and logs after the run."`
	Pprof         string        `help:"Folder for CPU profiles of the measured time." type:"path"`
	MaxMemoryGiB  float64       `name:"max-memory-gib" help:"Fail if all processes together use more memory than this." default:"14"`
	Deadline      time.Duration `help:"Fail if a run takes longer. 0: the scenario's default."`
	Verbose       bool          `help:"Print the warnings of agents to stderr."`

	As     string `hidden:"" help:"Name of the scenario in its result. Default: the command."`
	Result string `hidden:"" help:"File for the result as JSON, in addition to stdout." type:"path"`
}

type cli struct {
	common

	Latency    scenario.Latency    `cmd:"" help:"Measure the time from a commit to the agent in a large, quiet fleet."`
	Burst      scenario.Burst      `cmd:"" help:"Measure how many changes per second reach agents when many are made at once."`
	Snapshot   scenario.Snapshot   `cmd:"" help:"Measure how many items per second an agent without an inbox receives in a snapshot."`
	Ingest     scenario.Ingest     `cmd:"" help:"Measure how many states of instances per second the control plane stores."`
	Idle       scenario.Idle       `cmd:"" help:"Measure what agents cost while nothing changes."`
	Converge   scenario.Converge   `cmd:"" help:"Measure the time from a call until all instances are ready."`
	Deploys    scenario.Deploys    `cmd:"" help:"Measure how many deployments per second become ready."`
	Rollouts   scenario.Rollouts   `cmd:"" help:"Measure what rollouts in waves cost when many run at the same time."`
	Reconnect  scenario.Reconnect  `cmd:"" help:"Measure the time until all agents are connected again after their connections broke."`
	Restart    scenario.Restart    `cmd:"" help:"Measure what a rolling restart of the control plane costs agents and users."`
	Slow       scenario.Slow       `cmd:"" help:"Measure what one stalled agent costs the other agents."`
	Flood      scenario.Flood      `cmd:"" help:"Measure what a flood of calls from one workspace costs another workspace."`
	Overload   scenario.Overload   `cmd:"" help:"Measure the delay of important changes while agents report ten times more than can be stored."`
	Retention  scenario.Retention  `cmd:"" help:"Measure how large the database is after a week of changes."`
	Regions    scenario.Regions    `cmd:"" help:"Compare the cost of a change in a small fleet with the cost in a large one."`
	Gateway    scenario.Gateway    `cmd:"" help:"Compare the cost of the gateway with the cost of nginx and HAProxy, which must be installed."`
	Siege      scenario.Siege      `cmd:"" help:"Measure what attacks by one tenant's clients on a gateway cost another tenant."`
	Zero       scenario.Zero       `cmd:"" help:"Scale an app to zero and back with real processes: failed requests, lost wakes, overhead of holding requests."`
	Scaling    scenario.Scaling    `cmd:"" help:"Measure what it costs to scale many apps by their load, and how soon they scale."`
	Follow     scenario.Follow     `cmd:"" help:"Check that the replicas of an app follow its load with real processes: failed requests, time to the first token, changes of direction."`
	Pairs      scenario.Pairs      `cmd:"" help:"Check that no request through pairs of prefill and decode servers fails while they change and are killed, with real processes."`
	Watchers   scenario.Watchers   `cmd:"" help:"Measure what the WatchApp streams of one workspace cost another workspace."`
	Dashboards scenario.Dashboards `cmd:"" help:"Measure what people who look at a fleet cost the control plane and its feed."`
	Baselines  scenario.Baselines  `cmd:"" help:"Measure the throughput of the database, of Restate and of Connect, each alone."`
	Chaos      chaos.Chaos         `cmd:"" help:"Cause random faults in all parts, and check that no promise of the design breaks."`
	All        all                 `cmd:"" help:"Run all scenarios one after the other, and write the results to a file."`
}

// Main runs the program with the command line's arguments until ctx ends.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == stack.ControlPlaneCommand {
		return controlplane.Main(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == proxies.GatewayCommand {
		return gateway.Main(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == scenario.AgentCommand {
		return agent.Main(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == scenario.ZeroInstanceCommand {
		return scenario.ColdInstance(ctx, args[1:])
	}
	if len(args) > 0 && args[0] == scenario.FollowInstanceCommand {
		return scenario.ModelServer(ctx, args[1:])
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
	r, err := flags.runScenario(ctx, cmp.Or(flags.As, name), chosen, stderr)
	if err != nil {
		return err
	}
	if err := flags.writeResult(r, stdout); err != nil {
		return err
	}
	if r.Error != "" {
		return errors.New(r.Scenario + " failed")
	}
	return nil
}

// parse parses the command line. name is the command, and chosen its scenario, or nil if it has none.
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

// runScenario runs a scenario within its deadline. If the scenario fails, its error is in the result.
func (f common) runScenario(ctx context.Context, name string, chosen scenario.Scenario, stderr io.Writer) (*result.Result, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	limit := int64(f.MaxMemoryGiB * (1 << 30))
	// Near the memory limit, the garbage collector of this process works harder, before the run fails.
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
	processors := measure.ReadProcessorTime()
	if err := chosen.Run(ctx, scenario.Env{Options: options, Result: r}); err != nil {
		r.Error = err.Error()
	}
	r.Machine.Stolen = measure.ReadProcessorTime().StolenSince(processors)
	return r, nil
}

// writeResult writes the result to stdout, and to the file of --result.
func (f common) writeResult(r *result.Result, stdout io.Writer) error {
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
