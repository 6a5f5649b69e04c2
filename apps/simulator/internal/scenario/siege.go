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

// Siege attacks a gateway in the ways that cost an attacker least, one after the other, while the app of
// another tenant has a steady load. It fails if that tenant waits more than twice as long as before and
// longer than the floor. It also fails if a request of that tenant fails, if the gateway uses more memory
// than it may, or if a sound instance is ejected.
//
// What limits it: the attacker and the instances share the processor with the gateway.
type Siege struct {
	Window      time.Duration `help:"How long the load is measured before and during each attack." default:"8s"`
	Rate        float64       `help:"Requests of the other tenant's a second." default:"200"`
	Connections int           `help:"Connections of the other tenant's." default:"16"`
	Only        []string      `help:"Attacks to run, of idle, uploads, poison, watches and half; empty: all."`
	Idle        int           `help:"Connections without a request." default:"20000"`
	Uploads     int           `help:"Uploads of two bytes a second." default:"64"`
	Poison      int           `help:"Clients that ask twice a second for an answer with 50,000 fields." default:"24"`
	Watches     int           `help:"Streams that do not end, over HTTP/2." default:"10000"`
	Half        int           `help:"Requests of HTTP/3 of which the last byte of the header does not come." default:"18000"`
	Floor       time.Duration `help:"p99 that is no failure, however short it was before." default:"50ms"`
	GatewayMiB  float64       `name:"gateway-mib" help:"Memory that the gateway may use." default:"1536"`
}

// Deadline implements Scenario.
func (s *Siege) Deadline() time.Duration {
	return 5*time.Minute + time.Duration(len(siege.Kinds))*(2*s.Window+time.Minute)
}

// Run implements Scenario.
func (s *Siege) Run(ctx context.Context, env Env) (err error) {
	counts := map[string]int{"idle": s.Idle, "uploads": s.Uploads, "poison": s.Poison, "watches": s.Watches, "half": s.Half}
	err = positive("--window", s.Window, "--rate", s.Rate, "--connections", s.Connections, "--idle", s.Idle, "--uploads", s.Uploads,
		"--poison", s.Poison, "--watches", s.Watches, "--half", s.Half, "--gateway-mib", s.GatewayMiB)
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
		env.sizes(kind, counts[kind])
	}
	env.sizes("window", s.Window.String(), "rate", s.Rate, "connections", s.Connections)
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
	var failures []error
	for _, kind := range kinds {
		out, err := gateway.Attack(ctx, kind, counts[kind], siege.Load{Window: s.Window, Connections: s.Connections, PerSecond: s.Rate})
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		failures = append(failures, s.judge(kind, out))
		s.note(env, kind, counts[kind], out)
	}
	return errors.Join(failures...)
}

// judge returns what went wrong for others than the attacker; nil: nothing did.
func (s *Siege) judge(kind string, out siege.Outcome) error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(kind+": "+format, args...)) }
	if out.Failed != nil {
		fail("a request of another tenant's failed: %w", out.Failed)
	}
	if out.During > 2*out.Before && out.During > s.Floor {
		fail("p99 of another tenant's requests went from %s to %s", out.Before, out.During)
	}
	if mib := float64(out.RSS) / (1 << 20); mib > s.GatewayMiB {
		fail("the gateway had %.0f MiB", mib)
	}
	if out.Ejected > 0 {
		fail("%d instances were ejected that are sound", out.Ejected)
	}
	return errors.Join(errs...)
}

func (s *Siege) note(env Env, kind string, count int, out siege.Outcome) {
	mib := float64(out.RSS) / (1 << 20)
	env.Progress(fmt.Sprintf("%s, %d: p99 %s before and %s during, %.0f MiB, %d ejected, %.0f connections refused and %.0f shed",
		kind, count, out.Before, out.During, mib, out.Ejected, out.Refused, out.Shed))
	env.Result.Rounds = append(env.Result.Rounds, map[string]any{
		"attack": kind, "count": count, "p99_before_ms": measure.Millis(out.Before), "p99_during_ms": measure.Millis(out.During),
		"rss_mib": mib, "ejected": out.Ejected, "refused": out.Refused, "shed": out.Shed,
	})
	env.Result.Figure(kind+"_p99_before_ms", measure.Millis(out.Before), "ms")
	env.Result.Figure(kind+"_p99_ms", measure.Millis(out.During), "ms during the attack")
	env.Result.Figure(kind+"_rss_mib", mib, "MiB of the gateway at most")
	env.Result.Figure(kind+"_ejected", float64(out.Ejected), "instances")
	env.Result.Figure(kind+"_refused", out.Refused, "connections")
}
