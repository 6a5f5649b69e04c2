package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/fleet"
	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
)

// fault is a way to break a part. hit causes the fault, and returns a function that mends it and the time until the mend.
// The function is nil if nothing has to be mended.
type fault struct {
	name   string
	weight int
	// target returns what the fault hits. Two faults on one target do not overlap.
	target func(rnd *rand.Rand) string
	hit    func(ctx context.Context, rnd *rand.Rand, target string) (mend func(context.Context) error, after time.Duration, err error)
}

// injector causes faults.
type injector struct {
	w          *testbed.Testbed
	net        *network
	history    *history
	checker    *checker
	transports map[string]*unreliableTransport
	disks      *disks
	gateways   *gateways
	backup     *backup
}

// randomBetween returns a random duration between low and high.
func randomBetween(rnd *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(rnd.Float64()*float64(high-low))
}

// linkToControlPlane returns the name of an agent's link. linkBetween returns the name of a replica's link to
// MariaDB or Restate, or of Restate's link back.
func linkToControlPlane(region string) string { return linkBetween(region, "controlplane") }
func linkBetween(from, to string) string      { return from + "/" + to }

func (s *injector) possibleFaults() []fault {
	plane := func(rnd *rand.Rand) string { return stack.ControlPlane(1 + rnd.IntN(len(s.w.Stack.Planes()))) }
	region := func(rnd *rand.Rand) string { return s.w.Regions[rnd.IntN(len(s.w.Regions))] }
	link := func(rnd *rand.Rand) string { return linkToControlPlane(region(rnd)) }
	database := func(rnd *rand.Rand) string { return linkBetween(plane(rnd), stack.MariaDB) }
	restate := func(rnd *rand.Rand) string {
		ends := []string{plane(rnd), stack.Restate}
		from := rnd.IntN(2)
		return linkBetween(ends[from], ends[1-from])
	}
	gateway := func(rnd *rand.Rand) string { return gatewayOf(gatewayRegions(s.w.Regions)[rnd.IntN(2)]) }
	named := func(name string) func(*rand.Rand) string { return func(*rand.Rand) string { return name } }
	out := []fault{
		{"kill", 8, plane, s.killPart(0, 5*time.Second)},
		{"kill", 3, named(stack.MariaDB), s.killPart(0, 4*time.Second)},
		{"kill", 3, named(stack.Restate), s.killPart(0, 6*time.Second)},
		{"lose the data of", 1, named(stack.Restate), s.loseData},
		{"freeze", 4, plane, s.freezePart(500*time.Millisecond, 20*time.Second)},
		{"freeze", 2, named(stack.MariaDB), s.freezePart(200*time.Millisecond, 4*time.Second)},
		{"freeze", 2, named(stack.Restate), s.freezePart(200*time.Millisecond, 4*time.Second)},
		{"stop in order", 4, plane, s.terminatePart},
		{"kill the agent of", 8, region, s.killAgent(false)},
		{"lose the inbox of", 3, region, s.killAgent(true)},
		{"crash an instance of", 4, region, s.crashInstances},
		{"crash a server of models in", 4, func(rnd *rand.Rand) string { return gatewayRegions(s.w.Regions)[rnd.IntN(2)] }, s.crashServer},
		{"kill", 4, gateway, s.killGateway},
		{"silence the executor of", 4, region, s.silenceRuntime},
		{"lose, double and delay reports of", 6, region, s.misreportStates},
		{"cut", 6, link, s.onLink(func(l *wire, _ *rand.Rand) error { return l.breakConnections() }, 0, 0)},
		{"take down", 5, link, s.onLink(func(l *wire, _ *rand.Rand) error { l.refuseConnections(); return nil }, time.Second, 20*time.Second)},
		{"delay", 4, link, s.onLink(func(l *wire, rnd *rand.Rand) error {
			return l.delayTraffic(randomBetween(rnd, 10*time.Millisecond, 1500*time.Millisecond), randomBetween(rnd, 0, 500*time.Millisecond))
		}, 2*time.Second, 20*time.Second)},
		{"slow down", 2, link, s.onLink(func(l *wire, rnd *rand.Rand) error { return l.limitRate(1 + rnd.IntN(8)) }, 2*time.Second, 15*time.Second)},
		{"half-open", 5, link, s.onLink(func(l *wire, rnd *rand.Rand) error {
			return l.halfOpen([][]string{{"upstream"}, {"downstream"}, {"upstream", "downstream"}}[rnd.IntN(3)]...)
		}, 2*time.Second, 40*time.Second)},
	}
	// A replica is near its backends, so its links have fewer and shorter faults than the links of agents.
	for _, backend := range []func(*rand.Rand) string{database, restate} {
		out = append(out,
			fault{"cut", 3, backend, s.onLink(func(l *wire, _ *rand.Rand) error { return l.breakConnections() }, 0, 0)},
			fault{"take down", 2, backend, s.onLink(func(l *wire, _ *rand.Rand) error { l.refuseConnections(); return nil }, 500*time.Millisecond, 8*time.Second)},
			fault{"delay", 3, backend, s.onLink(func(l *wire, rnd *rand.Rand) error {
				return l.delayTraffic(randomBetween(rnd, 5*time.Millisecond, 300*time.Millisecond), randomBetween(rnd, 0, 100*time.Millisecond))
			}, time.Second, 10*time.Second)},
			fault{"half-open", 2, backend, s.onLink(func(l *wire, _ *rand.Rand) error { return l.halfOpen("upstream", "downstream") }, time.Second, 10*time.Second)},
		)
	}
	if s.disks.canMount() {
		out = append(out, fault{"fill the disk of", 4, region, s.fillDisk})
	}
	if clocksCanJump {
		out = append(out, fault{"jump the clock of", 4, plane, s.jumpClock})
	}
	if s.backup != nil {
		out = append(out, fault{"restore a backup of", 2, named(stack.MariaDB), s.restoreBackup})
	}
	return out
}

