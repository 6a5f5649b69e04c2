// Command peers is a proxy that is made from a library which serves HTTP without net/http: fasthttp, or
// hertz with netpoll. The simulator's gateway scenario measures the gateway beside it. It is outside of
// go.work, so that no program of the product brings these libraries along.
//
//	peers fasthttp at=to,to at=to,to
//
// Each at is an address to listen on; its requests go to the instances behind it in turn. It does what the
// gateway does for every request, as far as a library has it: fields of the hop are dropped, X-Forwarded-For
// is set, answers go on as they come. It knows no routes, limits, retries or figures.
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

// balancer gives instances in turn.
type balancer struct {
	instances []string
	turn      atomic.Uint64
}

func (b *balancer) next() string { return b.instances[b.turn.Add(1)%uint64(len(b.instances))] }

const (
	connections = 1024
	idle        = 75 * time.Second
)

// hop are fields between two sides of a connection.
var hop = [...]string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Upgrade", "Proxy-Authenticate", "Proxy-Authorization"}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	serve := map[string]func(at string, to *balancer) error{"fasthttp": serveFast, "hertz": serveHertz}
	if len(args) < 2 || serve[args[0]] == nil {
		return errors.New("use: peers fasthttp|hertz at=to,to at=to,to")
	}
	failed := make(chan error, len(args))
	for _, arg := range args[1:] {
		at, to, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q: use at=to,to", arg)
		}
		go func() { failed <- serve[args[0]](at, &balancer{instances: strings.Split(to, ",")}) }()
	}
	return <-failed
}

// forwarded is X-Forwarded-For with the client behind what was there.
func forwarded(before []byte, client string) string {
	if len(before) == 0 {
		return client
	}
	return string(before) + ", " + client
}

const failedStatus = http.StatusBadGateway
