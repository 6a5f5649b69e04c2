//go:build !linux

package gateway

import (
	"context"
	"net"
)

// listen binds address for this process alone: only Linux spreads connections over those
// that share one.
func listen(ctx context.Context, address string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
}

func handOver(net.Listener) error { return nil }

// queued is not known here.
func queued(net.Listener) bool { return false }
