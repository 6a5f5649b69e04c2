package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/proxies"
	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

// gateways are the shipped gateways of the regions whose apps get requests, each as a process.
type gateways struct {
	self     string
	w        *testbed.Testbed
	requests *requests

	mu        sync.Mutex
	addresses map[string]string
	processes map[string]*proc.Process
}

// addressOf returns the host:port of a region's gateway.
func (g *gateways) addressOf(region string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.addresses[region]
}

// start starts the gateway of a region. A gateway that was killed gets its port and its data again.
func (g *gateways) start(region string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, known := g.addresses[region]
	if !known {
		var err error
		if at, err = stack.FreeAddress(); err != nil {
			return fmt.Errorf("gateway of %s: %w", region, err)
		}
		g.addresses[region] = at
	}
	name := gatewayOf(region)
	dir := g.w.Stack.Dir()
	p, err := proc.Start(proc.Spec{
		Name: name, Path: g.self, Dir: dir, DieWithParent: true,
		Args: []string{
			proxies.GatewayCommand, "--agent=unix:" + filepath.Join(g.w.Fleet.Member(region).Folder(), "gateway.sock"),
			"--listen=" + at, "--data-dir=" + filepath.Join(dir, "data-gateway-"+region), "--log-level=warn",
		},
		RecordFile: filepath.Join(dir, "gateway-"+region+".json"), LogFile: filepath.Join(dir, "gateway-"+region+".log"),
	})
	if err != nil {
		return fmt.Errorf("start the %s: %w", name, err)
	}
	g.processes[region] = p
	return nil
}

// gatewayOf returns the name of a region's gateway as a target of faults.
func gatewayOf(region string) string { return linkBetween(region, "gateway") }

// waitServing waits until the gateway of a region accepts connections.
func (g *gateways) waitServing(ctx context.Context, region string) error {
	return testbed.Until(ctx, 10*time.Millisecond, func() (bool, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", g.addressOf(region))
		if err == nil {
			return true, conn.Close()
		}
		return false, nil
	}, func() string { return gatewayOf(region) + " does not listen" })
}

// killGateway sends kill -9 to the gateway of a region.
func (g *gateways) killGateway(region string) error {
	g.mu.Lock()
	p := g.processes[region]
	g.mu.Unlock()
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.Done()
	return nil
}

// stop ends all gateways.
func (g *gateways) stop() (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.processes {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err = errors.Join(err, p.Stop(ctx, 10*time.Second))
		cancel()
	}
	return err
}

// killGateway kills the gateway of a region, and its mend starts the gateway again.
func (s *injector) killGateway(_ context.Context, rnd *rand.Rand, target string) (func(context.Context) error, time.Duration, error) {
	region := s.regionOf(target)
	serves := s.gateways.requests.gatewayKilled(region)
	mend := func(ctx context.Context) error {
		err := s.gateways.start(region)
		if err == nil {
			err = s.gateways.waitServing(ctx, region)
		}
		serves()
		return err
	}
	return mend, randomBetween(rnd, 0, 4*time.Second), s.gateways.killGateway(region)
}
