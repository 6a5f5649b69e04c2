package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/proxies"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	"github.com/windlass-run/windlass/pkg/localstack"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

// AgentCommand is the hidden command that runs this program as an agent.
const AgentCommand = "__agent"

// startRegion starts an agent that runs processes, and a gateway, each as a process. It returns the address of the
// gateway. The caller calls stop, also after an error.
func startRegion(ctx context.Context, w *testbed.Testbed, self, region string) (gateway string, stop func() error, err error) {
	r, err := newRegionParts(w, self, region)
	stop = func() error { return r.stop(context.WithoutCancel(ctx)) }
	if err == nil {
		err = r.startAgent()
	}
	if err == nil {
		_, err = r.startGateway()
	}
	return r.gateway, stop, err
}

// regionParts are an agent that runs processes, and gateways at one address, each a process. Make it with
// newRegionParts.
type regionParts struct {
	w            *testbed.Testbed
	self, region string
	// dir has everything of the region on disk, and gateway is the address of the gateways.
	dir, gateway string

	agent *proc.Process
	// gateways are all that were started. The last one is the newest.
	gateways []*regionGateway
}

// regionGateway is a gateway that was started. admin is the URL of its probes.
type regionGateway struct {
	*proc.Process

	admin string
}

// newRegionParts prepares a region. The caller calls stop, also after an error.
func newRegionParts(w *testbed.Testbed, self, region string) (r *regionParts, err error) {
	r = &regionParts{w: w, self: self, region: region}
	if r.dir, err = os.MkdirTemp("", "region"); err != nil { // short, because it contains a socket
		return r, err
	}
	if err := os.WriteFile(filepath.Join(r.dir, "token"), []byte(w.Stack.JoinToken(region)), 0o600); err != nil {
		return r, err
	}
	r.gateway, err = takeAddress()
	return r, err
}

// takeAddress returns a free host:port.
func takeAddress() (string, error) {
	ports := localstack.Ports{Claims: localstack.ClaimsFolder()}
	port, _, err := ports.Take(0)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}

func (r *regionParts) data() string { return filepath.Join(r.dir, "agent") }

func (r *regionParts) start(name string, args ...string) (*proc.Process, error) {
	p, err := proc.Start(proc.Spec{
		Name: name, Path: r.self, Args: args, Dir: r.dir, DieWithParent: true,
		RecordFile: filepath.Join(r.dir, name+".json"), LogFile: filepath.Join(r.w.Stack.Dir(), name+"-"+r.region+".log"),
	})
	if err != nil {
		return nil, fmt.Errorf("start the %s of %s: %w", name, r.region, err)
	}
	return p, nil
}

// startAgent starts the agent, also after it was killed.
func (r *regionParts) startAgent() (err error) {
	r.agent, err = r.start("agent", AgentCommand, "--server="+r.w.URL(), "--data-dir="+r.data(), "--join-token-file="+filepath.Join(r.dir, "token"),
		"--stop-on-exit", "--trust-all-tenants", "--gpus=none", "--log-level=warn")
	return err
}

// startGateway starts a gateway, next to those that run.
func (r *regionParts) startGateway() (*regionGateway, error) {
	name := "gateway"
	if n := len(r.gateways); n > 0 {
		name += "-" + strconv.Itoa(n+1)
	}
	admin, err := takeAddress()
	if err != nil {
		return nil, err
	}
	p, err := r.start(name, proxies.GatewayCommand, "--agent=unix:"+filepath.Join(r.data(), "gateway.sock"), "--listen="+r.gateway,
		"--metrics-listen="+admin, "--data-dir="+filepath.Join(r.dir, name), "--log-level=error")
	if err != nil {
		return nil, err
	}
	g := &regionGateway{p, "http://" + admin}
	r.gateways = append(r.gateways, g)
	return g, nil
}

// stop stops all parts, the gateways first, and removes what they left on disk.
func (r *regionParts) stop(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, g := range slices.Backward(r.gateways) {
		err = errors.Join(err, g.Stop(ctx, 30*time.Second))
	}
	if r.agent != nil {
		err = errors.Join(err, r.agent.Stop(ctx, 30*time.Second))
	}
	if r.dir != "" {
		err = errors.Join(err, os.RemoveAll(r.dir))
	}
	return err
}

// hostOf returns the stable host of the only app.
func hostOf(ctx context.Context, w *testbed.Testbed) (string, error) {
	var hosts string
	if err := w.DB.QueryRowContext(ctx, "SELECT hosts FROM app_routes LIMIT 1").Scan(&hosts); err != nil {
		return "", fmt.Errorf("read the hosts of the app: %w", err)
	}
	var list []string
	if err := json.Unmarshal([]byte(hosts), &list); err != nil {
		return "", fmt.Errorf("read the hosts of the app: %w", err)
	}
	if len(list) == 0 {
		return "", errors.New("the app has no host")
	}
	return list[0], nil
}
