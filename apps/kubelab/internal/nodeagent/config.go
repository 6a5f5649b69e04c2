package nodeagent

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"k8s.io/client-go/rest"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/lifecycle"
)

// HostRepository is the image repository whose containers are processes of this host. The rest of the image's
// name is its entrypoint: "kubelab.local/host/usr/bin/env:v1" runs /usr/bin/env. Tag and digest are ignored.
const HostRepository = "kubelab.local/host"

// Config configures an Agent. Kubeconfig, CIDR and Log are required.
type Config struct {
	// Kubeconfig reaches the API server. Its user needs all rights on pods, and must be able to read nodes,
	// secrets and config maps.
	Kubeconfig *rest.Config
	// CIDR is the network of pods' addresses, in this host's loopback network.
	CIDR netip.Prefix
	// NodeAddress is the address of all nodes. Default: 127.0.0.1.
	NodeAddress string
	Log         *slog.Logger

	// RestartBackoff is the delay between runs of a container that keeps ending. Default: 1 s to 30 s, a
	// tenth of the kubelet's, so that tests are quick.
	RestartBackoff lifecycle.Backoff
	// PullBackoff is the delay between attempts to pull a missing image. Default: RestartBackoff.
	PullBackoff lifecycle.Backoff
	// Random returns numbers in [0, 1) for the jitter of retries. Default: package backoff's.
	Random func() float64
}

func (c Config) withDefaults() (Config, error) {
	c.NodeAddress = cmp.Or(c.NodeAddress, "127.0.0.1")
	if c.RestartBackoff == (lifecycle.Backoff{}) {
		c.RestartBackoff = lifecycle.Backoff{Base: time.Second, Max: 30 * time.Second}
	}
	if c.PullBackoff == (lifecycle.Backoff{}) {
		c.PullBackoff = c.RestartBackoff
	}
	var errs []error
	if c.Kubeconfig == nil {
		errs = append(errs, errors.New("Kubeconfig is required"))
	}
	if c.Log == nil {
		errs = append(errs, errors.New("Log is required"))
	}
	if !c.CIDR.IsValid() || !c.CIDR.Addr().Is4() || !c.CIDR.Addr().IsLoopback() || c.CIDR.Bits() < 8 || c.CIDR.Bits() > 30 {
		errs = append(errs, fmt.Errorf("CIDR must be a part of 127.0.0.0/8 of at least four addresses, like 127.64.0.0/16, not %s", c.CIDR))
	}
	if _, err := netip.ParseAddr(c.NodeAddress); err != nil {
		errs = append(errs, fmt.Errorf("NodeAddress must be an IP address, not %q", c.NodeAddress))
	}
	for name, b := range map[string]lifecycle.Backoff{"RestartBackoff": c.RestartBackoff, "PullBackoff": c.PullBackoff} {
		if b.Base <= 0 || b.Max < b.Base {
			errs = append(errs, fmt.Errorf("%s needs a Base above 0 and a Max of at least Base, not %s and %s", name, b.Base, b.Max))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Config{}, fmt.Errorf("node agent config: %w", err)
	}
	return c, nil
}