// wire is another name for link, because possibleFaults has a variable named link.
type wire = link

// killPart sends kill -9 to a part, and its mend starts the part again.
func (s *injector) killPart(low, high time.Duration) func(context.Context, *rand.Rand, string) (func(context.Context) error, time.Duration, error) {
	return func(_ context.Context, rnd *rand.Rand, part string) (func(context.Context) error, time.Duration, error) {
		return s.startPart(part), randomBetween(rnd, low, high), s.w.Stack.Kill(part)
	}
}

func (s *injector) startPart(part string) func(context.Context) error {
	return func(ctx context.Context) error { return s.w.Stack.Launch(ctx, part) }
}

func (s *injector) terminatePart(ctx context.Context, rnd *rand.Rand, part string) (func(context.Context) error, time.Duration, error) {
	return s.startPart(part), randomBetween(rnd, 0, 3*time.Second), s.w.Stack.Terminate(ctx, part)
}

// loseData kills Restate, which then starts without its data.
func (s *injector) loseData(_ context.Context, rnd *rand.Rand, part string) (func(context.Context) error, time.Duration, error) {
	if err := s.w.Stack.Kill(part); err != nil {
		return nil, 0, err
	}
	return s.startPart(part), randomBetween(rnd, 0, 3*time.Second), os.RemoveAll(s.w.Stack.Folder(part))
}

// freezePart stops a part without ending it. This is worse than a kill: the part continues where it was, and does
// not know that time has passed.
func (s *injector) freezePart(low, high time.Duration) func(context.Context, *rand.Rand, string) (func(context.Context) error, time.Duration, error) {
	return func(_ context.Context, rnd *rand.Rand, part string) (func(context.Context) error, time.Duration, error) {
		return func(context.Context) error { return s.w.Stack.Thaw(part) }, randomBetween(rnd, low, high), s.w.Stack.Freeze(part)
	}
}

