package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/siege"
)

// Siege makes the attacks that cost an attacker least, one after the other, while another tenant's app has a
// steady load. It fails if p99 of that tenant's requests is above the floor and more than twice the value
// before, on old or on new connections. It also fails if a request of that tenant fails, if the gateway uses
// more memory than allowed, or if a healthy instance is ejected. A window in which the host of a virtual machine
// takes more than a twentieth of the processor is measured again.
//
// What limits it: the attacker and the instances share the processor with the gateway.
type Siege struct {
	Window      time.Duration `help:"How long the load is measured before and during each attack. Longer than the time that the gateway gives an incomplete header, so that the measurement includes the end of incomplete requests." default:"20s"`
	Rate        float64       `help:"Requests of the other tenant per second, on connections that stay open." default:"200"`
	NewRate     float64       `help:"Requests of the other tenant per second, each on a new connection." default:"50"`
	Connections int           `help:"Connections of the other tenant." default:"16"`
	Only        []string      `help:"Attacks to run, of idle, uploads, poison, watches, half and held; empty: all."`
	Idle        int           `help:"Connections without a request." default:"20000"`
	Uploads     int           `help:"Uploads of two bytes a second." default:"64"`
	Poison      int           `help:"Clients that ask twice a second for an answer with 50,000 fields." default:"24"`
	Watches     int           `help:"Streams that do not end, over HTTP/2." default:"10000"`
	Half        int           `help:"HTTP/3 requests that never send the last byte of their header." default:"18000"`
	Held        int           `help:"Requests for an app at zero. Each is sent again when it is refused." default:"8000"`
	Floor       time.Duration `help:"p99 up to which an attack never counts as a failure, because another process on the processor can delay a request this long. Raise it if the machine does other work." default:"3ms"`
	Realtime    bool          `help:"Give the gateway and the other tenant's load the real-time class of the scheduler, so that attackers and other work on the machine do not delay them. Needs root."`
	GatewayMiB  float64       `name:"gateway-mib" help:"Memory that the gateway may use." default:"1536"`
}

// Deadline implements Scenario.
func (s *Siege) Deadline() time.Duration {
	return 5*time.Minute + time.Duration(len(siege.Kinds))*(2*measure.Windows*s.Window+time.Minute)
}

// Run implements Scenario.
func (s *Siege) Run(ctx context.Context, env Env) (err error) {
	counts := map[string]int{"idle": s.Idle, "uploads": s.Uploads, "poison": s.Poison, "watches": s.Watches, "half": s.Half, "held": s.Held}
	err = requirePositive("--window", s.Window, "--rate", s.Rate, "--new-rate", s.NewRate, "--connections", s.Connections, "--idle", s.Idle, "--uploads", s.Uploads,
		"--poison", s.Poison, "--watches", s.Watches, "--half", s.Half, "--held", s.Held, "--gateway-mib", s.GatewayMiB)
	if err != nil {
		return err
	}
	kinds := siege.Kinds
	if len(s.Only) > 0 {
		kinds = s.Only
	}
	for _, kind := range kinds {
		if counts[kind] == 0 {
			return fmt.Errorf("--only=%s: use some of %s", kind, strings.Join(siege.Kinds, ", "))
		}
		env.recordSizes(kind, counts[kind])
	}
	env.recordSizes("window", s.Window.String(), "rate", s.Rate, "new-rate", s.NewRate, "connections", s.Connections)
	if s.Realtime {
		normal, changeErr := measure.Realtime()
		if changeErr != nil {
			return fmt.Errorf("--realtime: %w", changeErr)
		}
		defer func() { err = errors.Join(err, normal()) }()
	}
	dir, err := os.MkdirTemp("", "windlass-siege-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	gateway, err := siege.Start(ctx, dir, env.Self)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gateway.Close()) }()
	load := siege.Load{Window: s.Window, Connections: s.Connections, PerSecond: s.Rate, NewPerSecond: s.NewRate}
	var failures []error
	for _, kind := range kinds {
		out, err := gateway.Attack(ctx, kind, counts[kind], load)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		failures = append(failures, s.judgeDamage(kind, out))
		s.noteOutcome(env, kind, counts[kind], out)
	}
	return errors.Join(failures...)
}

// judgeDamage returns an error that describes all damage to tenants other than the attacker, or nil.
func (s *Siege) judgeDamage(kind string, out siege.Outcome) error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(kind+": "+format, args...)) }
	stolen := fmt.Sprintf("the host took %.0f %% and %.0f %% of the processor", 100*out.Before.Stolen, 100*out.During.Stolen)
	if out.Failed != nil {
		fail("a request of another tenant failed: %w", out.Failed)
	}
	if out.During.P99 > 2*out.Before.P99 && out.During.P99 > s.Floor {
		fail("p99 of another tenant's requests went from %s to %s, and %s", out.Before.P99, out.During.P99, stolen)
	}
	if out.During.New > 2*out.Before.New && out.During.New > s.Floor {
		fail("p99 of another tenant's requests on new connections went from %s to %s, and %s", out.Before.New, out.During.New, stolen)
	}
	if mib := float64(out.RSS) / (1 << 20); mib > s.GatewayMiB {
		fail("the gateway had %.0f MiB", mib)
	}
	if kind == "held" && out.Held == 0 {
		fail("no request waited for the app at zero")
	}
	if len(out.Ejected) > 0 {
		fail("healthy instances were ejected: %v", out.Ejected)
	}
	return errors.Join(errs...)
}

func (s *Siege) noteOutcome(env Env, kind string, count int, out siege.Outcome) {
	mib := float64(out.RSS) / (1 << 20)
	env.Progress(fmt.Sprintf("%s, %d: p99 %s before and %s during, of new connections %s and %s, %.2f and %.2f cores, %.0f MiB, %d ejected, %.0f connections refused and %.0f shed, %.0f requests held, %.0f %% and %.0f %% of the processor stolen",
		kind, count, out.Before.P99, out.During.P99, out.Before.New, out.During.New, out.Before.Cores, out.During.Cores, mib, len(out.Ejected), out.Refused, out.Shed, out.Held, 100*out.Before.Stolen, 100*out.During.Stolen))
	env.Result.Rounds = append(env.Result.Rounds, map[string]any{
		"attack": kind, "count": count, "p99_before_ms": measure.Millis(out.Before.P99), "p99_during_ms": measure.Millis(out.During.P99),
		"new_p99_before_ms": measure.Millis(out.Before.New), "new_p99_during_ms": measure.Millis(out.During.New),
		"cores_before": out.Before.Cores, "cores_during": out.During.Cores,
		"rss_mib": mib, "ejected": len(out.Ejected), "refused": out.Refused, "shed": out.Shed, "held": out.Held,
		"stolen_before": out.Before.Stolen, "stolen_during": out.During.Stolen,
	})
	env.Result.Figure(kind+"_p99_before_ms", measure.Millis(out.Before.P99), "ms")
	env.Result.Figure(kind+"_p99_ms", measure.Millis(out.During.P99), "ms during the attack")
	env.Result.Figure(kind+"_new_p99_before_ms", measure.Millis(out.Before.New), "ms on new connections")
	env.Result.Figure(kind+"_new_p99_ms", measure.Millis(out.During.New), "ms on new connections during the attack")
	env.Result.Figure(kind+"_cores", out.During.Cores, "cores of the gateway during the attack")
	env.Result.Figure(kind+"_rss_mib", mib, "MiB of the gateway at most")
	env.Result.Figure(kind+"_ejected", float64(len(out.Ejected)), "instances")
	env.Result.Figure(kind+"_refused", out.Refused, "connections")
}
