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
	var closers []func() error
	stop = func() error {
		var errs []error
		for _, closes := range slices.Backward(closers) {
			errs = append(errs, closes())
		}
		return errors.Join(errs...)
	}
	dir, err := os.MkdirTemp("", "region") // short, because it contains a socket
	if err != nil {
		return "", stop, err
	}
	closers = append(closers, func() error { return os.RemoveAll(dir) })
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(w.Stack.JoinToken(region)), 0o600); err != nil {
		return "", stop, err
	}
	ports := localstack.Ports{Claims: localstack.ClaimsFolder()}
	port, _, err := ports.Take(0)
	if err != nil {
		return "", stop, err
	}
	gateway = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	data := filepath.Join(dir, "agent")
	for _, p := range []struct {
		name string
		args []string
	}{
		{"agent", []string{AgentCommand, "--server=" + w.URL(), "--data-dir=" + data, "--join-token-file=" + token, "--stop-on-exit", "--trust-all-tenants", "--gpus=none", "--log-level=warn"}},
		{"gateway", []string{proxies.GatewayCommand, "--agent=unix:" + filepath.Join(data, "gateway.sock"), "--listen=" + gateway, "--data-dir=" + filepath.Join(dir, "gateway"), "--log-level=error"}},
	} {
		process, err := proc.Start(proc.Spec{
			Name: p.name, Path: self, Args: p.args, Dir: dir, DieWithParent: true,
			RecordFile: filepath.Join(dir, p.name+".json"), LogFile: filepath.Join(w.Stack.Dir(), p.name+"-"+region+".log"),
		})
		if err != nil {
			return "", stop, fmt.Errorf("start the %s of %s: %w", p.name, region, err)
		}
		closers = append(closers, func() error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			return process.Stop(ctx, 30*time.Second)
		})
	}
	return gateway, stop, nil
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