func (s *injector) killAgent(loseInbox bool) func(context.Context, *rand.Rand, string) (func(context.Context) error, time.Duration, error) {
	return func(_ context.Context, rnd *rand.Rand, region string) (func(context.Context) error, time.Duration, error) {
		m := s.w.Fleet.Member(region)
		m.Kill()
		if loseInbox {
			if err := m.Lose(); err != nil {
				return nil, 0, err
			}
			s.checker.inboxLost(region)
		}
		return s.startAgent(m), randomBetween(rnd, 0, 5*time.Second), nil
	}
}

func (s *injector) startAgent(m *fleet.Member) func(context.Context) error {
	return func(ctx context.Context) error { return m.Start(ctx) }
}

func (s *injector) crashInstances(_ context.Context, rnd *rand.Rand, region string) (func(context.Context) error, time.Duration, error) {
	m := s.w.Fleet.Member(region)
	servers := s.gateways.requests.models.deploymentsIn(region) // see crashServer
	for id, n := range m.Runtime.Running() {
		if n == 0 || rnd.IntN(2) == 0 || slices.Contains(servers, id) {
			continue
		}
		if m.Runtime.Crash(id) == nil {
			s.history.add(event{region: region, deployment: id, part: "executor", text: "an instance crashes and another one starts"})
		}
		break
	}
	return nil, 0, nil
}

// silenceRuntime simulates that the API server of a region is away: instances run on, but the region's agent can
// neither change nor see anything.
func (s *injector) silenceRuntime(_ context.Context, rnd *rand.Rand, region string) (func(context.Context) error, time.Duration, error) {
	m := s.w.Fleet.Member(region)
	m.Runtime.Silence(true)
	return func(context.Context) error { m.Runtime.Silence(false); return nil }, randomBetween(rnd, time.Second, 40*time.Second), nil
}

func (s *injector) misreportStates(_ context.Context, rnd *rand.Rand, region string) (func(context.Context) error, time.Duration, error) {
	m := s.transports[region]
	m.on.Store(true)
	return func(context.Context) error { m.on.Store(false); return nil }, randomBetween(rnd, 2*time.Second, 15*time.Second), nil
}

func (s *injector) onLink(do func(*link, *rand.Rand) error, low, high time.Duration) func(context.Context, *rand.Rand, string) (func(context.Context) error, time.Duration, error) {
	return func(_ context.Context, rnd *rand.Rand, name string) (func(context.Context) error, time.Duration, error) {
		l := s.net.linkOf(name)
		if err := do(l, rnd); err != nil || high == 0 {
			return nil, 0, err
		}
		return l.undoFaults, randomBetween(rnd, low, high), nil
	}
}

func (s *injector) fillDisk(_ context.Context, rnd *rand.Rand, region string) (func(context.Context) error, time.Duration, error) {
	folder := s.w.Fleet.Member(region).Folder()
	return func(context.Context) error { return s.disks.freeDisk(folder) }, randomBetween(rnd, time.Second, 15*time.Second), s.disks.fillDisk(folder)
}

func (s *injector) jumpClock(_ context.Context, rnd *rand.Rand, plane string) (func(context.Context) error, time.Duration, error) {
	by := randomBetween(rnd, -time.Minute, time.Minute)
	pid := s.w.Stack.PIDs()[plane]
	if pid == 0 {
		return nil, 0, nil
	}
	s.history.add(event{part: plane, text: fmt.Sprintf("its clock jumps by %s", by.Round(time.Second))})
	// A process that was started after the jump has the right clock.
	mend := func(context.Context) error {
		if s.w.Stack.PIDs()[plane] != pid {
			return nil
		}
		return setClock(pid, 0)
	}
	return mend, randomBetween(rnd, time.Second, 15*time.Second), setClock(pid, by)
}

// restoreBackup kills the database and restores the last backup.
func (s *injector) restoreBackup(_ context.Context, rnd *rand.Rand, part string) (func(context.Context) error, time.Duration, error) {
	if err := s.w.Stack.Kill(part); err != nil {
		return nil, 0, err
	}
	s.checker.databaseRestored()
	return s.startPart(part), randomBetween(rnd, 0, 2*time.Second), s.backup.restoreCopy()
}
