// Package siege attacks a gateway, one way at a time, while another tenant's app has a steady load.
//
//	this process:  steady load ─▶ gateway, a child ─▶ instances, of this process
//	another child:    attack ─▶───┘ └──────────────▶ instances that are attacked or poisonous, of a third child
//
// The attacker and the instances that it uses are separate processes, because they are other machines in a
// real installation. They have their own descriptors and a lower priority. The attacker uses several
// addresses of the loopback network. The load is measured while the whole attack is running.
package siege

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/simulator/internal/child"
	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
	"github.com/windlass-run/windlass/apps/simulator/internal/proxies"
	"github.com/windlass-run/windlass/pkg/localstack"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

const (
	// AttackedHost is the host of the attacked app, which is healthy. PoisonHost is the host of an app whose
	// answers are the attack. ZeroHost is the host of an app at zero, which never starts.
	AttackedHost = "attacked.test"
	PoisonHost   = "poison.test"
	ZeroHost     = "zero.test"

	startTimeout = 30 * time.Second
	// settleTimeout bounds the time until an ended attack has no more effect.
	settleTimeout = 60 * time.Second
	// instancesEach is the number of instances of an app.
	instancesEach = 2
	// reads is the interval between readings of the memory.
	reads = 100 * time.Millisecond
)

// Gateway is a gateway that is attacked.
type Gateway struct {
	*proxies.Proxy

	secure, metrics string
	self, dir       string
	close           []func() error

	mu sync.Mutex
	// ejected has the reason of each instance that was ejected since the last attack began, by id.
	ejected map[string]string
}

// Start starts the instances, and a gateway in front of them. self is the simulator's binary.
func Start(ctx context.Context, dir, self string) (g *Gateway, err error) {
	g = &Gateway{self: self, dir: dir, ejected: map[string]string{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
		}
	}()
	attacked, stop, err := g.attackedInstances(ctx, 2*instancesEach)
	if err != nil {
		return g, err
	}
	g.close = append(g.close, stop)
	var apps []*gatewayv1.AppRoutes
	for i, host := range []string{proxies.Host, AttackedHost, PoisonHost} {
		app := &gatewayv1.AppRoutes{
			AppId: fmt.Sprint("app_", i), AppName: host, Epoch: 1, Generation: 1, Change: int64(i + 1), Hosts: []string{host},
			Targets: []*gatewayv1.Target{{DeploymentId: fmt.Sprint("dep_", i), Version: 1, Weight: 100}},
			Policy:  &gatewayv1.RoutePolicy{Balancing: gatewayv1.Balancing_BALANCING_ROUND_ROBIN},
		}
		for n := range instancesEach {
			address := attacked[0]
			if host == proxies.Host {
				var stop func() error
				if address, stop, err = startInstance(ctx); err != nil {
					return g, err
				}
				g.close = append(g.close, stop)
			} else {
				attacked = attacked[1:]
			}
			app.Targets[0].Instances = append(app.Targets[0].Instances, &gatewayv1.Instance{
				InstanceId: fmt.Sprintf("%s-%d", host, n), Address: address, State: gatewayv1.Instance_STATE_READY,
			})
		}
		apps = append(apps, app)
	}
	apps = append(apps, &gatewayv1.AppRoutes{
		AppId: "app_zero", AppName: ZeroHost, Epoch: 1, Generation: 1, Change: int64(len(apps) + 1), Hosts: []string{ZeroHost},
		Targets: []*gatewayv1.Target{{DeploymentId: "dep_zero", Version: 1, Weight: 100}}, Held: true,
		Policy: &gatewayv1.RoutePolicy{
			Balancing: gatewayv1.Balancing_BALANCING_ROUND_ROBIN,
			ColdStart: &gatewayv1.ColdStart{Hold: durationpb.New(time.Hour), MaxHeld: new(int32(math.MaxInt32))},
		},
	})
	socket := filepath.Join(dir, "agent.sock")
	stop, err = proxies.Routes(ctx, socket, g, apps)
	if err != nil {
		return g, err
	}
	g.close = append(g.close, stop)
	return g, g.start(ctx, socket)
}

