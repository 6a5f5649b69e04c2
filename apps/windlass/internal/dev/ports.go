package dev

import (
	"fmt"
	"strconv"

	"github.com/windlass-run/windlass/pkg/localstack"
)

// These are the names of ports in the state file.
const (
	portAPI            = "api"
	portWorkflows      = "workflows"
	portMetrics        = "metrics"
	portMariaDB        = "mariadb"
	portRestateIngress = "restate-ingress"
	portRestateAdmin   = "restate-admin"
	portRestateNode    = "restate-node"
)

func portAgent(region string) string { return "metrics/" + region }

// portGateway returns the name of the port at which the region's apps are reached.
func portGateway(region string) string { return "gateway/" + region }

func portGatewayMetrics(region string) string { return "gateway-metrics/" + region }

// firstPort begins a range that no well-known service uses. The API has this port.
const firstPort = 7700

// assignPorts gives every name a port: its port of the last run, else the usual one. If that port is taken, assignPorts
// chooses a free port and reports it with say.
func assignPorts(last map[string]int, regions []string, say func(string)) (map[string]int, error) {
	names := []string{
		portAPI, portWorkflows, portMetrics, portMariaDB,
		portRestateIngress, portRestateAdmin, portRestateNode,
	}
	for _, r := range regions {
		names = append(names, portAgent(r))
	}
	for _, r := range regions {
		names = append(names, portGateway(r), portGatewayMetrics(r))
	}
	// The claims hold for all data folders of this user.
	pool := localstack.Ports{Claims: localstack.ClaimsFolder()}
	out := map[string]int{}
	for i, name := range names {
		want, again := last[name]
		if !again {
			want = firstPort + i
		}
		port, taken, err := pool.Take(want)
		if err != nil {
			return nil, fmt.Errorf("a port for %s: %w", name, err)
		}
		if taken {
			say(fmt.Sprintf("port %d is taken; %s uses %d instead", want, name, port))
		}
		out[name] = port
	}
	// A region that is left out this time gets its old port when it returns.
	for name, port := range last {
		if _, ok := out[name]; !ok {
			out[name] = port
		}
	}
	return out, nil
}

func localAddress(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// urlOf returns the URL of a local port, with or without TLS.
func urlOf(tls bool, port int) string {
	if tls {
		return "https://" + localAddress(port)
	}
	return "http://" + localAddress(port)
}
