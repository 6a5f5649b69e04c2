// Command peers is a minimal reverse proxy, for comparison with the gateway in the simulator's gateway scenario. It uses
// fasthttp, or hertz with netpoll, which serve HTTP without net/http. It is not in go.work, so that no program of the
// product depends on these libraries.
//
//	peers fasthttp LISTEN=INSTANCE,INSTANCE LISTEN=INSTANCE,INSTANCE
//
// LISTEN is an address to listen on, and INSTANCE the address of an instance. Requests go to the instances of their
// LISTEN in turn. As in the gateway, hop-by-hop fields are removed, X-Forwarded-For is set, and response bodies are
// streamed. There are no routes, limits, retries or metrics.
package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// balancer selects instances in turn.
type balancer struct {
	instances []string
	turn      atomic.Uint64
}

func (b *balancer) nextInstance() string { return b.instances[b.turn.Add(1)%uint64(len(b.instances))] }

const (
	maxConnections = 1024
	idleTimeout    = 75 * time.Second
)

// hopFields are the header fields that apply to one connection only: RFC 9110, section 7.6.1.
var hopFields = [...]string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Upgrade", "Proxy-Authenticate", "Proxy-Authorization"}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	serve := map[string]func(listen string, instances *balancer) error{"fasthttp": serveFasthttp, "hertz": serveHertz}
	if len(args) < 2 || serve[args[0]] == nil {
		return errors.New("use: peers fasthttp|hertz LISTEN=INSTANCE,INSTANCE LISTEN=INSTANCE,INSTANCE")
	}
	failed := make(chan error, len(args))
	for _, arg := range args[1:] {
		listen, instances, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q: use LISTEN=INSTANCE,INSTANCE", arg)
		}
		go func() { failed <- serve[args[0]](listen, &balancer{instances: strings.Split(instances, ",")}) }()
	}
	return <-failed
}

// appendClient returns the value of X-Forwarded-For: the earlier value and the client.
func appendClient(before []byte, client string) string {
	if len(before) == 0 {
		return client
	}
	return string(before) + ", " + client
}

const failedStatus = http.StatusBadGateway