func (g *Gateway) start(ctx context.Context, socket string) error {
	cert, key := filepath.Join(g.dir, "cert.pem"), filepath.Join(g.dir, "key.pem")
	if err := writeCertificate(cert, key, proxies.Host, AttackedHost, PoisonHost); err != nil {
		return err
	}
	ports := localstack.Ports{Claims: localstack.ClaimsFolder()}
	var at [3]string
	for i := range at {
		port, _, err := ports.Take(0)
		if err != nil {
			return err
		}
		at[i] = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	g.secure, g.metrics = at[1], at[2]
	log := filepath.Join(g.dir, "gateway.log")
	p, err := proc.Start(proc.Spec{
		Name: "gateway", Path: g.self, Dir: g.dir, DieWithParent: true, RecordFile: filepath.Join(g.dir, "gateway.json"), LogFile: log,
		Args: []string{
			proxies.GatewayCommand, "--agent=unix:" + socket, "--listen=" + at[0], "--tls-listen=" + at[1], "--tls-cert=" + cert, "--tls-key=" + key,
			"--http3", "--metrics-listen=" + at[2], "--log-level=warn",
		},
	})
	if err != nil {
		return err
	}
	g.Proxy = &proxies.Proxy{Name: "gateway", Address: at[0], Streams: at[0], Process: p}
	g.close = append(g.close, g.Proxy.Close)
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("the gateway does not serve"))
	defer cancel()
	for {
		if _, err = g.Paced(ctx, time.Millisecond, 1, 1000); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			said, _ := os.ReadFile(log) // the gateway's log, for people; empty if it cannot be read
			return fmt.Errorf("%w: %w: %.500s", context.Cause(ctx), err, said)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Reported implements proxies.Reports.
func (g *Gateway) Reported(r *gatewayv1.ReportRequest) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range r.Instances {
		// Instances of PoisonHost give answers that no gateway can forward.
		if h.Ejected && !strings.HasPrefix(h.InstanceId, PoisonHost) {
			g.ejected[h.InstanceId] = h.Reason
		}
	}
}

// Close stops the gateway and the instances.
func (g *Gateway) Close() error {
	var errs []error
	for _, stop := range slices.Backward(g.close) {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}

// Load is the other tenant's load.
type Load struct {
	Window      time.Duration
	Connections int
	// PerSecond are requests on connections that stay. NewPerSecond are requests on new connections.
	PerSecond, NewPerSecond float64
}

// Seen is what the other tenant measured, and what the gateway used.
type Seen struct {
	// P99 and New are 99th percentiles of the time of an answer: P99 on connections that stay open, New on new ones.
	P99, New time.Duration
	// Cores are the processors that the gateway used.
	Cores float64
	// Stolen is the share of the wanted processor time that the host of a virtual machine gave to others.
	Stolen float64
}

// Outcome is the outcome of an attack.
type Outcome struct {
	// Before and During are the measurements before and during the attack.
	Before, During Seen
	// RSS is the highest memory of the gateway, in bytes.
	RSS int64
	// Ejected has the reasons of ejected instances that are healthy, by id.
	Ejected map[string]string
	// Refused and Shed count connections for which the gateway had no room.
	Refused, Shed float64
	// Held are the requests that wait for an app at zero at the end of the measurement.
	Held float64
	// Failed is the error of a request of the other tenant. Nil: all requests were answered.
	Failed error
}

// Attack attacks the gateway with count connections or requests of the kind, while the gateway has the load.
func (g *Gateway) Attack(ctx context.Context, kind string, count int, load Load) (out Outcome, err error) {
	if out.Before, err = g.measureLoad(ctx, load); err != nil {
		return out, fmt.Errorf("before the attack: %w", err)
	}
	g.mu.Lock()
	clear(g.ejected)
	g.mu.Unlock()
	figures, err := g.readFigures(ctx)
	if err != nil {
		return out, err
	}
	attacking, stop := context.WithCancel(ctx)
	defer stop()
	ended, err := g.startAttacker(attacking, kind, count)
	if err != nil {
		return out, err
	}
	watching, seen := context.WithCancel(ctx)
	highest := make(chan int64, 1)
	go func() { highest <- g.highestMemory(watching) }()
	out.During, out.Failed = g.measureLoad(ctx, load)
	seen()
	out.RSS = <-highest
	now, err := g.readFigures(ctx)
	if err != nil {
		return out, err
	}
	out.Refused, out.Shed = now[refused]-figures[refused], now[shed]-figures[shed]
	out.Held = now.Sum(held, "")
	stop()
	<-ended
	g.mu.Lock()
	out.Ejected = maps.Clone(g.ejected)
	g.mu.Unlock()
	return out, g.awaitSettled(ctx)
}

// measureLoad measures the load. It measures again if the host took too much of the processor.
func (g *Gateway) measureLoad(ctx context.Context, load Load) (seen Seen, err error) {
	for range measure.Windows {
		begun := measure.ReadProcessorTime()
		seen, err = g.measureOnce(ctx, load)
		seen.Stolen = measure.ReadProcessorTime().StolenSince(begun)
		if err != nil || seen.Stolen <= measure.MostStolen {
			break
		}
	}
	return seen, err
}

func (g *Gateway) measureOnce(ctx context.Context, load Load) (seen Seen, err error) {
	before, err := measure.ReadUsage(g.PID())
	if err != nil {
		return seen, err
	}
	begun := time.Now()
	var fresh proxies.Seen
	var failed error
	var all sync.WaitGroup
	all.Go(func() { fresh, failed = g.Fresh(ctx, load.Window, load.Connections, load.NewPerSecond) })
	kept, err := g.Paced(ctx, load.Window, load.Connections, load.PerSecond)
	all.Wait()
	if err = errors.Join(err, failed); err != nil {
		return seen, err
	}
	after, err := measure.ReadUsage(g.PID())
	return Seen{P99: kept.P99, New: fresh.P99, Cores: (after.CPU - before.CPU).Seconds() / time.Since(begun).Seconds()}, err
}

const (
	refused     = "windlass_gateway_connections_refused_total"
	shed        = "windlass_gateway_connections_shed_total"
	connections = "windlass_gateway_connections"
	inFlight    = "windlass_gateway_in_flight"
	held        = "windlass_gateway_held"
)

func (g *Gateway) readFigures(ctx context.Context) (measure.Metrics, error) {
	return measure.Scrape(ctx, "http://"+g.metrics+"/metrics")
}

// awaitSettled waits until the gateway has nothing left of the attack.
func (g *Gateway) awaitSettled(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settleTimeout, errors.New("the gateway keeps connections or requests of an attack that is over"))
	defer cancel()
	for {
		m, err := g.readFigures(ctx)
		if err == nil && m[connections] == 0 && m.Sum(inFlight, "") == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(reads):
		}
	}
}

