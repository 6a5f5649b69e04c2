package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// network has every connection that can be broken: one Toxiproxy for each agent, for each replica's links to
// MariaDB and Restate, and for Restate's links back.
type network struct {
	server *toxiproxy.ApiServer

	mu    sync.Mutex
	links map[string]*link
}

// link is one direction of calls, such as an agent's to the control plane.
type link struct {
	name   string
	server *toxiproxy.ApiServer

	mu       sync.Mutex
	proxy    *toxiproxy.Proxy
	poisoned bool
}

func newNetwork() *network {
	// The toxics log to the library's own global logger.
	zerolog.SetGlobalLevel(zerolog.Disabled)
	return &network{
		server: toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop()),
		links:  map[string]*link{},
	}
}

// addLink adds a link to an upstream, and returns the address on which the link listens.
func (n *network) addLink(name, upstream string) (string, error) {
	proxy := toxiproxy.NewProxy(n.server, name, "127.0.0.1:0", upstream)
	if err := proxy.Start(); err != nil {
		return "", fmt.Errorf("link %s: %w", name, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links[name] = &link{name: name, server: n.server, proxy: proxy}
	return proxy.Listen, nil
}

func (n *network) linkOf(name string) *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.links[name]
}

func (n *network) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		l.refuseConnections()
	}
}

// breakConnections breaks every connection, and accepts new ones.
func (l *link) breakConnections() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proxy.Stop()
	return l.listenAgain()
}

// refuseConnections breaks every connection and refuses new ones, until undoFaults.
func (l *link) refuseConnections() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proxy.Stop()
}

func (l *link) listenAgain() error {
	if err := l.proxy.Start(); err != nil && !errors.Is(err, toxiproxy.ErrProxyAlreadyStarted) {
		return fmt.Errorf("link %s: %w", l.name, err)
	}
	return nil
}

// delayTraffic delays everything that passes, both ways, by latency and up to jitter more.
func (l *link) delayTraffic(latency, jitter time.Duration) error {
	attributes := fmt.Sprintf(`{"latency": %d, "jitter": %d}`, latency.Milliseconds(), jitter.Milliseconds())
	return l.addFault("latency", attributes, "upstream", "downstream")
}

// halfOpen drops the bytes that are sent in the given directions, while connections stay open.
func (l *link) halfOpen(streams ...string) error {
	return l.addFault("timeout", `{"timeout": 0}`, streams...)
}

// limitRate limits the traffic to the agent to rate KiB a second.
func (l *link) limitRate(rate int) error {
	return l.addFault("bandwidth", fmt.Sprintf(`{"rate": %d}`, rate), "downstream")
}

func (l *link) addFault(kind, attributes string, streams ...string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, stream := range streams {
		name := kind + "_" + stream
		toxic := fmt.Sprintf(`{"name": %q, "type": %q, "stream": %q, "attributes": %s}`, name, kind, stream, attributes)
		if _, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			return fmt.Errorf("link %s: %s: %w", l.name, kind, err)
		}
		l.poisoned = true
	}
	return nil
}

// undoFaults ends all faults of the link. Poisoned connections are broken, because their lost bytes cannot come back.
func (l *link) undoFaults(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.poisoned {
		l.proxy.Stop()
		// It makes a new proxy, because removing a toxic waits for ended connections, sometimes for ever.
		l.proxy, l.poisoned = toxiproxy.NewProxy(l.server, l.name, l.proxy.Listen, l.proxy.Upstream), false
	}
	return l.listenAgain()
}