// highestMemory returns the highest memory of the gateway until ctx ends.
func (g *Gateway) highestMemory(ctx context.Context) (rss int64) {
	for {
		if u, err := measure.ReadUsage(g.PID()); err == nil {
			rss = max(rss, u.RSS)
		}
		select {
		case <-ctx.Done():
			return rss
		case <-time.After(reads):
		}
	}
}

// startAttacker starts the attacking process, and returns when its attack runs in full. It ends with ctx.
func (g *Gateway) startAttacker(ctx context.Context, kind string, count int) (ended <-chan struct{}, err error) {
	line, done, err := g.startChild(ctx, AttackCommand, kind, strconv.Itoa(count), g.Address, g.secure)
	if err == nil && line != ready {
		err = fmt.Errorf("it wrote %q", line)
	}
	if err != nil {
		return nil, fmt.Errorf("the attack %s did not begin: %w", kind, errors.Join(err, ctx.Err()))
	}
	return done, nil
}

// attackedInstances starts the process with the instances that attackers use, and returns their addresses.
func (g *Gateway) attackedInstances(ctx context.Context, count int) (addresses []string, stop func() error, err error) {
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	line, done, err := g.startChild(running, InstancesCommand, strconv.Itoa(count))
	stop = func() error { end(); <-done; return nil }
	if addresses = strings.Fields(line); err == nil && len(addresses) != count {
		err = fmt.Errorf("%d addresses", len(addresses))
	}
	if err != nil {
		end()
		return nil, nil, fmt.Errorf("the attacked instances did not start: %q %w", line, err)
	}
	return addresses, stop, nil
}

// startChild starts this program, and returns the first line that it writes. The process ends with ctx.
func (g *Gateway) startChild(ctx context.Context, args ...string) (line string, ended <-chan struct{}, err error) {
	first := make(chan string, 1)
	ended, err = child.Start(ctx, g.self, nil, func(line string) {
		select {
		case first <- line:
		default: // only the first line is used
		}
	}, args...)
	if err != nil {
		return "", nil, err
	}
	select {
	case line = <-first:
		return line, ended, nil
	case <-ended:
		return "", ended, errors.New("it ended")
	}
}
